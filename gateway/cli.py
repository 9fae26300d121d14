"""The gateway's own commands: `serve`, `demo`, `config` and `catalog`. Heavy imports stay inside them."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings

config_app = typer.Typer(name="config", help="Check configuration files.", no_args_is_help=True)
catalog_app = typer.Typer(
    name="catalog",
    help="Experts, replicas, prices, SLA tiers and packages, as a file declares them.",
    no_args_is_help=True,
)

ConfigFile = Annotated[Path, typer.Argument(help="Configuration file (TOML).", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
DEFAULT_CONFIG = Path("expertgate.toml")


def serve(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="Configuration file (TOML).")
    ] = DEFAULT_CONFIG,
    host: Annotated[
        str | None, typer.Option(help="Listen here instead of host in the section server.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Listen here instead of port in the section server.")
    ] = None,
) -> None:
    """Serve the gateway until Ctrl-C."""
    from gateway.errors import ConfigError
    from gateway.logs import configure_logging
    from gateway.server import run

    settings = _load(config)
    overrides = {
        name: value for name, value in (("host", host), ("port", port)) if value is not None
    }
    if overrides:
        server = settings.server.model_copy(update=overrides)
        settings = settings.model_copy(update={"server": server})
    configure_logging()
    try:
        run(settings, announce=lambda url: typer.echo(f"listening on {url}", err=True))
    except OSError as exc:
        place = f"{settings.server.host}:{settings.server.port}"
        raise ConfigError("server", f"can't listen on {place}: {exc.strerror or exc}") from exc


def demo(
    once: Annotated[
        bool, typer.Option("--once", help="Stop after the invoice instead of serving on.")
    ] = False,
    data_dir: Annotated[
        Path,
        typer.Option(
            "--data-dir", envvar="EXPERTGATE_DATA_DIR", help="Where the demo keeps its data."
        ),
    ] = Path("demo-data"),
    port: Annotated[
        int, typer.Option(help="Gateway port; a free one is taken when it is in use.")
    ] = 8080,
) -> None:
    """Run the whole product on this machine: real prompts through, an invoice out, then keep serving."""
    from gateway.demo.run import run_demo

    raise typer.Exit(run_demo(data_dir.absolute(), port=port, is_once=once))


@config_app.command("check")
def check_config(file: ConfigFile, as_json: AsJson = False) -> None:
    """Say whether FILE is right, or what is wrong and where."""
    settings = _load(file)
    catalog = settings.catalog_document.to_catalog(os.environ)
    facts = {
        "file": str(file),
        "listens_on": f"{settings.server.host}:{settings.server.port}",
        "data_dir": str(settings.data_dir),
        "experts": [expert.expert_id for expert in catalog.experts],
        "default_expert": catalog.default_expert,
        "sla_tiers": [tier.sla_tier_id for tier in catalog.sla_tiers],
        "packages": [package.package_id for package in catalog.packages],
        "aliases": dict(settings.aliases),
    }
    if as_json:
        typer.echo(json.dumps({"ok": True, **facts}, ensure_ascii=False))
        return
    typer.echo(f"{file}: ok")
    for name, value in facts.items():
        if name != "file" and value:
            shown = ", ".join(value) if isinstance(value, list | dict) else value
            typer.echo(f"  {name.replace('_', ' ')}: {shown}")


@catalog_app.command("apply")
def apply(
    file: ConfigFile,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put the catalog in FILE in force; changed rates become new price versions from now on."""
    from billing.catalog import apply_catalog, diff
    from billing.commands.shared import open_books
    from billing.store.accounts import SqlAccountsStore
    from gateway.app import utc_now

    settings = _load(file)
    catalog = settings.catalog_document.to_catalog(os.environ)
    with open_books(settings.store or None, settings.data_dir) as database:
        store = SqlAccountsStore(database)
        changes = (
            diff(store.catalog_state(), catalog)
            if dry_run
            else apply_catalog(store, catalog, utc_now())
        )
    rows = [{"what": c.what, "before": c.before, "after": c.after} for c in changes]
    if as_json:
        typer.echo(json.dumps({"applied": not dry_run, "changes": rows}, ensure_ascii=False))
        return
    if not rows:
        typer.echo("nothing changes: this catalog is in force")
    for row in rows:
        verb = "+" if row["before"] is None else "-" if row["after"] is None else "~"
        typer.echo(f"{verb} {row['what']}")
    if rows:
        typer.echo(f"{len(rows)} changes {'would be made' if dry_run else 'made'}")


@catalog_app.command("diff")
def show_diff(file: ConfigFile, as_json: AsJson = False) -> None:
    """Show what applying FILE would change."""
    apply(file, dry_run=True, as_json=as_json)


@catalog_app.command("show")
def show(file: ConfigFile, as_json: AsJson = False) -> None:
    """Show the catalog in force in the books that FILE names."""
    from rich.console import Console
    from rich.table import Table

    from billing.commands.shared import open_books
    from billing.store.accounts import SqlAccountsStore

    settings = _load(file)
    with open_books(settings.store or None, settings.data_dir) as database:
        state = SqlAccountsStore(database).catalog_state()
    document = json.loads(state.document or "{}")
    if as_json:
        typer.echo(json.dumps({"version": state.version, "catalog": document}, ensure_ascii=False))
        return
    versions = {card.expert_id: card for card in state.newest_cards}
    table = Table(title=f"catalog version {state.version}")
    for name in (
        "expert",
        "number",
        "domain",
        "per call",
        "input 1k",
        "output 1k",
        "price version",
    ):
        table.add_column(name, overflow="fold")
    for expert in document.get("experts", ()):
        card = versions[expert["id"]]
        table.add_row(
            expert["id"],
            str(expert["number"]),
            expert["domain"],
            str(card.rates.per_call),
            str(card.rates.input_1k),
            str(card.rates.output_1k),
            str(card.version),
        )
    Console().print(table)


def _load(file: Path) -> "GatewaySettings":
    from gateway.settings import load_settings

    return load_settings(file)
