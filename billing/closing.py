"""Closing the books of a period: preview, finalise, void.

Owns the order of events: what usage belongs to an invoice, which allowances and fees are still open for its
nominal month, when a number is drawn. Amounts are `billing.invoicing`'s, queries `billing.store`'s.

Usage belongs to the first invoice that is finalised after it was recorded: usage that arrives late goes on
the next invoice as lines of its own service period, with that period's allowance. A package fee and its
allowance count once per nominal month, however many invoices the month has.
"""

import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from billing.allowance import (
    NOTHING_COVERED,
    Allowance,
    Coverage,
    UsageItem,
    Window,
    after_draw,
    cover,
    cover_whole,
)
from billing.errors import InvalidInput, InvoiceImmutable, NothingToInvoice, PeriodNotOver
from billing.instants import to_micros
from billing.invoicing import FeeDue, UsageSum, draft_invoice
from billing.periods import month_of, period_from_label, zone_of
from billing.types import (
    BillingPeriod,
    Customer,
    CustomerId,
    Invoice,
    InvoiceId,
    InvoiceNumber,
    InvoiceStatus,
    MicroPoints,
    Package,
    PackageId,
    SlaTier,
    Subscription,
)
from routing_engine.types import ExpertId

NUMBER_PREFIX = "EG"
DRAFT_ID = InvoiceId("draft")

_MONTH = re.compile(r"\d{4}-\d{2}")


class Books(Protocol):
    """One customer's books inside one transaction, as closing needs them.

    `invoice_id` selects the usage that was marked with it, None the usage that is on no invoice yet.
    """

    def customer(self) -> Customer:
        """Return the customer."""

    def sla_tier(self) -> SlaTier:
        """Return the customer's SLA tier."""

    def subscriptions(self) -> list[Subscription]:
        """Return the customer's subscriptions by start."""

    def packages(self, package_ids: set[PackageId]) -> list[Package]:
        """Return packages by id, in their newest form."""

    def expert_names(self) -> dict[ExpertId, str]:
        """Return the display names of the experts."""

    def invoices_of(self, label: str) -> list[Invoice]:
        """Return the finalised invoices of a nominal month, by start."""

    def drawn(self, label: str) -> dict[PackageId, MicroPoints]:
        """Return what finalised invoices drew from each package's allowance of a nominal month."""

    def fees_charged(self, label: str) -> set[PackageId]:
        """Return the packages whose fee of a nominal month is on a finalised invoice."""

    def earliest(self, invoice_id: InvoiceId | None, until: datetime) -> datetime | None:
        """Return when the first selected usage before `until` occurred."""

    def sums(self, invoice_id: InvoiceId | None, period: BillingPeriod) -> list[UsageSum]:
        """Return selected usage that occurred in a period, summed by expert."""

    def items(
        self, invoice_id: InvoiceId | None, period: BillingPeriod, experts: Iterable[ExpertId]
    ) -> Iterator[UsageItem]:
        """Yield selected usage of some experts in order of position."""

    def mark(self, invoice_id: InvoiceId, until: datetime) -> None:
        """Mark all open usage that occurred before `until` as being on an invoice."""

    def cover(self, invoice_id: InvoiceId, period: BillingPeriod, coverage: Coverage) -> None:
        """Record what is covered of the marked usage of a period."""

    def next_number(self, series: str) -> int:
        """Return the next number of a series; the series stays locked until the transaction ends."""

    def record(
        self, invoice: Invoice, draws: dict[tuple[PackageId, str], MicroPoints], now: datetime
    ) -> None:
        """Insert a finalised invoice with its lines, draws and ledger entries."""

    def record_void(self, invoice: Invoice, now: datetime) -> None:
        """Void an invoice: release its usage and reverse its ledger entries."""


class BooksStore(Protocol):
    """Where books are opened."""

    def open_books(
        self, customer_id: CustomerId, *, is_writing: bool
    ) -> AbstractContextManager[Books]:
        """Open a customer's books in one transaction; writing locks them against other closings."""

    def invoice(self, reference: str) -> Invoice:
        """Return the invoice of this number or id."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A stretch of usage: its bounds, its nominal month, and what its lines are labelled with."""

    bounds: BillingPeriod
    nominal_label: str
    service_period: BillingPeriod | None


@dataclass(frozen=True, slots=True)
class _Covered:
    span: _Span
    coverage: Coverage


@dataclass(frozen=True, slots=True)
class _Draft:
    invoice: Invoice
    covered: tuple[_Covered, ...]


