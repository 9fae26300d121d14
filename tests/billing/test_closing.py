"""Closing months on both databases: what is on which invoice, allowances, numbers, voids."""

import threading
from dataclasses import replace

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.catalog import apply_catalog
from billing.closing import finalise, preview, void
from billing.errors import (
    InvalidInput,
    InvoiceImmutable,
    NothingToInvoice,
    PeriodNotOver,
    UnknownRecord,
)
from billing.reconcile import reconcile
from billing.store import schema
from billing.store.checks import read_book_sums
from billing.types import InvoiceStatus, LineKind, Money, SlaTierId, UsageTotals
from tests.billing.books import Books, a_catalog, a_customer, a_document, an_event, at

AFTER = at("2027-01-01T06:00")


@pytest.fixture
def books(database):
    return Books(database).open()


def close(books, label="2026-12", now=AFTER, customer="acme", **more):
    return finalise(books.invoices, customer, label, now, **more)


def lines_of(invoice):
    """Kind, subject, late period, micro-points, covered micro-points, minor units of each line."""
    return [
        (
            line.kind.value,
            line.expert_id or line.package_id,
            line.service_period.label if line.service_period else None,
            line.micropoints,
            line.covered_micropoints,
            line.amount.minor_units,
        )
        for line in invoice.lines
    ]


def agree(books):
    result = reconcile(read_book_sums(books.database))
    assert result.findings == ()
    assert (result.ok, result.difference_micropoints, result.difference_minor_units) == (True, 0, 0)


def test_invoice_has_a_line_per_expert_and_equals_what_is_stored(books):
    books.use(
        an_event("2026-12-01T00:00", tokens=(1500, 0)),
        an_event("2026-12-31T23:59:59.999999", "python-algorithm", (1000, 1000, 100, 10)),
        an_event("2027-01-01T00:00", tokens=(999_999, 0)),
        an_event("2026-12-05T00:00", tokens=(0, 0), billed_calls=0),
    )
    draft = preview(books.invoices, "acme", "2026-12", AFTER)
    invoice = close(books)
    assert lines_of(invoice) == [
        ("usage", "general", None, 1_500_000, 0, 3),
        ("usage", "python-algorithm", None, 8_400_000, 0, 17),
    ]
    assert invoice.lines[1].description == "Python 算法"
    assert invoice.lines[1].usage == UsageTotals(1000, 1000, 100, 10)
    assert (invoice.lines[0].calls, invoice.total) == (1, Money(20, "EUR"))
    assert (invoice.number, invoice.status) == ("EG-2027-000001", InvoiceStatus.FINALISED)
    assert books.invoices.invoice("EG-2027-000001") == invoice
    assert (draft.lines, draft.total, draft.period) == (
        invoice.lines,
        invoice.total,
        invoice.period,
    )
    assert (draft.number, draft.status) == (None, InvoiceStatus.DRAFT)
    agree(books)


def test_closing_twice_returns_the_same_invoice(books):
    books.use(an_event("2026-12-05"))
    invoice = close(books)
    books.use(an_event("2026-12-06"))
    assert close(books, now=at("2027-01-09")) == invoice
    assert len(books.invoices.invoices()) == 1


def test_price_change_inside_a_month_is_billed_at_the_price_of_each_event(books):
    document = a_document()
    document["experts"][0]["rates"]["input_1k"] = 2500
    from billing.catalog import parse_catalog

    apply_catalog(books.accounts, parse_catalog(document).to_catalog({}), at("2026-12-08"))
    books.use(
        an_event("2026-12-02", tokens=(100_000, 0)),
        an_event("2026-12-10", tokens=(100_000, 0), price_version=2),
    )
    assert lines_of(close(books)) == [("usage", "general", None, 350_000_000, 0, 700)]


def test_open_month_needs_a_cutoff(books):
    books.use(an_event("2026-12-05"))
    now = at("2026-12-31T23:59:59")
    with pytest.raises(PeriodNotOver, match="2026-12 ends at 2027-01-01"):
        close(books, now=now)
    with pytest.raises(InvalidInput, match="in the future"):
        close(books, now=at("2026-12-04"), cutoff=at("2026-12-05"))
    with pytest.raises(InvalidInput, match="not in 2026-12"):
        close(books, now=AFTER, cutoff=at("2026-12-01"))
    assert books.invoices.invoices() == []


