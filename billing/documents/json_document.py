"""An invoice as canonical JSON: the same invoice is the same bytes, for machines and archives.

Owns the document's form (`expertgate.invoice.v1`). Pure. Amounts appear as integer minor units and, for
readers, as exact decimal text; points as integer micro-points.
"""

import json
from datetime import UTC, datetime
from typing import Any

from billing.money import decimal_text
from billing.types import BillingPeriod, Invoice, InvoiceLine, Money

FORM = "expertgate.invoice.v1"


def invoice_json(invoice: Invoice) -> bytes:
    """Return the invoice as UTF-8 JSON with sorted keys, no spaces and a final newline."""
    text = json.dumps(
        document_of(invoice), sort_keys=True, ensure_ascii=False, separators=(",", ":")
    )
    return f"{text}\n".encode()


def document_of(invoice: Invoice) -> dict[str, Any]:
    """Return the invoice as plain JSON values."""
    return {
        "form": FORM,
        "invoice_id": invoice.invoice_id,
        "number": invoice.number,
        "status": invoice.status.value,
        "issued_on": invoice.issued_on.isoformat() if invoice.issued_on else None,
        "finalized_at": _instant(invoice.finalized_at) if invoice.finalized_at else None,
        "customer": {"id": invoice.customer_id, "name": invoice.customer_name},
        "period": _period(invoice.period),
        "time_zone": invoice.time_zone,
        "point_price_micros": invoice.point_price_micros,
        "sla_tier_id": invoice.sla_tier_id,
        "surcharge_permille": invoice.surcharge_permille,
        "lines": [_line(line) for line in invoice.lines],
        "total": _money(invoice.total),
    }


def _line(line: InvoiceLine) -> dict[str, Any]:
    document: dict[str, Any] = {
        "kind": line.kind.value,
        "description": line.description,
        "amount": _money(line.amount),
    }
    if line.expert_id is not None:
        document |= {
            "expert_id": line.expert_id,
            "calls": line.calls,
            "micropoints": line.micropoints,
            "covered_micropoints": line.covered_micropoints,
            "charged_micropoints": line.micropoints - line.covered_micropoints,
        }
    if line.usage is not None:
        document["tokens"] = {
            "input": line.usage.input_tokens,
            "output": line.usage.output_tokens,
            "cached_input": line.usage.cached_input_tokens,
            "reasoning": line.usage.reasoning_tokens,
        }
    if line.package_id is not None:
        document["package_id"] = line.package_id
    if line.service_period is not None:
        document["service_period"] = _period(line.service_period)
    if line.expert_shares:
        document["expert_shares"] = [
            {"expert_id": expert_id, "minor_units": share}
            for expert_id, share in line.expert_shares
        ]
    return document


def _money(amount: Money) -> dict[str, Any]:
    return {
        "minor_units": amount.minor_units,
        "currency": amount.currency,
        "decimal": decimal_text(amount),
    }


def _period(period: BillingPeriod) -> dict[str, str]:
    return {
        "label": period.label,
        "start": _instant(period.start),
        "end": _instant(period.end),
    }


def _instant(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
