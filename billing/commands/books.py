"""`expertgate db` and `expertgate reconcile`: the schema of the books, and proof that they agree."""

from pathlib import Path
from typing import Annotated

import typer

from billing.commands.shared import (
    DEFAULT_DATA_DIR,
    AsJson,
    DataDir,
    Store,
    open_books,
    print_json,
    print_rows,
    progress_bar,
    store_url,
)

db_app = typer.Typer(
    name="db",
    help="The schema of the billing store: bring it up to date, check it.",
    no_args_is_help=True,
)


@db_app.command("upgrade")
def upgrade(
    data_dir: DataDir = DEFAULT_DATA_DIR, store: Store = None, as_json: AsJson = False
) -> None:
    """Create the books, or bring their schema up to date."""
    from billing.store import migration
    from billing.store.schema import HEAD_REVISION

    with progress_bar() as progress:
        progress.add_task("upgrading", total=None)
        migration.upgrade(store_url(store, data_dir))
    if as_json:
        print_json({"revision": HEAD_REVISION})
    else:
        typer.echo(f"the books are at schema revision {HEAD_REVISION}")


@db_app.command("check")
def check(
    data_dir: DataDir = DEFAULT_DATA_DIR, store: Store = None, as_json: AsJson = False
) -> None:
    """Check that the schema is exactly this version's; exit 1 when it isn't."""
    from billing.store import migration

    found = migration.check(store_url(store, data_dir))
    if as_json:
        print_json({"ok": not found, "differences": found})
    elif found:
        for line in found:
            typer.echo(line)
    else:
        typer.echo("the schema is up to date")
    if found:
        raise typer.Exit(1)


def reconcile(
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    as_json: AsJson = False,
    retry_quarantined: Annotated[
        bool,
        typer.Option(
            "--retry-quarantined",
            help="First book quarantined usage whose price or customer is known now.",
        ),
    ] = False,
) -> None:
    """Recompute the books from the raw events and compare; exit 1 at any difference."""
    from billing.reconcile import reconcile as compare
    from billing.store.checks import read_book_sums
    from billing.store.ledger import SqlLedgerStore

    with open_books(store, Path(data_dir)) as database, progress_bar() as progress:
        progress.add_task("reconciling", total=None)
        booked = SqlLedgerStore(database).retry_quarantined() if retry_quarantined else ()
        result = compare(read_book_sums(database))
    findings = [
        {"check": item.check, "subject": item.subject, "detail": item.detail}
        for item in result.findings
    ]
    if as_json:
        print_json(
            {
                "ok": result.ok,
                "difference_micropoints": result.difference_micropoints,
                "difference_minor_units": result.difference_minor_units,
                "events": result.event_count,
                "invoices": result.invoice_count,
                "booked_from_quarantine": list(booked),
                "findings": findings,
            }
        )
    elif result.ok:
        typer.echo(
            f"the books agree: {result.event_count} events, {result.invoice_count} invoices,"
            " difference 0 micro-points, 0 minor units"
        )
    else:
        print_rows(findings, title="differences", as_json=False)
    if not result.ok:
        raise typer.Exit(1)