@pytest.mark.parametrize("label", ["2026-W49", "2026-12-01", "2026-13", "december", "2026-00"])
def test_only_months_are_invoiced(books, label):
    with pytest.raises(InvalidInput, match="period"):
        close(books, label)


def test_nothing_to_invoice_draws_no_number(books):
    with pytest.raises(NothingToInvoice):
        close(books)
    books.use(an_event("2026-12-05"))
    assert close(books).number == "EG-2027-000001"


def test_unknown_customer_is_named(books):
    with pytest.raises(UnknownRecord, match="'nobody'"):
        close(books, customer="nobody")


def test_interim_invoice_and_remainder_bill_everything_and_the_package_once(books):
    books.subscribe()
    books.use(
        an_event("2026-12-02", tokens=(8_000, 0)),
        an_event("2026-12-20", tokens=(8_000, 0)),
    )
    cutoff = at("2026-12-15T12:00")
    interim = close(books, now=cutoff, cutoff=cutoff)
    rest = close(books)
    assert lines_of(interim) == [
        ("usage", "general", None, 8_000_000, 8_000_000, 0),
        ("package_fee", "dev", None, 0, 0, 1900),
    ]
    assert (interim.period.start, interim.period.end) == (at("2026-12-01"), cutoff)
    assert lines_of(rest) == [("usage", "general", None, 8_000_000, 2_000_000, 12)]
    assert (rest.period.start, rest.period.end) == (cutoff, at("2027-01-01"))
    agree(books)


def test_event_late_for_an_interim_invoice_is_a_line_of_its_own_stretch(books):
    books.use(an_event("2026-12-02"))
    cutoff = at("2026-12-15")
    close(books, now=cutoff, cutoff=cutoff)
    books.use(an_event("2026-12-03", tokens=(3000, 0)), an_event("2026-12-20"))
    invoice = close(books)
    assert [(item[2], item[3]) for item in lines_of(invoice)] == [
        (None, 1_000_000),
        ("2026-12", 3_000_000),
    ]
    late = invoice.lines[1].service_period
    assert (late.start, late.end) == (at("2026-12-01"), cutoff)
    agree(books)


def test_late_usage_goes_on_the_next_invoice_with_its_own_month_and_allowance(books):
    books.subscribe()
    books.use(an_event("2026-11-03", tokens=(7_000, 0)))
    november = close(books, "2026-11", at("2026-12-01"))
    books.use(
        an_event("2026-11-30T23:00", tokens=(5_000, 0)),
        an_event("2026-12-01", tokens=(1_000, 0)),
    )
    december = close(books)
    assert lines_of(november) == [
        ("usage", "general", None, 7_000_000, 7_000_000, 0),
        ("package_fee", "dev", None, 0, 0, 1900),
    ]
    assert lines_of(december) == [
        ("usage", "general", None, 1_000_000, 1_000_000, 0),
        ("usage", "general", "2026-11", 5_000_000, 3_000_000, 4),
        ("package_fee", "dev", None, 0, 0, 1900),
    ]
    agree(books)


def test_month_that_was_never_closed_owes_its_fee_with_its_usage(books):
    books.subscribe("2026-10-15")
    books.use(an_event("2026-11-03"), an_event("2026-12-03"))
    assert [item[:3] for item in lines_of(close(books))] == [
        ("usage", "general", None),
        ("usage", "general", "2026-11"),
        ("package_fee", "dev", None),
        ("package_fee", "dev", "2026-11"),
    ]
    agree(books)


def test_allowance_covers_in_order_of_use_and_splits_the_event_that_exhausts_it(books):
    books.subscribe()
    books.use(
        an_event("2026-12-03", tokens=(4_000, 0), event_id="c"),
        an_event("2026-12-02", "python-algorithm", (3_500, 0), event_id="b"),
        an_event("2026-12-04", tokens=(1_000, 0), event_id="d"),
        an_event("2026-12-01", "contract-law", (9, 9), event_id="a"),
    )
    invoice = close(books)
    assert lines_of(invoice) == [
        ("usage", "contract-law", None, 500_000, 0, 1),
        ("usage", "general", None, 5_000_000, 3_000_000, 4),
        ("usage", "python-algorithm", None, 7_000_000, 7_000_000, 0),
        ("package_fee", "dev", None, 0, 0, 1900),
    ]
    table = schema.usage_lines.c
    with books.database.reading() as connection:
        query = sa.select(table.event_id, table.covered_micropoints).order_by(table.event_id)
        assert [tuple(row) for row in connection.execute(query)] == [
            ("a", 0),
            ("b", 7_000_000),
            ("c", 3_000_000),
            ("d", 0),
        ]
    agree(books)


