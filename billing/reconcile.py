"""Proof that the books agree with themselves, recomputed apart from the code that wrote them.

Owns what must hold and its own arithmetic (exact fractions; neither `billing.money` nor
`billing.invoicing`). Pure: the sums come from `billing.store.checks`.

Holds when: every event has a line; every line costs what its event costs at its price version; every
transfer sums to zero and the balances equal the rows behind them; per invoice and expert the invoice's
micro-points equal its usage lines; every amount follows from its points; the total is the sum of the lines;
numbers have no gap; nothing is quarantined.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import iso4217


@dataclass(frozen=True, slots=True)
class ExpertSum:
    """Micro-points of one expert on one invoice, and how many of them are covered."""

    micropoints: int
    covered_micropoints: int


@dataclass(frozen=True, slots=True)
class LineSums:
    """What one invoice line says."""

    kind: str
    amount_minor_units: int
    micropoints: int
    covered_micropoints: int


@dataclass(frozen=True, slots=True)
class InvoiceSums:
    """What one invoice says, and on what terms."""

    invoice_id: str
    number: str
    customer_id: str
    is_void: bool
    currency: str
    total_minor_units: int
    point_price_micros: int
    surcharge_permille: int
    drawn_micropoints: int
    lines: tuple[LineSums, ...]


@dataclass(frozen=True, slots=True)
class BookSums:
    """Sums over the raw tables, from one snapshot."""

    event_count: int
    events_without_lines: tuple[str, ...]
    unbalanced_transfers: tuple[str, ...]
    balances: Mapping[tuple[str, str], int]
    rerated: Mapping[str, int]
    rated: Mapping[str, int]
    open_by_customer: Mapping[str, int]
    marked: Mapping[tuple[str, str], ExpertSum]
    invoiced: Mapping[tuple[str, str], ExpertSum]
    invoices: tuple[InvoiceSums, ...]
    quarantined: Mapping[str, int]
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not hold: what, where, and by how much in which unit."""

    check: str
    subject: str
    detail: str
    difference: int = 0
    unit: str = "micropoints"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The result; differences are sums of absolute values, so that two mistakes can't cancel."""

    ok: bool
    difference_micropoints: int
    difference_minor_units: int
    findings: tuple[Finding, ...]
    event_count: int
    invoice_count: int


def reconcile(sums: BookSums) -> Reconciliation:
    """Return whether the books agree with themselves, and every place where they don't."""
    findings = (
        *_events(sums),
        *_rating(sums),
        *_ledger(sums),
        *_usage_on_invoices(sums),
        *_amounts(sums),
        *_numbers(sums),
    )
    points = sum(abs(item.difference) for item in findings if item.unit == "micropoints")
    money = sum(abs(item.difference) for item in findings if item.unit == "minor_units")
    return Reconciliation(
        not findings, points, money, findings, sums.event_count, len(sums.invoices)
    )


def _events(sums: BookSums) -> Iterator[Finding]:
    for event_id in sums.events_without_lines:
        yield Finding("every event has a line", event_id, "the event has no line")
    for reason, count in sums.quarantined.items():
        yield Finding("nothing is quarantined", reason, f"{count} events are not in the books")


def _rating(sums: BookSums) -> Iterator[Finding]:
    for expert_id in sorted(sums.rerated.keys() | sums.rated.keys()):
        wanted, found = sums.rerated.get(expert_id, 0), sums.rated.get(expert_id, 0)
        if wanted != found:
            detail = f"events at their price versions cost {wanted}, the lines say {found}"
            yield Finding("lines are rated right", expert_id, detail, found - wanted)


def _ledger(sums: BookSums) -> Iterator[Finding]:
    for transfer_id in sums.unbalanced_transfers:
        yield Finding("transfers sum to zero", transfer_id, "the transfer is not balanced")
    wanted: dict[tuple[str, str], int] = {}
    for expert_id, micropoints in sums.rated.items():
        wanted[f"expert/{expert_id}", "micropoints"] = -micropoints
    for customer_id, micropoints in sums.open_by_customer.items():
        wanted[f"accrued/{customer_id}", "micropoints"] = micropoints
    for invoice in sums.invoices:
        if not invoice.is_void:
            key = (f"receivable/{invoice.customer_id}", invoice.currency)
            wanted[key] = wanted.get(key, 0) + invoice.total_minor_units
    checked = ("expert/", "accrued/", "receivable/")
    present = {key for key in sums.balances if key[0].startswith(checked)}
    for key in sorted(wanted.keys() | present):
        right, found = wanted.get(key, 0), sums.balances.get(key, 0)
        if right != found:
            unit = "micropoints" if key[1] == "micropoints" else "minor_units"
            detail = f"the rows behind the account sum to {right}, its balance is {found}"
            yield Finding("balances equal their rows", key[0], detail, found - right, unit)


