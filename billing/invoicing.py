"""Drafting an invoice from sums of rated usage, package fees and a customer's terms.

Owns what lines an invoice has, their order and their amounts. Pure. Every usage line is rounded once; the
SLA surcharge is one line on the sum of the rounded usage lines, split over the experts by largest
remainder; the total is the sum of the lines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from billing.errors import InvalidInput
from billing.money import allocate, permille_of, price, total
from billing.types import (
    BillingPeriod,
    Customer,
    Invoice,
    InvoiceId,
    InvoiceLine,
    InvoiceStatus,
    LineKind,
    MicroPoints,
    Money,
    Package,
    SlaTier,
    UsageTotals,
)
from routing_engine.types import ExpertId


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Rated usage of one expert in one stretch of time; `service_period` is None in the invoice's own."""

    expert_id: ExpertId
    service_period: BillingPeriod | None
    calls: int
    usage: UsageTotals
    micropoints: MicroPoints
    covered_micropoints: MicroPoints = MicroPoints(0)


@dataclass(frozen=True, slots=True)
class FeeDue:
    """A package fee for one nominal month; `service_period` is None in the invoice's own."""

    package: Package
    service_period: BillingPeriod | None = None


def draft_invoice(
    *,
    invoice_id: InvoiceId,
    customer: Customer,
    sla_tier: SlaTier,
    period: BillingPeriod,
    sums: Sequence[UsageSum],
    fees: Sequence[FeeDue],
    expert_names: Mapping[ExpertId, str],
) -> Invoice:
    """Return the draft that these sums and fees make.

    Lines: usage of the period by expert id, late usage by its own period, fees by package id, surcharge.

    Raises:
        InvalidInput: a fee is in another currency than the customer's.
    """
    usage = _usage_lines(customer, sums, expert_names)
    lines = [*usage, *_fee_lines(customer, fees)]
    surcharge = _surcharge_line(customer, sla_tier, usage)
    if surcharge is not None:
        lines.append(surcharge)
    return Invoice(
        invoice_id=invoice_id,
        customer_id=customer.customer_id,
        customer_name=customer.name,
        period=period,
        status=InvoiceStatus.DRAFT,
        lines=tuple(lines),
        total=total((line.amount for line in lines), customer.currency),
        point_price_micros=customer.point_price_micros,
        sla_tier_id=sla_tier.sla_tier_id,
        surcharge_permille=sla_tier.surcharge_permille,
        time_zone=customer.time_zone,
    )


def _usage_lines(
    customer: Customer, sums: Sequence[UsageSum], expert_names: Mapping[ExpertId, str]
) -> list[InvoiceLine]:
    def place(item: UsageSum) -> tuple[bool, str, str, ExpertId]:
        late = item.service_period
        start = late.start.isoformat() if late else ""
        return late is not None, late.label if late else "", start, item.expert_id

    lines = []
    for item in sorted(sums, key=place):
        if not (item.calls or item.micropoints or item.usage != UsageTotals()):
            continue
        charged = item.micropoints - item.covered_micropoints
        lines.append(
            InvoiceLine(
                kind=LineKind.USAGE,
                description=expert_names.get(item.expert_id, str(item.expert_id)),
                amount=price(charged, customer.point_price_micros, customer.currency),
                expert_id=item.expert_id,
                calls=item.calls,
                usage=item.usage,
                micropoints=item.micropoints,
                covered_micropoints=item.covered_micropoints,
                service_period=item.service_period,
            )
        )
    return lines


def _fee_lines(customer: Customer, fees: Sequence[FeeDue]) -> list[InvoiceLine]:
    lines = []
    for fee in sorted(fees, key=_fee_place):
        package = fee.package
        if package.monthly_fee.currency != customer.currency:
            raise InvalidInput(
                f"package {package.package_id}",
                f"its fee is in {package.monthly_fee.currency}, the customer pays {customer.currency}",
            )
        lines.append(
            InvoiceLine(
                kind=LineKind.PACKAGE_FEE,
                description=package.name,
                amount=package.monthly_fee,
                package_id=package.package_id,
                service_period=fee.service_period,
            )
        )
    return lines


def _fee_place(fee: FeeDue) -> tuple[str, str]:
    return fee.service_period.label if fee.service_period else "", fee.package.package_id


def _surcharge_line(
    customer: Customer, sla_tier: SlaTier, usage: Sequence[InvoiceLine]
) -> InvoiceLine | None:
    by_expert: dict[ExpertId, int] = {}
    for line in usage:
        if line.expert_id is not None:
            amount = by_expert.get(line.expert_id, 0) + line.amount.minor_units
            by_expert[line.expert_id] = amount
    subtotal = Money(sum(by_expert.values()), customer.currency)
    surcharge = permille_of(subtotal, sla_tier.surcharge_permille)
    if not surcharge.minor_units:
        return None
    experts = sorted(by_expert)
    shares = allocate(surcharge.minor_units, [by_expert[expert] for expert in experts])
    return InvoiceLine(
        kind=LineKind.SLA_SURCHARGE,
        description=sla_tier.name,
        amount=surcharge,
        expert_shares=tuple(zip(experts, shares, strict=True)),
    )
