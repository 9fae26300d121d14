"""An invoice as a PDF for people: A4, one table row per line, the same bytes on every run.

Owns the numbers' appearance and the choice of fonts; the layout is `invoice.typ` beside this module. Names
and descriptions reach typst as data and are never read as markup; nothing is fetched.
"""

import json
import os
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from billing.money import decimal_text
from billing.periods import zone_of
from billing.types import BillingPeriod, Invoice, InvoiceLine, InvoiceStatus, LineKind, Money

if TYPE_CHECKING:
    import typst

FONT_DIRECTORY_VARIABLE = "EXPERTGATE_FONT_DIR"
"""Environment variable with a folder of further fonts, e.g. for a host without Chinese ones."""

ISSUER = "Expertgate"

_LATIN = ("Noto Sans", "DejaVu Sans", "Libertinus Serif")
_CHINESE = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "Microsoft YaHei",
    "SimSun",
)
_MICROPOINTS_PER_POINT = 10**6


def invoice_pdf(
    invoice: Invoice, *, issuer: str = ISSUER, font_directory: Path | None = None
) -> bytes:
    """Return the invoice as PDF; equal invoices on one host give equal bytes.

    Args:
        invoice: a draft prints as such.
        issuer: who issues it, at the top.
        font_directory: further fonts; default from `EXPERTGATE_FONT_DIR`.
    """
    import typst

    document = pdf_data(invoice, issuer=issuer)
    document["fonts"] = font_families(font_directory)
    template = files("billing.documents").joinpath("invoice.typ").read_bytes()
    compiled: bytes = typst.compile(
        template,
        format="pdf",
        font_paths=_fonts(_font_paths(font_directory)),
        sys_inputs={"invoice": json.dumps(document, ensure_ascii=False, sort_keys=True)},
        timestamp=_timestamp(invoice),
    )
    return compiled


def font_families(font_directory: Path | None = None) -> list[str]:
    """Return the families to set text in, best first, of those that typst finds on this host."""
    present = set(_fonts(_font_paths(font_directory)).families())
    return [family for family in (*_LATIN, *_CHINESE) if family in present]


def has_chinese_font(font_directory: Path | None = None) -> bool:
    """Say whether Chinese names will be legible in the PDF; without, install Noto Sans CJK or name a folder."""
    return bool(set(_CHINESE) & set(font_families(font_directory)))


def pdf_data(invoice: Invoice, *, issuer: str = ISSUER) -> dict[str, Any]:
    """Return what the template prints: text only, already formatted."""
    is_final = invoice.status is not InvoiceStatus.DRAFT
    return {
        "issuer": issuer,
        "title": "Invoice" if is_final else "Draft invoice",
        "is_void": invoice.status is InvoiceStatus.VOID,
        "number": invoice.number or "not yet numbered",
        "issued_on": invoice.issued_on.isoformat() if invoice.issued_on else "not yet issued",
        "customer_name": invoice.customer_name,
        "customer_id": invoice.customer_id,
        "period": f"{_period_text(invoice.period, invoice.time_zone)} ({invoice.time_zone})",
        "period_label": invoice.period.label,
        "terms": _terms(invoice),
        "currency": invoice.total.currency,
        "lines": [_line(line, invoice.time_zone) for line in invoice.lines],
        "subtotals": _subtotals(invoice),
        "total": _amount(invoice.total),
        "shares": _shares(invoice),
        "invoice_id": invoice.invoice_id,
    }


def _line(line: InvoiceLine, zone: str) -> dict[str, Any]:
    note = _note(line)
    if line.service_period is not None:
        note = f"{note} · for {_period_text(line.service_period, zone)}"
    is_usage = line.kind is LineKind.USAGE
    charged = line.micropoints - line.covered_micropoints
    return {
        "kind": line.kind.value,
        "description": line.description,
        "note": note,
        "calls": _grouped(line.calls) if is_usage else "",
        "tokens_in": _grouped(line.usage.input_tokens) if line.usage else "",
        "tokens_out": _grouped(line.usage.output_tokens) if line.usage else "",
        "points": _points(line.micropoints) if is_usage else "",
        "covered": _points(line.covered_micropoints) if is_usage else "",
        "charged": _points(charged) if is_usage else "",
        "amount": _amount(line.amount),
    }


