"""Commands of the routing engine: train, evaluate, explain, serve. Torch loads only inside them."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from routing_engine.training.dataset import LabelledPrompt

engine_app = typer.Typer(
    name="engine", help="Train, evaluate and serve the routing engine.", no_args_is_help=True
)

DataDir = Annotated[
    Path, typer.Option("--data-dir", envvar="EXPERTGATE_DATA_DIR", help="Data directory.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
DataFile = Annotated[
    Path | None,
    typer.Argument(help="JSON lines of text, label, lang, split. Default: the demo's prompts."),
]
DEFAULT_DATA_DIR = Path("expertgate-data")


@engine_app.command("train")
def train(
    data: DataFile = None,
    experts: Annotated[
        Path | None,
        typer.Option(help="TOML with the experts' domains and vocabulary. Default: the demo's."),
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    seed: Annotated[int, typer.Option(help="The same seed gives the same artefacts.")] = 0,
    second_stage: Annotated[
        bool, typer.Option("--second-stage", help="Train the engine's second stage too (slower).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train gate and fallback table (and the second stage) from labelled prompts, and evaluate them."""
    _one_thread_per_call()
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from routing_engine.artefacts import SECOND_STAGE_FILE
    from routing_engine.training.dataset import domains_of, packaged_prompts, read_prompts
    from routing_engine.training.evaluate import evaluate
    from routing_engine.training.first_stage import train_first_stage
    from routing_engine.training.vocabulary import packaged_vocabulary, read_vocabulary

    rows = read_prompts(data or packaged_prompts())
    # The demo's vocabulary is about the demo's experts: it has no place in somebody else's data.
    described = experts or (packaged_vocabulary() if data is None else None)
    vocabulary = None if described is None else read_vocabulary(described)
    domains = {**domains_of(rows), **(vocabulary.domains if vocabulary else {})}
    directory = data_dir / "routing"
    console = Console(stderr=True)
    second = None
    with Progress(console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = progress.add_task(phase, total=total)
            progress.update(tasks[phase], completed=done)

        train_first_stage(rows, directory, vocabulary=vocabulary, seed=seed, progress=show)
        if second_stage:
            from routing_engine.engine.second_stage import train_second_stage

            second = train_second_stage(
                rows, directory / SECOND_STAGE_FILE, seed=seed, progress=show, domains=domains
            )
    held = [row for row in rows if row.split != "train"]
    report = evaluate(held or rows, directory)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "directory": str(directory),
                    "rows": len(rows),
                    "held_out_rows": len(held),
                    "accuracy": report.accuracy,
                    "ece": report.ece,
                    "second_stage": None if second is None else second.evaluation,
                }
            )
        )
        return
    _show_accuracy(
        report.accuracy,
        None if second is None else second.evaluation,
        title="held-out accuracy" if held else "accuracy on what was learned",
    )
    typer.echo(f"{len(rows)} prompts, {len(held)} of them held out; artefacts are in {directory}")


@engine_app.command("eval")
def evaluate_command(
    data: DataFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    split: Annotated[str, typer.Option(help="Which rows: test, val, train or all.")] = "test",
    as_json: AsJson = False,
) -> None:
    """Evaluate the artefacts on labelled prompts: accuracy by language and expert, calibration, stability."""
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from routing_engine.training.dataset import packaged_prompts, read_prompts
    from routing_engine.training.evaluate import evaluate

    if split not in {"test", "val", "train", "all"}:
        raise typer.BadParameter("must be test, val, train or all", param_hint="--split")
    rows = _rows_of(read_prompts(data or packaged_prompts()), split)
    if not rows:
        typer.echo(f"error: no row has the split {split!r}", err=True)
        raise typer.Exit(1)
    report = evaluate(
        rows,
        data_dir / "routing",
        progress=lambda each: track(
            each, "evaluating", console=Console(stderr=True), transient=True
        ),
    )
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "rows": report.rows,
                    "accuracy": report.accuracy,
                    "by_expert": report.by_expert,
                    "confusion": report.confusion,
                    "ece": report.ece,
                    "flip_surface": report.flip_surface,
                },
                ensure_ascii=False,
            )
        )
        return
    _show_accuracy(report.accuracy, None, title=f"accuracy, split {split}")
    table = Table(title="new callers (blend) by expert")
    table.add_column("expert")
    table.add_column("accuracy", justify="right")
    for name, value in report.by_expert.items():
        table.add_row(name, f"{value:.1%}")
    Console().print(table)
    for label, routed, count in report.confusion:
        typer.echo(f"{count} × {label} went to {routed}")
    typer.echo(
        f"{report.rows} prompts; calibration error {report.ece:.3f};"
        f" {report.flip_surface:.1%} change expert with case, spaces or punctuation"
    )


