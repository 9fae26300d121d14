"""Invoices as rows and ledger entries, both ways.

Owns the mapping only; `billing.store.invoices` decides what is written when.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from billing.store import schema
from billing.types import (
    BillingPeriod,
    CustomerId,
    Invoice,
    InvoiceId,
    InvoiceLine,
    InvoiceNumber,
    InvoiceStatus,
    LineKind,
    MicroPoints,
    Money,
    PackageId,
    SlaTierId,
    UsageTotals,
)
from routing_engine.types import ExpertId


def point_entries(invoice: Invoice) -> list[tuple[str, int]]:
    """Return what finalising an invoice moves between micro-point accounts."""
    used = sum(line.micropoints for line in invoice.lines)
    covered = sum(line.covered_micropoints for line in invoice.lines)
    customer_id = invoice.customer_id
    return [
        (f"accrued/{customer_id}", -used),
        (f"invoiced/{customer_id}", used - covered),
        (f"covered/{customer_id}", covered),
    ]


def money_entries(invoice: Invoice) -> list[tuple[str, int]]:
    """Return what finalising an invoice moves between the currency's accounts."""
    revenue: dict[str, int] = {}

    def add(account: str, amount: int) -> None:
        revenue[account] = revenue.get(account, 0) + amount

    for line in invoice.lines:
        if line.kind is LineKind.SLA_SURCHARGE:
            for expert_id, share in line.expert_shares:
                add(f"revenue/expert/{expert_id}", share)
        elif line.kind is LineKind.USAGE:
            add(f"revenue/expert/{line.expert_id}", line.amount.minor_units)
        else:
            add(f"revenue/package/{line.package_id}", line.amount.minor_units)
    receivable = (f"receivable/{invoice.customer_id}", invoice.total.minor_units)
    return [receivable, *((account, -amount) for account, amount in sorted(revenue.items()))]


def invoice_row(invoice: Invoice, now: datetime) -> dict[str, Any]:
    """Return the row of a finalised invoice."""
    assert invoice.issued_on is not None, "a finalised invoice has a date"
    return {
        "invoice_id": invoice.invoice_id,
        "number": invoice.number,
        "customer_id": invoice.customer_id,
        "customer_name": invoice.customer_name,
        "period_label": invoice.period.label,
        "period_start": invoice.period.start,
        "period_end": invoice.period.end,
        "status": invoice.status.value,
        "currency": invoice.total.currency,
        "total_minor_units": invoice.total.minor_units,
        "issued_on": invoice.issued_on.isoformat(),
        "finalized_at": invoice.finalized_at or now,
        "voided_at": None,
        "point_price_micros": invoice.point_price_micros,
        "sla_tier_id": invoice.sla_tier_id,
        "surcharge_permille": invoice.surcharge_permille,
        "time_zone": invoice.time_zone,
    }


def line_row(invoice: Invoice, index: int) -> dict[str, Any]:
    """Return the row of one line of an invoice."""
    line = invoice.lines[index]
    service = line.service_period
    tokens = asdict(line.usage) if line.usage else dict.fromkeys(UsageTotals.__slots__)
    return {
        "invoice_id": invoice.invoice_id,
        "line_index": index,
        "kind": line.kind.value,
        "description": line.description,
        "amount_minor_units": line.amount.minor_units,
        "expert_id": line.expert_id,
        "package_id": line.package_id,
        "calls": line.calls,
        **tokens,
        "micropoints": line.micropoints,
        "covered_micropoints": line.covered_micropoints,
        "expert_shares": json.dumps(line.expert_shares, ensure_ascii=False),
        "service_label": service.label if service else None,
        "service_start": service.start if service else None,
        "service_end": service.end if service else None,
    }


def read_invoices(connection: Connection, condition: sa.ColumnElement[bool]) -> list[Invoice]:
    """Return the invoices that a condition on `invoices` selects, with their lines, by start."""
    invoices, lines = schema.invoices, schema.invoice_lines
    line_query = (
        sa.select(lines)
        .join(invoices, invoices.c.invoice_id == lines.c.invoice_id)
        .where(condition)
        .order_by(lines.c.invoice_id, lines.c.line_index)
    )
    by_invoice: dict[str, list[sa.Row[Any]]] = {}
    for row in connection.execute(line_query):
        by_invoice.setdefault(row.invoice_id, []).append(row)
    query = sa.select(invoices).where(condition).order_by(invoices.c.period_start)
    return [_invoice(row, by_invoice.get(row.invoice_id, [])) for row in connection.execute(query)]


def _invoice(row: sa.Row[Any], lines: Sequence[sa.Row[Any]]) -> Invoice:
    return Invoice(
        invoice_id=InvoiceId(row.invoice_id),
        customer_id=CustomerId(row.customer_id),
        customer_name=row.customer_name,
        period=BillingPeriod(row.period_start, row.period_end, row.period_label),
        status=InvoiceStatus(row.status),
        lines=tuple(_line(line, row.currency) for line in lines),
        total=Money(row.total_minor_units, row.currency),
        number=InvoiceNumber(row.number),
        issued_on=date.fromisoformat(row.issued_on),
        finalized_at=row.finalized_at,
        point_price_micros=row.point_price_micros,
        sla_tier_id=SlaTierId(row.sla_tier_id),
        surcharge_permille=row.surcharge_permille,
        time_zone=row.time_zone,
    )


def _line(row: sa.Row[Any], currency: str) -> InvoiceLine:
    usage = None
    if row.input_tokens is not None:
        usage = UsageTotals(
            row.input_tokens, row.output_tokens, row.cached_input_tokens, row.reasoning_tokens
        )
    service = None
    if row.service_label is not None:
        service = BillingPeriod(row.service_start, row.service_end, row.service_label)
    return InvoiceLine(
        kind=LineKind(row.kind),
        description=row.description,
        amount=Money(row.amount_minor_units, currency),
        expert_id=None if row.expert_id is None else ExpertId(row.expert_id),
        calls=row.calls,
        usage=usage,
        micropoints=MicroPoints(row.micropoints),
        covered_micropoints=MicroPoints(row.covered_micropoints),
        expert_shares=tuple(
            (ExpertId(expert_id), share) for expert_id, share in json.loads(row.expert_shares)
        ),
        service_period=service,
        package_id=None if row.package_id is None else PackageId(row.package_id),
    )