def preview(
    store: BooksStore,
    customer_id: CustomerId,
    label: str,
    now: datetime,
    *,
    cutoff: datetime | None = None,
) -> Invoice:
    """Return the draft that finalising would turn into an invoice; nothing is written.

    Without a cut-off, a period that isn't over is previewed up to `now`.

    Raises:
        InvalidInput: the label names no month, or the cut-off isn't in it.
        UnknownRecord: there is no such customer, or the catalog lacks its SLA tier.
    """
    with store.open_books(customer_id, is_writing=False) as books:
        customer = books.customer()
        nominal = _nominal(label, customer)
        end = min(max(now, nominal.start), nominal.end)
        if cutoff is not None:
            end = _end(nominal, now, cutoff)
        start = _covered_until(books, nominal)
        period = BillingPeriod(min(start, end), end, nominal.label)
        return _draft(books, customer, nominal, period, None).invoice


def finalise(
    store: BooksStore,
    customer_id: CustomerId,
    label: str,
    now: datetime,
    *,
    cutoff: datetime | None = None,
) -> Invoice:
    """Close a month, or the part of it before `cutoff`, and return the invoice; doing it again returns the same.

    The number is drawn and everything is written in one transaction: a failure leaves no gap in the series.

    Raises:
        PeriodNotOver: the month ends in the future and there is no cut-off.
        NothingToInvoice: there is neither usage nor a fee to charge.
        InvalidInput: the label names no month, or the cut-off isn't in it or lies in the future.
        UnknownRecord: there is no such customer, or the catalog lacks its SLA tier.
    """
    with store.open_books(customer_id, is_writing=True) as books:
        customer = books.customer()
        nominal = _nominal(label, customer)
        end = _end(nominal, now, cutoff)
        start = _covered_until(books, nominal)
        if start >= end:
            return books.invoices_of(nominal.label)[-1]
        invoice_id = InvoiceId(str(uuid.uuid4()))
        books.mark(invoice_id, end)
        period = BillingPeriod(start, end, nominal.label)
        draft = _draft(books, customer, nominal, period, invoice_id)
        if not draft.invoice.lines:
            raise NothingToInvoice(customer_id, label)
        issued_on = now.astimezone(zone_of(customer.time_zone)).date()
        series = f"{NUMBER_PREFIX}-{issued_on.year}"
        invoice = replace(
            draft.invoice,
            status=InvoiceStatus.FINALISED,
            number=InvoiceNumber(f"{series}-{books.next_number(series):06d}"),
            issued_on=issued_on,
            finalized_at=now,
        )
        for item in draft.covered:
            books.cover(invoice_id, item.span.bounds, item.coverage)
        books.record(invoice, _draws(draft.covered), now)
        return invoice


def void(store: BooksStore, reference: str, now: datetime) -> Invoice:
    """Void the invoice of this number or id and return it; its usage is open again, its number stays taken.

    Raises:
        UnknownRecord: there is no such invoice.
        InvoiceImmutable: it is void already, or a later invoice of the same month builds on it.
    """
    customer_id = store.invoice(reference).customer_id
    with store.open_books(customer_id, is_writing=True) as books:
        invoice = store.invoice(reference)
        number = invoice.number or reference
        if invoice.status is not InvoiceStatus.FINALISED:
            raise InvoiceImmutable(number, "it is void already")
        latest = books.invoices_of(invoice.period.label)[-1]
        if latest.invoice_id != invoice.invoice_id:
            raise InvoiceImmutable(
                number, f"a later invoice of the month builds on it; void {latest.number} first"
            )
        books.record_void(invoice, now)
        return replace(invoice, status=InvoiceStatus.VOID)


def _nominal(label: str, customer: Customer) -> BillingPeriod:
    if not _MONTH.fullmatch(label):
        raise InvalidInput("period", f"invoices are for months like 2026-12, not {label!r}")
    try:
        return period_from_label(label, customer.time_zone)
    except ValueError as exc:
        raise InvalidInput("period", str(exc)) from None


def _end(nominal: BillingPeriod, now: datetime, cutoff: datetime | None) -> datetime:
    if cutoff is None:
        if now < nominal.end:
            raise PeriodNotOver(nominal.label, nominal.end.isoformat())
        return nominal.end
    if not nominal.start < cutoff <= nominal.end:
        raise InvalidInput("cutoff", f"{cutoff.isoformat()} is not in {nominal.label}")
    if cutoff > now:
        raise InvalidInput("cutoff", f"{cutoff.isoformat()} is in the future")
    return cutoff


def _covered_until(books: Books, nominal: BillingPeriod) -> datetime:
    invoices = books.invoices_of(nominal.label)
    return max((invoice.period.end for invoice in invoices), default=nominal.start)