def _usage_on_invoices(sums: BookSums) -> Iterator[Finding]:
    by_id = {invoice.invoice_id: invoice for invoice in sums.invoices}
    nothing = ExpertSum(0, 0)
    for invoice_id, expert_id in sorted(sums.marked.keys() | sums.invoiced.keys()):
        invoice = by_id.get(invoice_id)
        invoiced = sums.invoiced.get((invoice_id, expert_id), nothing)
        marked = sums.marked.get((invoice_id, expert_id), nothing)
        if invoice is not None and invoice.is_void:
            # A void invoice keeps its lines as a record; its usage is open again.
            invoiced = nothing
        number = invoice.number if invoice else invoice_id
        for name, right, found in (
            ("micro-points", marked.micropoints, invoiced.micropoints),
            ("covered micro-points", marked.covered_micropoints, invoiced.covered_micropoints),
        ):
            if right != found:
                yield Finding(
                    "invoices equal their usage",
                    f"{number}/{expert_id}",
                    f"usage lines sum to {right} {name}, the invoice says {found}",
                    found - right,
                )
    for invoice in sums.invoices:
        covered = sum(line.covered_micropoints for line in invoice.lines)
        if covered != invoice.drawn_micropoints:
            yield Finding(
                "cover equals draws",
                invoice.number,
                f"{covered} micro-points are covered, {invoice.drawn_micropoints} were drawn",
                covered - invoice.drawn_micropoints,
            )


def _amounts(sums: BookSums) -> Iterator[Finding]:
    for invoice in sums.invoices:
        usage = [line for line in invoice.lines if line.kind == "usage"]
        for index, line in enumerate(usage):
            right = _priced(line.micropoints - line.covered_micropoints, invoice)
            if right != line.amount_minor_units:
                yield _wrong_amount(
                    f"{invoice.number} usage line {index + 1}", right, line.amount_minor_units
                )
        subtotal = sum(line.amount_minor_units for line in usage)
        right = _nearest(Fraction(subtotal * invoice.surcharge_permille, 1000))
        found = sum(
            line.amount_minor_units for line in invoice.lines if line.kind == "sla_surcharge"
        )
        if right != found:
            yield _wrong_amount(f"{invoice.number} surcharge", right, found)
        total = sum(line.amount_minor_units for line in invoice.lines)
        if total != invoice.total_minor_units:
            yield _wrong_amount(f"{invoice.number} total", total, invoice.total_minor_units)


def _numbers(sums: BookSums) -> Iterator[Finding]:
    used: dict[str, set[int]] = {}
    for invoice in sums.invoices:
        series, _, digits = invoice.number.rpartition("-")
        used.setdefault(series, set()).add(int(digits))
    for series in sorted(used.keys() | sums.counters.keys()):
        wanted = set(range(1, sums.counters.get(series, 0) + 1))
        for number in sorted(wanted ^ used.get(series, set()))[:100]:
            yield Finding("numbers have no gap", series, f"number {number} is missing or uncounted")


def _priced(micropoints: int, invoice: InvoiceSums) -> int:
    digits = int(iso4217.Currency(invoice.currency).exponent or 0)
    points = Fraction(micropoints, 1_000_000)
    price = Fraction(invoice.point_price_micros, 1_000_000)
    return _nearest(points * price * 10**digits)


def _nearest(value: Fraction) -> int:
    # Half away from zero, by its definition: floor of the magnitude plus a half.
    magnitude = (abs(value) + Fraction(1, 2)).__floor__()
    return magnitude if value >= 0 else -magnitude


def _wrong_amount(subject: str, right: int, found: int) -> Finding:
    detail = f"recomputed {right}, found {found}"
    return Finding("amounts follow from points", subject, detail, found - right, "minor_units")
