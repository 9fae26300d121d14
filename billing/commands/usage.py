"""`expertgate usage`: what was used, event by event."""

import json
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from billing.commands.shared import (
    DEFAULT_DATA_DIR,
    AsJson,
    DataDir,
    Row,
    Store,
    instant_of,
    open_books,
    print_rows,
    progress_bar,
)
from billing.types import CustomerId, RatedUsage

if TYPE_CHECKING:
    from billing.store.ledger import SqlLedgerStore

LISTED_MAX = 10_000
"""Bound on events listed in one table; `export` has none."""

usage_app = typer.Typer(
    name="usage", help="Recorded usage: list it, export it.", no_args_is_help=True
)

CustomerOption = Annotated[str | None, typer.Option("--customer", help="Only this customer.")]
Since = Annotated[str | None, typer.Option("--since", help="From this instant on (ISO 8601).")]
Until = Annotated[str | None, typer.Option("--until", help="Before this instant (ISO 8601).")]


class ExportFormat(StrEnum):
    """How usage is exported."""

    CSV = "csv"
    JSONL = "jsonl"


@usage_app.command("list")
def list_usage(
    customer: CustomerOption = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=LISTED_MAX, help="At most.")] = 50,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List usage events, oldest first."""
    from billing.store.ledger import SqlLedgerStore

    with open_books(store, data_dir) as database:
        ledger = SqlLedgerStore(database)
        found = islice(_selected(ledger, customer, since, until), limit)
        rows = [_short_row(item) for item in found]
    print_rows(rows, title="usage", as_json=as_json)


@usage_app.command("export")
def export_usage(
    customer: CustomerOption = None,
    since: Since = None,
    until: Until = None,
    form: Annotated[
        ExportFormat, typer.Option("--format", help="One event per line.")
    ] = ExportFormat.CSV,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write.", dir_okay=False)
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
) -> None:
    """Write usage events with their price as CSV or JSON lines; integers only, instants in UTC."""
    import sys

    from billing.store.ledger import SqlLedgerStore

    with open_books(store, data_dir) as database, progress_bar() as progress:
        task = progress.add_task("exporting", total=None)
        events = progress.track(
            _selected(SqlLedgerStore(database), customer, since, until), task_id=task
        )
        if output is None:
            _write(sys.stdout, events, form)
            return
        beside = output.with_name(f".{output.name}.part")
        with beside.open("w", encoding="utf-8", newline="") as file:
            count = _write(file, events, form)
        beside.replace(output)
    typer.echo(f"{count} events written to {output}", err=True)


def _selected(
    ledger: "SqlLedgerStore", customer: str | None, since: str | None, until: str | None
) -> Iterator[RatedUsage]:
    return ledger.usage(
        customer_id=None if customer is None else CustomerId(customer),
        start=None if since is None else instant_of(since, "--since"),
        end=None if until is None else instant_of(until, "--until"),
    )


def _write(file: IO[str], events: Iterable[RatedUsage], form: ExportFormat) -> int:
    import csv

    count = 0
    writer = None
    for item in events:
        count += 1
        row = _full_row(item)
        if form is ExportFormat.JSONL:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            continue
        if writer is None:
            writer = csv.DictWriter(file, fieldnames=list(row))
            writer.writeheader()
        writer.writerow(row)
    return count


def _short_row(item: RatedUsage) -> Row:
    intent, outcome = item.event.intent, item.event.outcome
    return {
        "occurred_at": intent.occurred_at,
        "customer_id": intent.customer_id,
        "expert_id": intent.expert_id,
        "status": outcome.status.value,
        "input_tokens": outcome.usage.input_tokens,
        "output_tokens": outcome.usage.output_tokens,
        "micropoints": item.micropoints,
        "event_id": intent.event_id,
    }


def _full_row(item: RatedUsage) -> dict[str, object]:
    intent, outcome = item.event.intent, item.event.outcome
    return {
        "event_id": intent.event_id,
        "request_id": intent.request_id,
        "customer_id": intent.customer_id,
        "project_id": intent.project_id,
        "key_id": intent.key_id,
        "expert_id": intent.expert_id,
        "replica_id": intent.replica_id,
        "occurred_at": intent.occurred_at.isoformat(),
        "ended_at": outcome.ended_at.isoformat(),
        "operation": intent.operation,
        "route_source": intent.route_source,
        "streamed": int(intent.streamed),
        "status": outcome.status.value,
        "usage_source": outcome.usage_source.value,
        "billed_calls": outcome.billed_calls,
        "input_tokens": outcome.usage.input_tokens,
        "output_tokens": outcome.usage.output_tokens,
        "cached_input_tokens": outcome.usage.cached_input_tokens,
        "reasoning_tokens": outcome.usage.reasoning_tokens,
        "price_version": intent.price_version,
        "catalog_version": intent.catalog_version,
        "dictionary_version": intent.dictionary_version,
        "micropoints": item.micropoints,
    }