def _draft(
    books: Books,
    customer: Customer,
    nominal: BillingPeriod,
    period: BillingPeriod,
    invoice_id: InvoiceId | None,
) -> _Draft:
    subscriptions = books.subscriptions()
    packages = books.packages({item.package_id for item in subscriptions})
    sums: list[UsageSum] = []
    covered: list[_Covered] = []
    allowances: dict[str, tuple[Allowance, ...]] = {}
    months: dict[str, BillingPeriod | None] = {nominal.label: None}
    earliest = books.earliest(invoice_id, period.end)
    for span in _spans(earliest, nominal, period, customer.time_zone):
        raw = books.sums(invoice_id, span.bounds)
        if not raw:
            continue
        month = span.nominal_label
        months.setdefault(month, span.service_period)
        if month not in allowances:
            allowances[month] = _allowances(packages, subscriptions, books.drawn(month))
        coverage = _coverage(books, invoice_id, span.bounds, raw, allowances[month])
        allowances[month] = after_draw(allowances[month], coverage)
        covered.append(_Covered(span, coverage))
        sums += [
            replace(
                item,
                service_period=span.service_period,
                covered_micropoints=coverage.by_expert.get(item.expert_id, MicroPoints(0)),
            )
            for item in raw
        ]
    invoice = draft_invoice(
        invoice_id=invoice_id or DRAFT_ID,
        customer=customer,
        sla_tier=books.sla_tier(),
        period=period,
        sums=sums,
        fees=_fees(books, packages, subscriptions, period, months),
        expert_names=books.expert_names(),
    )
    return _Draft(invoice, tuple(covered))


def _spans(
    earliest: datetime | None, nominal: BillingPeriod, period: BillingPeriod, zone: str
) -> Iterator[_Span]:
    start = min(earliest, period.start) if earliest is not None else period.start
    while start < nominal.start:
        month = month_of(start, zone)
        end = min(month.end, nominal.start)
        yield _Span(BillingPeriod(start, end, month.label), month.label, month)
        start = end
    if nominal.start < period.start:
        late = BillingPeriod(nominal.start, period.start, nominal.label)
        yield _Span(late, nominal.label, late)
    if period.start < period.end:
        yield _Span(period, nominal.label, None)


def _coverage(
    books: Books,
    invoice_id: InvoiceId | None,
    bounds: BillingPeriod,
    sums: list[UsageSum],
    allowances: tuple[Allowance, ...],
) -> Coverage:
    if not any(allowance.remaining for allowance in allowances):
        return NOTHING_COVERED
    by_expert = {item.expert_id: item.micropoints for item in sums}
    span = Window(to_micros(bounds.start), to_micros(bounds.end))
    coverage = cover_whole(by_expert, allowances, span)
    if coverage is None:
        experts = frozenset[ExpertId]().union(*(item.experts for item in allowances))
        coverage = cover(books.items(invoice_id, bounds, experts & by_expert.keys()), allowances)
    return coverage


def _allowances(
    packages: list[Package],
    subscriptions: list[Subscription],
    drawn: dict[PackageId, MicroPoints],
) -> tuple[Allowance, ...]:
    by_id = {package.package_id: package for package in packages}
    windows: dict[PackageId, list[Window]] = {}
    for item in subscriptions:
        end_us = None if item.ended_at is None else to_micros(item.ended_at)
        window = Window(to_micros(item.started_at), end_us)
        windows.setdefault(item.package_id, []).append(window)
    return tuple(
        Allowance(
            package_id,
            by_id[package_id].experts,
            MicroPoints(
                max(0, by_id[package_id].allowance - drawn.get(package_id, MicroPoints(0)))
            ),
            tuple(runs),
        )
        for package_id, runs in windows.items()
        if package_id in by_id
    )


def _fees(
    books: Books,
    packages: list[Package],
    subscriptions: list[Subscription],
    period: BillingPeriod,
    months: dict[str, BillingPeriod | None],
) -> list[FeeDue]:
    # A month that was never closed owes its fee with its first usage: that usage had the allowance.
    due = []
    for label, month in months.items():
        start, end = (month.start, month.end) if month else (period.start, period.end)
        charged = books.fees_charged(label)
        running = {
            item.package_id
            for item in subscriptions
            if item.started_at < end
            and (item.ended_at is None or item.ended_at > max(start, item.started_at))
        }
        due += [FeeDue(item, month) for item in packages if item.package_id in running - charged]
    return due


def _draws(covered: Iterable[_Covered]) -> dict[tuple[PackageId, str], MicroPoints]:
    draws: dict[tuple[PackageId, str], MicroPoints] = {}
    for item in covered:
        for package_id, micropoints in item.coverage.by_package.items():
            key = (package_id, item.span.nominal_label)
            draws[key] = MicroPoints(draws.get(key, MicroPoints(0)) + micropoints)
    return draws
