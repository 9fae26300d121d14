"""What the billing commands share: where the books are, instants as typed, and printing.

Owns options and output only. Results are tables for people and JSON for machines (`--json`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from billing.store.engine import Database

DEFAULT_DATA_DIR = Path("expertgate-data")

DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir", envvar="EXPERTGATE_DATA_DIR", help="Data directory.", file_okay=False
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="EXPERTGATE_STORE",
        help="Billing store: sqlite:///path or postgresql://…  [default: books.sqlite in the data directory]",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Actor = Annotated[str, typer.Option("--actor", envvar="USER", help="Name kept in the audit log.")]

DEFAULT_ACTOR = "command line"

Row = Mapping[str, object]


def store_url(store: str | None, data_dir: Path) -> str:
    """Return the URL of the books that the options name."""
    return store or f"sqlite:///{data_dir.absolute() / 'books.sqlite'}"


@contextmanager
def open_books(store: str | None, data_dir: Path) -> Iterator["Database"]:
    """Yield the books that the options name.

    Raises:
        SchemaOutdated: they need `expertgate db upgrade`.
        StoreUnavailable: they can't be reached, or there are none at that place.
    """
    from billing.errors import StoreUnavailable
    from billing.store.engine import open_database, require_current

    books = data_dir.absolute() / "books.sqlite"
    if store is None and not books.exists():
        # Opening would make an empty file, and its answer would be "no invoices".
        raise StoreUnavailable(
            f"there are no books at {books}; name their place with --data-dir or EXPERTGATE_DATA_DIR,"
            " or make them with `expertgate db upgrade --data-dir …`"
        )
    with open_database(store_url(store, data_dir)) as database:
        require_current(database)
        yield database


def now_utc() -> datetime:
    """Return the current instant."""
    return datetime.now(UTC)


def instant_of(text: str, option: str) -> datetime:
    """Return the instant that was typed: `now`, or ISO 8601; without an offset it is UTC.

    Raises:
        BadParameter: it is neither.
    """
    if text == "now":
        return now_utc()
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither 'now' nor like 2026-12-01T00:00:00+00:00", param_hint=option
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def print_rows(rows: Sequence[Row], *, title: str, as_json: bool) -> None:
    """Print rows as a JSON array, or as a table with the first row's columns."""
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo(f"no {title}")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for index, name in enumerate(rows[0]):
        is_number = all(isinstance(row[name], int) for row in rows)
        # Folded, never cut: the next command needs the whole id, which stands first.
        table.add_column(
            name.replace("_", " "),
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=index == 0,
        )
    for row in rows:
        # Text is printed as it is; a plain string would be read as markup.
        table.add_row(*(Text(_text(value)) for value in row.values()))
    Console().print(table)


def print_row(row: Row, *, as_json: bool) -> None:
    """Print one record as a JSON object, or as one `name: value` per line."""
    if as_json:
        print_json(row)
        return
    for name, value in row.items():
        typer.echo(f"{name.replace('_', ' ')}: {_text(value)}")


def print_json(value: object) -> None:
    """Print a value as JSON; instants in ISO 8601."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2, default=str))


@contextmanager
def progress_bar() -> Iterator["Progress"]:
    """Yield a progress display on standard error, that disappears when done and is silent in pipes."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return str(value)
