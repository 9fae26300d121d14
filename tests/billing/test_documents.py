"""Invoices as documents: canonical JSON, and a PDF whose text is data and whose bytes repeat."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from billing.documents.json_document import invoice_json
from billing.documents.pdf import font_families, invoice_pdf, pdf_data
from billing.invoicing import FeeDue, UsageSum, draft_invoice
from billing.periods import period_from_label
from billing.types import InvoiceStatus, Money, Package, SlaTier, UsageTotals
from tests.billing.books import a_customer

SHANGHAI = "Asia/Shanghai"


def an_invoice(name="快排科技有限公司", **changes):
    sums = [
        UsageSum(
            "python-algorithm",
            None,
            1204,
            UsageTotals(2_345_678, 912_345, 5, 6),
            9_836_800_123,
            5_000_000_000,
        ),
        UsageSum(
            "contract-law", period_from_label("2026-11", SHANGHAI), 2, UsageTotals(), 25_000_000
        ),
    ]
    draft = draft_invoice(
        invoice_id="0b5c7a1e",
        customer=a_customer(name=name, time_zone=SHANGHAI),
        sla_tier=SlaTier("gold", "Gold", 150),
        period=period_from_label("2026-12", SHANGHAI),
        sums=sums,
        fees=[FeeDue(Package("dev", "开发者套餐", frozenset(), Money(1900, "EUR"), 0))],
        expert_names={"python-algorithm": "Python 算法专家"},
    )
    finalised = {
        "status": InvoiceStatus.FINALISED,
        "number": "EG-2027-000001",
        "issued_on": date(2027, 1, 1),
        "finalized_at": datetime(2026, 12, 31, 17, tzinfo=UTC),
    }
    return replace(draft, **(finalised | changes))


def test_json_is_canonical_and_complete():
    content = invoice_json(an_invoice())
    document = json.loads(content)
    assert content == invoice_json(an_invoice())
    assert content.endswith(b"}\n")
    assert "快排科技".encode() in content
    assert document["total"] == {"minor_units": 13083, "currency": "EUR", "decimal": "130.83"}
    assert document["period"] == {
        "label": "2026-12",
        "start": "2026-11-30T16:00:00Z",
        "end": "2026-12-31T16:00:00Z",
    }
    assert document["lines"][0] == {
        "kind": "usage",
        "description": "Python 算法专家",
        "amount": {"minor_units": 9674, "currency": "EUR", "decimal": "96.74"},
        "expert_id": "python-algorithm",
        "calls": 1204,
        "micropoints": 9_836_800_123,
        "covered_micropoints": 5_000_000_000,
        "charged_micropoints": 4_836_800_123,
        "tokens": {"input": 2_345_678, "output": 912_345, "cached_input": 5, "reasoning": 6},
    }
    assert document["lines"][1]["service_period"]["label"] == "2026-11"
    assert document["lines"][2]["package_id"] == "dev"
    assert document["lines"][3]["expert_shares"] == [
        {"expert_id": "contract-law", "minor_units": 8},
        {"expert_id": "python-algorithm", "minor_units": 1451},
    ]


def test_pdf_is_the_same_bytes_every_time():
    content = invoice_pdf(an_invoice())
    assert content.startswith(b"%PDF-")
    assert content == invoice_pdf(an_invoice())
    assert content != invoice_pdf(an_invoice(number="EG-2027-000002"))


@pytest.mark.parametrize(
    "name",
    [
        '#panic("markup")',
        '#image("/etc/passwd")',
        "$ broken *bold _ [ ] ` \\ @ref <label>",
        '"; #import "@preview/x:1.0.0"',
        "快排科技有限公司",
        "<img src=file:///etc/passwd>",
    ],
)
def test_names_are_printed_never_evaluated(name):
    assert invoice_pdf(an_invoice(name)).startswith(b"%PDF-")
    assert pdf_data(an_invoice(name))["customer_name"] == name


def test_printed_numbers_are_exact():
    data = pdf_data(an_invoice())
    thin = "\u202f"
    first, late, fee, surcharge = data["lines"]
    assert (first["points"], first["covered"], first["charged"]) == (
        f"9{thin}836.800123",
        f"5{thin}000.00",
        f"4{thin}836.800123",
    )
    assert (first["calls"], first["tokens_in"], first["amount"]) == (
        f"1{thin}204",
        f"2{thin}345{thin}678",
        "96.74",
    )
    assert late["note"] == "contract-law · for 2026-11-01 to 2026-11-30"
    assert (fee["points"], fee["amount"], surcharge["amount"]) == ("", "19.00", "14.59")
    assert data["period"] == "2026-12-01 to 2026-12-31 (Asia/Shanghai)"
    assert data["terms"] == (
        "One base point costs 0.02 EUR. The service level gold adds 15 % of the usage subtotal."
    )


def test_drafts_voids_and_cutoffs_say_so():
    draft = pdf_data(an_invoice(status=InvoiceStatus.DRAFT, number=None, issued_on=None))
    assert (draft["title"], draft["number"]) == ("Draft invoice", "not yet numbered")
    assert pdf_data(an_invoice(status=InvoiceStatus.VOID))["is_void"]
    invoice = an_invoice()
    cut = replace(invoice.period, end=datetime(2026, 12, 15, 4, 30, tzinfo=UTC))
    assert pdf_data(replace(invoice, period=cut))["period"] == (
        "2026-12-01 00:00 to 2026-12-15 12:30 (Asia/Shanghai)"
    )
    for one in (an_invoice(status=InvoiceStatus.VOID), replace(invoice, lines=())):
        assert invoice_pdf(one).startswith(b"%PDF-")


def test_some_font_is_always_there(tmp_path):
    assert "Libertinus Serif" in font_families(tmp_path)
