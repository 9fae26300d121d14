"""Invoices in the store, and one customer's books inside a transaction.

Owns `BooksStore` and `Books` of billing/closing.py. Usage is marked first and summed after, so that an
invoice is the sum of exactly the lines that carry its id, whatever is recorded meanwhile.

Accounts: in micro-points `accrued/<customer>` → `invoiced/<customer>` and `covered/<customer>`; in the
currency `receivable/<customer>` against `revenue/expert/<expert>` and `revenue/package/<package>`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from billing.allowance import Coverage, Position, UsageItem
from billing.errors import UnknownRecord
from billing.invoicing import UsageSum
from billing.store import account_rows, schema
from billing.store.engine import Database
from billing.store.inserts import insert_if_absent
from billing.store.invoice_rows import (
    invoice_row,
    line_row,
    money_entries,
    point_entries,
    read_invoices,
)
from billing.store.ledger import MICROPOINTS_UNIT
from billing.types import (
    BillingPeriod,
    Customer,
    CustomerId,
    Invoice,
    InvoiceId,
    InvoiceStatus,
    LineKind,
    MicroPoints,
    Package,
    PackageId,
    SlaTier,
    Subscription,
    UsageTotals,
)
from routing_engine.types import ExpertId

ITEMS_AT_ONCE = 5_000
"""Usage lines held in memory while an allowance is applied."""

_LINES = schema.usage_lines.c
_POSITION = sa.tuple_(_LINES.occurred_at, _LINES.event_id, _LINES.line_index)


class SqlBooksStore:
    """`BooksStore` on SQLite or PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextmanager
    def open_books(self, customer_id: CustomerId, *, is_writing: bool) -> Iterator["SqlBooks"]:
        """Open a customer's books in one transaction; writing locks them against other closings.

        Raises:
            UnknownRecord: there is no such customer.
        """
        if is_writing:
            with self._database.writing(is_long=True) as connection:
                yield SqlBooks(connection, customer_id, is_locked=True)
        else:
            with self._database.reading() as connection:
                yield SqlBooks(connection, customer_id, is_locked=False)

    def invoice(self, reference: str) -> Invoice:
        """Return the invoice of this number or id.

        Raises:
            UnknownRecord: there is none.
        """
        table = schema.invoices.c
        condition = sa.or_(table.number == reference, table.invoice_id == reference)
        with self._database.reading() as connection:
            found = read_invoices(connection, condition)
        if not found:
            raise UnknownRecord("invoice", reference)
        return found[0]

    def invoices(self, customer_id: CustomerId | None = None) -> Sequence[Invoice]:
        """Return every finalised or void invoice (of one customer), by number."""
        condition: sa.ColumnElement[bool] = sa.true()
        if customer_id is not None:
            condition = schema.invoices.c.customer_id == customer_id
        with self._database.reading() as connection:
            found = read_invoices(connection, condition)
        return sorted(found, key=lambda invoice: invoice.number or "")