def _note(line: InvoiceLine) -> str:
    if line.kind is LineKind.USAGE:
        return str(line.expert_id)
    if line.kind is LineKind.PACKAGE_FEE:
        return "monthly package fee"
    return "service level surcharge on the usage subtotal"


def _subtotals(invoice: Invoice) -> list[dict[str, str]]:
    names = (
        (LineKind.USAGE, "Usage"),
        (LineKind.PACKAGE_FEE, "Package fees"),
        (LineKind.SLA_SURCHARGE, f"Surcharge {_permille(invoice.surcharge_permille)}"),
    )
    found = []
    for kind, name in names:
        amounts = [line.amount.minor_units for line in invoice.lines if line.kind is kind]
        if amounts:
            amount = Money(sum(amounts), invoice.total.currency)
            found.append({"name": name, "amount": _amount(amount)})
    return found


def _shares(invoice: Invoice) -> list[dict[str, str]]:
    return [
        {"expert": str(expert_id), "amount": _amount(Money(share, invoice.total.currency))}
        for line in invoice.lines
        for expert_id, share in line.expert_shares
    ]


def _terms(invoice: Invoice) -> str:
    whole, fraction = divmod(invoice.point_price_micros, 10**6)
    price = f"{whole}.{fraction:06d}".rstrip("0").rstrip(".")
    text = f"One base point costs {price} {invoice.total.currency}."
    if invoice.surcharge_permille:
        tier = invoice.sla_tier_id
        text += f" The service level {tier} adds {_permille(invoice.surcharge_permille)} of the usage subtotal."
    return text


def _permille(permille: int) -> str:
    whole, tenth = divmod(permille, 10)
    return f"{whole}.{tenth} %" if tenth else f"{whole} %"


def _points(micropoints: int) -> str:
    whole, fraction = divmod(micropoints, _MICROPOINTS_PER_POINT)
    digits = f"{fraction:06d}".rstrip("0")
    return f"{_grouped(whole)}.{digits.ljust(2, '0')}"


def _amount(amount: Money) -> str:
    text = decimal_text(amount)
    sign = "−" if text.startswith("-") else ""
    whole, point, fraction = text.removeprefix("-").partition(".")
    return f"{sign}{_grouped(int(whole))}{point}{fraction}"


def _grouped(number: int) -> str:
    # A narrow no-break space groups digits in every language; a comma is a decimal sign in some.
    return f"{number:,}".replace(",", "\u202f")


def _period_text(period: BillingPeriod, zone: str) -> str:
    start, end = (_local(instant, zone) for instant in (period.start, period.end))
    midnights = start.time() == end.time() == datetime.min.time()
    if midnights:
        last: date = (end - timedelta(days=1)).date()
        return f"{start.date().isoformat()} to {last.isoformat()}"
    return f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"


def _local(instant: datetime, zone: str) -> datetime:
    return instant.astimezone(zone_of(zone)).replace(tzinfo=None)


def _timestamp(invoice: Invoice) -> int:
    # The PDF's creation date; fixed by the invoice, so that a second run gives the same bytes.
    instant = invoice.finalized_at or invoice.period.end
    return int(instant.astimezone(UTC).timestamp())


def _font_paths(font_directory: Path | None) -> tuple[str, ...]:
    if font_directory is not None:
        return (str(font_directory),)
    configured = os.environ.get(FONT_DIRECTORY_VARIABLE, "")
    return (configured,) if configured else ()


@lru_cache(maxsize=8)
def _fonts(paths: tuple[str, ...]) -> "typst.Fonts":
    # Looking through a host's fonts takes longer than setting an invoice.
    import typst

    return typst.Fonts(font_paths=list(paths))
