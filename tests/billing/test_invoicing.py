"""Drafting invoices: order of lines, one rounding per line, the surcharge and its shares."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import InvalidInput
from billing.invoicing import FeeDue, UsageSum, draft_invoice
from billing.periods import period_from_label
from billing.types import InvoiceStatus, LineKind, Money, Package, SlaTier, UsageTotals
from tests.billing.books import a_customer

DECEMBER = period_from_label("2026-12", "UTC")
NOVEMBER = period_from_label("2026-11", "UTC")
PACKAGE = Package("dev", "Developer", frozenset(), Money(1900, "EUR"), 0)


def a_sum(expert, micropoints, covered=0, late=None, calls=1):
    return UsageSum(expert, late, calls, UsageTotals(), micropoints, covered)


def a_draft(*sums, permille=0, fees=(), customer=None):
    return draft_invoice(
        invoice_id="i",
        customer=customer or a_customer(),
        sla_tier=SlaTier("tier", "Tier", permille),
        period=DECEMBER,
        sums=sums,
        fees=fees,
        expert_names={"a": "Expert A"},
    )


def test_lines_are_ordered_and_named():
    invoice = a_draft(
        a_sum("b", 10**6),
        a_sum("a", 10**6, late=NOVEMBER),
        a_sum("a", 10**6),
        fees=[FeeDue(PACKAGE, NOVEMBER), FeeDue(PACKAGE)],
        permille=150,
    )
    assert [(line.kind.value, line.description, line.service_period) for line in invoice.lines] == [
        ("usage", "Expert A", None),
        ("usage", "b", None),
        ("usage", "Expert A", NOVEMBER),
        ("package_fee", "Developer", None),
        ("package_fee", "Developer", NOVEMBER),
        ("sla_surcharge", "Tier", None),
    ]
    assert (invoice.status, invoice.number, invoice.period) == (
        InvoiceStatus.DRAFT,
        None,
        DECEMBER,
    )


@pytest.mark.parametrize(
    ("micropoints", "covered", "minor_units"),
    [
        (249_999, 0, 0),
        (250_000, 0, 1),
        (749_999, 0, 1),
        (750_000, 0, 2),
        (5_000_000, 4_750_000, 1),
        (5_000_000, 5_000_000, 0),
    ],
)
def test_line_is_rounded_once_half_away_from_zero(micropoints, covered, minor_units):
    (line,) = a_draft(a_sum("a", micropoints, covered)).lines
    assert line.amount == Money(minor_units, "EUR")
    assert (line.micropoints, line.covered_micropoints) == (micropoints, covered)


def test_surcharge_is_on_the_rounded_subtotal_not_on_each_line():
    invoice = a_draft(*(a_sum(name, 11_500_000) for name in "cab"), permille=150)
    surcharge = invoice.lines[-1]
    assert surcharge.amount == Money(10, "EUR")
    assert surcharge.expert_shares == (("a", 4), ("b", 3), ("c", 3))
    assert invoice.total == Money(79, "EUR")


def test_surcharge_leaves_fees_alone_and_counts_late_usage():
    invoice = a_draft(a_sum("a", 50_000_000, late=NOVEMBER), fees=[FeeDue(PACKAGE)], permille=150)
    assert invoice.lines[-1].amount == Money(15, "EUR")


def test_no_surcharge_line_when_it_is_zero():
    assert all(
        line.kind is not LineKind.SLA_SURCHARGE
        for line in (*a_draft(a_sum("a", 10**6), permille=1).lines, *a_draft(permille=150).lines)
    )


def test_usage_that_is_nothing_has_no_line_but_a_free_call_has():
    assert a_draft(a_sum("a", 0, calls=0)).lines == ()
    assert len(a_draft(a_sum("a", 0, calls=1)).lines) == 1


def test_fee_in_another_currency_is_refused():
    foreign = replace(PACKAGE, monthly_fee=Money(1900, "USD"))
    with pytest.raises(InvalidInput, match="USD, the customer pays EUR"):
        a_draft(fees=[FeeDue(foreign)])


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 10**12), st.integers(0, 100)),
        max_size=8,
        unique_by=lambda raw: raw[0],
    ),
    st.integers(0, 1000),
    st.integers(0, 10**7),
)
def test_total_is_the_sum_of_lines_and_shares_sum_to_the_surcharge(raw, permille, price_micros):
    sums = [a_sum(name, points, points * share // 100) for name, points, share in raw]
    invoice = a_draft(
        *sums, permille=permille, customer=a_customer(point_price_micros=price_micros)
    )
    assert invoice.total.minor_units == sum(line.amount.minor_units for line in invoice.lines)
    for line in invoice.lines:
        if line.kind is LineKind.SLA_SURCHARGE:
            assert sum(share for _, share in line.expert_shares) == line.amount.minor_units