class SqlBooks:
    """`Books` of one customer on an open transaction."""

    def __init__(self, connection: Connection, customer_id: CustomerId, *, is_locked: bool) -> None:
        self._connection = connection
        self._customer = account_rows.read_customer(connection, customer_id, is_locked=is_locked)

    def customer(self) -> Customer:
        """Return the customer."""
        return self._customer

    def sla_tier(self) -> SlaTier:
        """Return the customer's SLA tier.

        Raises:
            UnknownRecord: the catalog in force lacks it.
        """
        for tier in account_rows.read_sla_tiers(self._connection):
            if tier.sla_tier_id == self._customer.sla_tier_id:
                return tier
        raise UnknownRecord("SLA tier in the catalog", self._customer.sla_tier_id)

    def subscriptions(self) -> list[Subscription]:
        """Return the customer's subscriptions by start."""
        return account_rows.read_subscriptions(self._connection, self._customer.customer_id)

    def packages(self, package_ids: set[PackageId]) -> list[Package]:
        """Return packages by id, in their newest form, also those the catalog dropped."""
        return account_rows.read_packages_ever(self._connection, package_ids)

    def expert_names(self) -> dict[ExpertId, str]:
        """Return the display names of the experts."""
        return account_rows.read_expert_names(self._connection)

    def invoices_of(self, label: str) -> list[Invoice]:
        """Return the finalised invoices of a nominal month, by start."""
        table = schema.invoices.c
        condition = sa.and_(
            table.customer_id == self._customer.customer_id,
            table.period_label == label,
            table.status == InvoiceStatus.FINALISED.value,
        )
        return read_invoices(self._connection, condition)

    def drawn(self, label: str) -> dict[PackageId, MicroPoints]:
        """Return what finalised invoices drew from each package's allowance of a nominal month."""
        draws, invoices = schema.allowance_draws, schema.invoices
        query = (
            sa.select(draws.c.package_id, sa.func.sum(draws.c.micropoints))
            .join(invoices, invoices.c.invoice_id == draws.c.invoice_id)
            .where(*self._finalised(), draws.c.period_label == label)
            .group_by(draws.c.package_id)
        )
        return {
            PackageId(package_id): MicroPoints(int(micropoints))
            for package_id, micropoints in self._connection.execute(query)
        }

    def fees_charged(self, label: str) -> set[PackageId]:
        """Return the packages whose fee of a nominal month is on a finalised invoice."""
        lines, invoices = schema.invoice_lines, schema.invoices
        month = sa.func.coalesce(lines.c.service_label, invoices.c.period_label)
        query = (
            sa.select(lines.c.package_id)
            .join(invoices, invoices.c.invoice_id == lines.c.invoice_id)
            .where(*self._finalised(), lines.c.kind == LineKind.PACKAGE_FEE.value, month == label)
        )
        return {PackageId(package_id) for package_id in self._connection.execute(query).scalars()}

    def earliest(self, invoice_id: InvoiceId | None, until: datetime) -> datetime | None:
        """Return when the first selected usage before `until` occurred."""
        query = sa.select(sa.func.min(_LINES.occurred_at)).where(
            *self._selected(invoice_id), _LINES.occurred_at < until
        )
        found: datetime | None = self._connection.execute(query).scalar()
        return found

    def sums(self, invoice_id: InvoiceId | None, period: BillingPeriod) -> list[UsageSum]:
        """Return selected usage that occurred in a period, summed by expert."""
        query = (
            sa.select(
                _LINES.expert_id,
                sa.func.sum(_LINES.billed_calls),
                sa.func.sum(_LINES.input_tokens),
                sa.func.sum(_LINES.output_tokens),
                sa.func.sum(_LINES.cached_input_tokens),
                sa.func.sum(_LINES.reasoning_tokens),
                sa.func.sum(_LINES.micropoints),
            )
            .where(*self._selected(invoice_id), *_within(period))
            .group_by(_LINES.expert_id)
            .order_by(_LINES.expert_id)
        )
        return [
            UsageSum(
                expert_id=ExpertId(row[0]),
                service_period=None,
                calls=int(row[1]),
                usage=UsageTotals(*(int(value) for value in row[2:6])),
                micropoints=MicroPoints(int(row[6])),
            )
            for row in self._connection.execute(query)
        ]

    def items(
        self, invoice_id: InvoiceId | None, period: BillingPeriod, experts: Iterable[ExpertId]
    ) -> Iterator[UsageItem]:
        """Yield selected usage of some experts in order of position, a bounded number in memory."""
        query = (
            sa.select(
                sa.type_coerce(_LINES.occurred_at, schema.INTEGER),
                _LINES.event_id,
                _LINES.line_index,
                _LINES.expert_id,
                _LINES.micropoints,
            )
            .where(
                *self._selected(invoice_id), *_within(period), _LINES.expert_id.in_(sorted(experts))
            )
            .order_by(_LINES.occurred_at, _LINES.event_id, _LINES.line_index)
            .execution_options(yield_per=ITEMS_AT_ONCE)
        )
        with self._connection.execute(query) as rows:
            for occurred_at_us, event_id, line_index, expert_id, micropoints in rows:
                yield UsageItem(
                    (occurred_at_us, event_id, line_index),
                    ExpertId(expert_id),
                    MicroPoints(micropoints),
                )

    def mark(self, invoice_id: InvoiceId, until: datetime) -> None:
        """Mark all open usage that occurred before `until` as being on an invoice."""
        self._connection.execute(
            sa.update(schema.usage_lines)
            .where(*self._selected(None), _LINES.occurred_at < until)
            .values(invoice_id=invoice_id)
        )

    def cover(self, invoice_id: InvoiceId, period: BillingPeriod, coverage: Coverage) -> None:
        """Record what is covered of the marked usage of a period."""
        update = sa.update(schema.usage_lines).where(*self._selected(invoice_id), *_within(period))
        for run in coverage.runs:
            statement = update.where(_LINES.expert_id == run.expert_id)
            if run.first is not None:
                statement = statement.where(_position(run.first) <= _POSITION)
            if run.last is not None:
                statement = statement.where(_position(run.last) >= _POSITION)
            self._connection.execute(statement.values(covered_micropoints=_LINES.micropoints))
        for part in coverage.parts:
            self._connection.execute(
                update.where(_position(part.position) == _POSITION).values(
                    covered_micropoints=part.micropoints
                )
            )

    def next_number(self, series: str) -> int:
        """Return the next number of a series; the series stays locked until the transaction ends."""
        table = schema.invoice_counters
        advance = (
            sa.update(table)
            .where(table.c.series == series)
            .values(last_number=table.c.last_number + 1)
            .returning(table.c.last_number)
        )
        number = self._connection.execute(advance).scalar()
        if number is None:
            if insert_if_absent(self._connection, table, {"series": series, "last_number": 1}):
                return 1
            # Another closing began the series while we waited on its row.
            number = self._connection.execute(advance).scalar_one()
        return int(number)

    def record(
        self, invoice: Invoice, draws: dict[tuple[PackageId, str], MicroPoints], now: datetime
    ) -> None:
        """Insert a finalised invoice with its lines, draws and ledger entries."""
        assert invoice.number is not None, "a number is drawn before an invoice is recorded"
        assert invoice.issued_on is not None, "a finalised invoice has a date"
        self._connection.execute(sa.insert(schema.invoices).values(invoice_row(invoice, now)))
        if invoice.lines:
            rows = [line_row(invoice, index) for index in range(len(invoice.lines))]
            self._connection.execute(sa.insert(schema.invoice_lines), rows)
        if draws:
            self._connection.execute(
                sa.insert(schema.allowance_draws),
                [
                    {
                        "invoice_id": invoice.invoice_id,
                        "package_id": package_id,
                        "period_label": label,
                        "micropoints": micropoints,
                    }
                    for (package_id, label), micropoints in draws.items()
                ],
            )
        self._transfer(
            f"invoice/{invoice.invoice_id}/points",
            "invoice",
            MICROPOINTS_UNIT,
            point_entries(invoice),
            now,
        )
        self._transfer(
            f"invoice/{invoice.invoice_id}/money",
            "invoice",
            invoice.total.currency,
            money_entries(invoice),
            now,
        )

    def record_void(self, invoice: Invoice, now: datetime) -> None:
        """Void an invoice: release its usage and reverse its ledger entries."""
        self._connection.execute(
            sa.update(schema.invoices)
            .where(
                schema.invoices.c.invoice_id == invoice.invoice_id,
                schema.invoices.c.status == InvoiceStatus.FINALISED.value,
            )
            .values(status=InvoiceStatus.VOID.value, voided_at=now)
        )
        self._connection.execute(
            sa.update(schema.usage_lines)
            .where(_LINES.invoice_id == invoice.invoice_id)
            .values(invoice_id=None, covered_micropoints=0)
        )
        for part, unit, entries in (
            ("points", MICROPOINTS_UNIT, point_entries(invoice)),
            ("money", invoice.total.currency, money_entries(invoice)),
        ):
            reversed_entries = [(account, -amount) for account, amount in entries]
            self._transfer(f"void/{invoice.invoice_id}/{part}", "void", unit, reversed_entries, now)

    def _finalised(self) -> tuple[sa.ColumnElement[bool], ...]:
        table = schema.invoices.c
        return (
            table.customer_id == self._customer.customer_id,
            table.status == InvoiceStatus.FINALISED.value,
        )

    def _selected(self, invoice_id: InvoiceId | None) -> tuple[sa.ColumnElement[bool], ...]:
        if invoice_id is not None:
            return (_LINES.invoice_id == invoice_id,)
        return (_LINES.customer_id == self._customer.customer_id, _LINES.invoice_id.is_(None))

    def _transfer(
        self,
        transfer_id: str,
        kind: str,
        unit: str,
        entries: Sequence[tuple[str, int]],
        now: datetime,
    ) -> None:
        moved = [(account, amount) for account, amount in entries if amount]
        if not moved:
            return
        assert not sum(amount for _, amount in moved), "a transfer is balanced"
        self._connection.execute(
            sa.insert(schema.ledger_transfers).values(
                transfer_id=transfer_id, kind=kind, unit=unit, recorded_at=now
            )
        )
        self._connection.execute(
            sa.insert(schema.ledger_entries),
            [
                {
                    "transfer_id": transfer_id,
                    "entry_index": index,
                    "account": account,
                    "amount": amount,
                }
                for index, (account, amount) in enumerate(moved)
            ],
        )


def _within(period: BillingPeriod) -> tuple[sa.ColumnElement[bool], ...]:
    return (_LINES.occurred_at >= period.start, _LINES.occurred_at < period.end)


def _position(position: Position) -> Any:  # noqa: ANN401 - SQLAlchemy's row values have no public type
    occurred_at_us, event_id, line_index = position
    return sa.tuple_(
        sa.literal(occurred_at_us, schema.INTEGER),
        sa.literal(event_id, sa.Text()),
        sa.literal(line_index, schema.INTEGER),
    )