@engine_app.command("explain")
def explain(
    text: Annotated[str, typer.Argument(help="A prompt.")],
    data_dir: DataDir = DEFAULT_DATA_DIR,
    requests: Annotated[
        int, typer.Option(min=0, help="How many requests the caller has made before.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Show how gate, fallback table and blend score a prompt, without a dictionary or load."""
    from rich.console import Console
    from rich.table import Table

    from routing_engine.artefacts import GATE_FILE, TABLE_FILE
    from routing_engine.client import Router
    from routing_engine.errors import ArtefactError
    from routing_engine.gate import load_gate
    from routing_engine.table import load_table
    from routing_engine.types import Expert, ExpertId, RouteRequest

    directory = data_dir / "routing"
    if not (directory / GATE_FILE).exists() and not (directory / TABLE_FILE).exists():
        raise ArtefactError(str(directory), "has no artefacts; run `expertgate engine train`")
    has_gate = (directory / GATE_FILE).exists()
    facts = load_gate(directory / GATE_FILE).facts if has_gate else load_table(directory).facts
    experts = [Expert(ExpertId(label), n, "", label, ()) for n, label in enumerate(facts.labels)]
    router = Router.load(directory, experts, experts[0].expert_id)
    request = RouteRequest(text, caller_request_count=requests)
    gate, table = router.scores(request)
    decision = router.decide(request)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "gate": gate,
                    "table": table,
                    "expert": decision.expert_id,
                    "source": decision.source.value,
                    "score": decision.score,
                    "reason": decision.reason,
                },
                ensure_ascii=False,
            )
        )
        return
    shown = Table(title=f"{decision.expert_id}: {decision.reason}")
    for column in ("expert", "gate", "table"):
        shown.add_column(column, justify="left" if column == "expert" else "right")
    for name in sorted(
        facts.labels, key=lambda each: -(gate or table or {}).get(ExpertId(each), 0.0)
    ):
        row = [scores.get(ExpertId(name)) if scores else None for scores in (gate, table)]
        shown.add_row(name, *("" if value is None else f"{value:.3f}" for value in row))
    Console().print(shown)


@engine_app.command("serve")
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8090,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    model_dir: Annotated[
        Path | None, typer.Option(help="A transformers directory instead of the demo's model.")
    ] = None,
) -> None:
    """Serve the engine: experts over HTTP and the second routing stage."""
    _one_thread_per_call()
    from routing_engine.engine.server import run

    run(
        host=host,
        port=port,
        data_dir=data_dir,
        model_dir=model_dir,
        announce=lambda line: typer.echo(line, err=True),
    )


def _one_thread_per_call() -> None:
    """Keep OpenMP from splitting small work over cores; must run before torch loads.

    Its threads spin at every barrier: beside another busy process a text took 1,170 ms to encode with two threads
    and 70 ms with one. The engine gives torch its threads explicitly (`EXPERTGATE_ENGINE_THREADS`).
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def _rows_of(rows: "list[LabelledPrompt]", split: str) -> "list[LabelledPrompt]":
    return rows if split == "all" else [row for row in rows if row.split == split]


def _show_accuracy(
    accuracy: dict[str, float], second: dict[str, float] | None, *, title: str
) -> None:
    from rich.console import Console
    from rich.table import Table

    languages = sorted({name.split("_", 1)[1] for name in accuracy if "_" in name})
    table = Table(title=title)
    table.add_column("scorer")
    for column in ("all", *languages):
        table.add_column(column, justify="right")
    for scorer, meaning in (
        ("gate", "gate (first stage)"),
        ("table", "fallback table, 128 KiB"),
        ("blend", "new callers (blend)"),
    ):
        if scorer in accuracy:
            row = [accuracy[scorer], *(accuracy.get(f"{scorer}_{each}", 0.0) for each in languages)]
            table.add_row(meaning, *(f"{value:.1%}" for value in row))
    if second is not None:
        row = [second["accuracy"], *(second.get(f"accuracy_{each}", 0.0) for each in languages)]
        table.add_row("second stage (engine)", *(f"{value:.1%}" for value in row))
    Console().print(table)