def test_usage_before_the_subscription_is_not_covered_but_the_fee_is_whole(books):
    books.subscribe("2026-12-10T00:00")
    books.use(an_event("2026-12-09T23:59:59.999999"), an_event("2026-12-10T00:00"))
    assert lines_of(close(books)) == [
        ("usage", "general", None, 2_000_000, 1_000_000, 2),
        ("package_fee", "dev", None, 0, 0, 1900),
    ]
    agree(books)


def test_package_cancelled_and_taken_again_in_a_month_is_paid_once(books):
    books.subscribe("2026-12-01", name="one", end="2026-12-05")
    books.subscribe("2026-12-10", name="two")
    books.use(
        an_event("2026-12-02", tokens=(6_000, 0)),
        an_event("2026-12-07", tokens=(1_000, 0)),
        an_event("2026-12-12", tokens=(6_000, 0)),
    )
    assert lines_of(close(books)) == [
        ("usage", "general", None, 13_000_000, 10_000_000, 6),
        ("package_fee", "dev", None, 0, 0, 1900),
    ]


def test_subscription_that_ended_before_the_month_charges_nothing(books):
    books.subscribe("2026-10-01", end="2026-12-01T00:00")
    books.use(an_event("2026-12-02"))
    assert lines_of(close(books)) == [("usage", "general", None, 1_000_000, 0, 2)]


def test_surcharge_is_one_line_on_the_rounded_usage_split_over_experts(database):
    books = Books(database).open(a_customer(sla_tier_id=SlaTierId("gold")))
    books.use(
        an_event("2026-12-02", tokens=(11_500, 0)),
        an_event("2026-12-02", "python-algorithm", (5_750, 0)),
        *[an_event("2026-12-02", "contract-law") for _ in range(23)],
    )
    invoice = close(books)
    surcharge = invoice.lines[-1]
    assert [line.amount.minor_units for line in invoice.lines] == [23, 23, 23, 10]
    assert (surcharge.kind, surcharge.description) == (LineKind.SLA_SURCHARGE, "Gold")
    assert surcharge.expert_shares == (
        ("contract-law", 4),
        ("general", 3),
        ("python-algorithm", 3),
    )
    assert invoice.total == Money(79, "EUR")
    agree(books)


def test_month_begins_in_the_customers_time_zone(database):
    books = Books(database).open(a_customer(time_zone="Asia/Shanghai"))
    books.use(
        an_event("2026-11-30T15:59:59.999999", event_id="november"),
        an_event("2026-11-30T16:00", event_id="december"),
    )
    invoice = close(books, "2026-12", at("2026-12-31T16:00"))
    assert [(item[2], item[3]) for item in lines_of(invoice)] == [
        (None, 1_000_000),
        ("2026-11", 1_000_000),
    ]
    assert (invoice.issued_on.isoformat(), invoice.number) == ("2027-01-01", "EG-2027-000001")


def test_yen_have_no_minor_unit(database):
    books = Books(database).open(
        a_customer(currency="JPY", point_price_micros=3_000_000), packages=[]
    )
    books.use(an_event("2026-12-02", tokens=(1_500, 0)))
    assert close(books).total == Money(5, "JPY")
    agree(books)


def test_void_frees_the_usage_and_keeps_the_number(books):
    books.subscribe()
    books.use(an_event("2026-12-02", tokens=(12_000, 0)))
    first = close(books)
    voided = void(books.invoices, first.number, at("2027-01-02"))
    assert voided == replace(first, status=InvoiceStatus.VOID)
    assert books.invoices.invoice(first.invoice_id) == voided
    agree(books)
    again = close(books, now=at("2027-01-03"))
    assert (again.lines, again.total) == (first.lines, first.total)
    assert [item.number for item in books.invoices.invoices()] == [
        "EG-2027-000001",
        "EG-2027-000002",
    ]
    with pytest.raises(InvoiceImmutable, match="void already"):
        void(books.invoices, first.number, at("2027-01-04"))
    agree(books)


