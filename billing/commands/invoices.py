"""`expertgate invoices`: preview, finalise, void, list, show, export."""

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from billing.commands.shared import (
    DEFAULT_DATA_DIR,
    AsJson,
    DataDir,
    Row,
    Store,
    instant_of,
    now_utc,
    open_books,
    print_json,
    print_rows,
    progress_bar,
)
from billing.types import CustomerId, Invoice, InvoiceLine

if TYPE_CHECKING:
    from billing.store.engine import Database

invoices_app = typer.Typer(
    name="invoices", help="Close the month: preview, finalise, export.", no_args_is_help=True
)

Period = Annotated[str, typer.Option("--period", help="The month to close, e.g. 2026-12.")]
CustomerOption = Annotated[
    str | None, typer.Option("--customer", help="Only this customer. [default: all]")
]
Cutoff = Annotated[
    str | None,
    typer.Option(
        "--cutoff",
        help="Close only what was used before this instant: 'now' or ISO 8601."
        " The rest of the month goes on a later invoice.",
    ),
]
Reference = Annotated[
    str, typer.Argument(help="Invoice number, e.g. EG-2026-000001.", show_default=False)
]


class DocumentFormat(StrEnum):
    """What an invoice is exported as."""

    PDF = "pdf"
    JSON = "json"


@invoices_app.command("preview")
def preview_invoices(
    period: Period,
    customer: CustomerOption = None,
    cutoff: Cutoff = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show the drafts that finalising would turn into invoices; nothing is written."""
    from billing.closing import preview
    from billing.store.invoices import SqlBooksStore

    now = now_utc()
    until = now if cutoff == "now" else None
    if cutoff is not None and until is None:
        until = instant_of(cutoff, "--cutoff")
    with open_books(store, data_dir) as database, progress_bar() as progress:
        books = SqlBooksStore(database)
        customers = progress.track(_customers(database, customer), description="previewing")
        drafts = [preview(books, item, period, now, cutoff=until) for item in customers]
    _print_invoices(drafts, as_json=as_json, is_detailed=customer is not None)


@invoices_app.command("finalise")
def finalise_invoices(
    period: Period,
    customer: CustomerOption = None,
    cutoff: Cutoff = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Close a month: number the invoices and freeze them. Doing it again returns the same invoices."""
    from billing.closing import finalise
    from billing.errors import NothingToInvoice
    from billing.store.invoices import SqlBooksStore

    now = now_utc()
    until = now if cutoff == "now" else None
    if cutoff is not None and until is None:
        until = instant_of(cutoff, "--cutoff")
    finalised, empty = [], []
    with open_books(store, data_dir) as database, progress_bar() as progress:
        books = SqlBooksStore(database)
        for item in progress.track(_customers(database, customer), description="finalising"):
            try:
                finalised.append(finalise(books, item, period, now, cutoff=until))
            except NothingToInvoice:
                if customer is not None:
                    raise
                empty.append(item)
    _print_invoices(finalised, as_json=as_json, is_detailed=customer is not None)
    if empty and not as_json:
        typer.echo(f"{len(empty)} customers have nothing to invoice: {', '.join(empty)}")


@invoices_app.command("void")
def void_invoice(
    reference: Reference,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Void an invoice: its usage is open again, its number stays taken."""
    from billing.closing import void
    from billing.store.invoices import SqlBooksStore

    with open_books(store, data_dir) as database:
        invoice = void(SqlBooksStore(database), reference, now_utc())
    _print_invoices([invoice], as_json=as_json, is_detailed=False)


@invoices_app.command("list")
def list_invoices(
    customer: CustomerOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List finalised and void invoices by number."""
    from billing.store.invoices import SqlBooksStore

    with open_books(store, data_dir) as database:
        found = SqlBooksStore(database).invoices(None if customer is None else CustomerId(customer))
    rows = [_invoice_row(invoice) for invoice in found]
    print_rows(rows, title="invoices", as_json=as_json)


@invoices_app.command("show")
def show_invoice(
    reference: Reference,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show an invoice with its lines."""
    from billing.store.invoices import SqlBooksStore

    with open_books(store, data_dir) as database:
        invoice = SqlBooksStore(database).invoice(reference)
    if as_json:
        print_json(_document(invoice))
    else:
        _print_invoices([invoice], as_json=False, is_detailed=True)


@invoices_app.command("export")
def export_invoice(
    reference: Reference,
    form: Annotated[
        DocumentFormat, typer.Option("--format", help="For people or for machines.")
    ] = DocumentFormat.PDF,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File. [default: invoices/NUMBER in the data directory]"
        ),
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Write an invoice as PDF or JSON; the same invoice gives the same bytes."""
    from billing.documents.json_document import invoice_json
    from billing.documents.pdf import invoice_pdf
    from billing.store.invoices import SqlBooksStore

    with open_books(store, data_dir) as database:
        invoice = SqlBooksStore(database).invoice(reference)
    if form is DocumentFormat.PDF:
        _warn_of_missing_font(invoice)
    content = invoice_pdf(invoice) if form is DocumentFormat.PDF else invoice_json(invoice)
    path = output or data_dir / "invoices" / f"{invoice.number}.{form.value}"
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    beside.write_bytes(content)
    beside.replace(path)
    if as_json:
        print_json({"path": str(path), "size_bytes": len(content)})
    else:
        typer.echo(str(path))


def _customers(database: "Database", customer: str | None) -> list[CustomerId]:
    from billing.store.accounts import SqlAccountsStore

    if customer is not None:
        return [CustomerId(customer)]
    return [item.customer_id for item in SqlAccountsStore(database).customers()]


def _print_invoices(invoices: Sequence[Invoice], *, as_json: bool, is_detailed: bool) -> None:
    if as_json:
        print_json([_document(invoice) for invoice in invoices])
        return
    print_rows([_invoice_row(invoice) for invoice in invoices], title="invoices", as_json=False)
    if is_detailed:
        for invoice in invoices:
            rows = [_line_row(line) for line in invoice.lines]
            print_rows(rows, title=f"lines of {invoice.number or 'the draft'}", as_json=False)


def _document(invoice: Invoice) -> object:
    from billing.documents.json_document import invoice_json

    return json.loads(invoice_json(invoice))


def _invoice_row(invoice: Invoice) -> Row:
    from billing.money import decimal_text

    return {
        "number": invoice.number or "draft",
        "customer_id": invoice.customer_id,
        "period": invoice.period.label,
        "covers_from": invoice.period.start,
        "covers_until": invoice.period.end,
        "status": invoice.status.value,
        "total": f"{decimal_text(invoice.total)} {invoice.total.currency}",
    }


def _line_row(line: InvoiceLine) -> Row:
    from billing.money import decimal_text

    late = line.service_period
    return {
        "kind": line.kind.value,
        "description": line.description,
        "service_period": late.label if late else None,
        "calls": line.calls,
        "micropoints": line.micropoints,
        "covered": line.covered_micropoints,
        "amount": decimal_text(line.amount),
    }


def _warn_of_missing_font(invoice: Invoice) -> None:
    from billing.documents.pdf import FONT_DIRECTORY_VARIABLE, has_chinese_font

    texts = (invoice.customer_name, *(line.description for line in invoice.lines))
    has_chinese = any(character >= "\u2e80" for text in texts for character in text)
    if has_chinese and not has_chinese_font():
        typer.echo(
            "warning: no Chinese font is installed, so Chinese names are not legible in the PDF;"
            f" install Noto Sans CJK or name a folder in {FONT_DIRECTORY_VARIABLE}",
            err=True,
        )
