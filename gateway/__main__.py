"""The `expertgate` command: assembles the subcommands of every package. Importing it loads nothing heavy."""

import sys
from typing import Annotated, NoReturn

import typer

from billing.cli import APPS as BILLING_APPS
from billing.cli import reconcile
from billing.errors import BillingError
from gateway.cli import catalog_app, config_app, demo, serve
from gateway.errors import GatewayError
from routing_engine.cli import engine_app
from routing_engine.errors import RoutingError
from term_db.cli import terms_app
from term_db.errors import TermDbError

_OURS = (GatewayError, BillingError, RoutingError, TermDbError)


def build_cli() -> typer.Typer:
    """Return the whole command line."""
    app = typer.Typer(
        name="expertgate",
        help="An OpenAI-compatible gateway for experts: one vocabulary, the right expert, an exact invoice.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback()(_root)
    app.command("demo")(demo)
    app.command("serve")(serve)
    app.add_typer(config_app)
    app.add_typer(catalog_app)
    app.add_typer(engine_app)
    app.add_typer(terms_app)
    for billing_app in BILLING_APPS:
        app.add_typer(billing_app)
    app.command("reconcile")(reconcile)
    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"expertgate {version('expertgate')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    del version


def main() -> NoReturn:
    """Run the command line: our errors become one line on stderr and exit code 1."""
    try:
        build_cli()()
    except _OURS as exc:
        typer.echo(f"error: {exc}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


if __name__ == "__main__":
    main()