def test_interim_invoice_can_not_be_voided_under_a_later_one(books):
    books.use(an_event("2026-12-02"), an_event("2026-12-20"))
    cutoff = at("2026-12-15")
    interim = close(books, now=cutoff, cutoff=cutoff)
    rest = close(books)
    with pytest.raises(InvoiceImmutable, match=f"void {rest.number} first"):
        void(books.invoices, interim.number, AFTER)
    void(books.invoices, rest.number, AFTER)
    void(books.invoices, interim.number, AFTER)
    assert lines_of(close(books))[0][3] == 2_000_000
    agree(books)


def test_numbers_are_gapless_under_concurrent_closings_and_failures(database):
    names = [f"c{index:02d}" for index in range(12)]
    books = Books(database).open(*(a_customer(name) for name in names))
    books.use(*[an_event("2026-12-02", customer=name) for name in names[:9]])
    numbers, failures = [], []

    def run(part):
        for name in part:
            try:
                numbers.append(close(books, customer=name).number)
            except NothingToInvoice:
                failures.append(name)

    threads = [threading.Thread(target=run, args=(names[start::3],)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == [f"EG-2027-{number:06d}" for number in range(1, 10)]
    assert sorted(failures) == names[9:]
    agree(books)


def test_same_customer_closed_by_two_at_once_gets_one_invoice(books):
    books.use(*[an_event("2026-12-02") for _ in range(50)])
    found = []
    threads = [threading.Thread(target=lambda: found.append(close(books))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({invoice.invoice_id for invoice in found}) == 1
    assert len(found) == 4
    agree(books)


def test_usage_recorded_while_closing_is_on_one_invoice_or_open(books):
    books.use(*[an_event("2026-12-02") for _ in range(200)])
    stop = threading.Event()
    recorded = []

    def record():
        while not stop.is_set():
            recorded.extend(books.use(*[an_event("2026-12-03") for _ in range(5)]))

    thread = threading.Thread(target=record)
    thread.start()
    invoice = close(books)
    stop.set()
    thread.join()
    later = preview(books.invoices, "acme", "2027-01", AFTER)
    calls = sum(line.calls for line in (*invoice.lines, *later.lines))
    assert calls == 200 + len(recorded)
    agree(books)


def test_package_dropped_from_the_catalog_is_still_billed_for_its_last_month(books):
    books.subscribe("2026-12-01", end="2026-12-20")
    apply_catalog(books.accounts, a_catalog(packages=[]), at("2026-12-21"))
    books.use(an_event("2026-12-02"))
    assert lines_of(close(books))[-1] == ("package_fee", "dev", None, 0, 0, 1900)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 28),
            st.sampled_from(["general", "python-algorithm", "contract-law"]),
            st.integers(0, 5_000),
        ),
        max_size=15,
    ),
    st.lists(st.integers(2, 27), max_size=3, unique=True),
    st.booleans(),
)
def test_any_cutoffs_bill_every_point_once(
    sqlite_template, tmp_path_factory, uses, days, has_package
):
    import shutil

    from billing.store.engine import open_database

    path = tmp_path_factory.mktemp("cut") / "books.sqlite"
    shutil.copy(sqlite_template, path)
    with open_database(f"sqlite:///{path}") as database:
        books = Books(database).open(a_customer(sla_tier_id=SlaTierId("gold")))
        if has_package:
            books.subscribe("2026-12-04")
        books.use(
            *[an_event(f"2026-12-{day:02d}", expert, (tokens, 0)) for day, expert, tokens in uses]
        )
        whole = preview(books.invoices, "acme", "2026-12", AFTER)
        invoices = []
        for day in sorted(days):
            cutoff = at(f"2026-12-{day:02d}T12:00")
            try:
                invoices.append(close(books, now=cutoff, cutoff=cutoff))
            except NothingToInvoice:
                continue
        try:
            invoices.append(close(books))
        except NothingToInvoice:
            assert not whole.lines or invoices
        lines = [line for invoice in invoices for line in invoice.lines]
        for name in ("micropoints", "covered_micropoints"):
            assert sum(getattr(line, name) for line in lines) == sum(
                getattr(line, name) for line in whole.lines
            )
        fees = [line.amount for line in lines if line.kind is LineKind.PACKAGE_FEE]
        assert fees == ([Money(1900, "EUR")] if has_package else [])
        agree(books)
