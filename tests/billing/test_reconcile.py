"""Reconciliation finds every kind of damage, made in the raw tables of both databases."""

import pytest
import sqlalchemy as sa

from billing.closing import finalise
from billing.reconcile import reconcile
from billing.store.checks import read_book_sums
from billing.types import SlaTierId
from tests.billing.books import Books, a_customer, an_event, at


@pytest.fixture
def books(database):
    books = Books(database).open(a_customer(sla_tier_id=SlaTierId("gold")))
    books.subscribe()
    books.use(
        an_event("2026-12-02", tokens=(12_000, 30_000), event_id="e1"),
        an_event("2026-12-03", "contract-law", event_id="e2"),
        an_event("2027-01-02", event_id="e3"),
    )
    finalise(books.invoices, "acme", "2026-12", at("2027-01-01"))
    return books


def damage(books, *statements):
    with books.database.writing() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def test_undamaged_books_agree(books):
    result = reconcile(read_book_sums(books.database))
    assert (result.ok, result.findings) == (True, ())
    assert (result.event_count, result.invoice_count) == (3, 1)


@pytest.mark.parametrize(
    ("statement", "checks", "micropoints", "minor_units"),
    [
        (
            "UPDATE usage_lines SET micropoints = micropoints + 1 WHERE event_id = 'e2'",
            {"lines are rated right", "balances equal their rows", "invoices equal their usage"},
            3,
            0,
        ),
        (
            "UPDATE usage_lines SET micropoints = micropoints + 5 WHERE event_id = 'e3'",
            {"lines are rated right", "balances equal their rows"},
            15,
            0,
        ),
        (
            "UPDATE usage_events SET input_tokens = input_tokens + 1 WHERE event_id = 'e1'",
            {"lines are rated right"},
            1000,
            0,
        ),
        (
            "DELETE FROM usage_lines WHERE event_id = 'e3'",
            {"every event has a line", "lines are rated right", "balances equal their rows"},
            3_000_000,
            0,
        ),
        (
            (
                "UPDATE ledger_entries SET amount = amount + 7 WHERE account = 'accrued/acme'"
                " AND transfer_id = 'usage/e3'"
            ),
            {"transfers sum to zero", "balances equal their rows"},
            7,
            0,
        ),
        (
            "DELETE FROM ledger_entries WHERE transfer_id = 'usage/e3'",
            {"transfers sum to zero", "balances equal their rows"},
            2_000_000,
            0,
        ),
        (
            "UPDATE invoice_lines SET amount_minor_units = amount_minor_units + 2 WHERE line_index = 0",
            {"amounts follow from points"},
            0,
            4,
        ),
        (
            "UPDATE invoices SET total_minor_units = total_minor_units - 3",
            {"amounts follow from points", "balances equal their rows"},
            0,
            6,
        ),
        (
            "UPDATE invoice_lines SET amount_minor_units = 0 WHERE kind = 'sla_surcharge'",
            {"amounts follow from points"},
            0,
            None,
        ),
        (
            "UPDATE allowance_draws SET micropoints = micropoints - 9",
            {"cover equals draws"},
            9,
            0,
        ),
        ("UPDATE invoice_counters SET last_number = 3", {"numbers have no gap"}, 0, 0),
        (
            "INSERT INTO event_conflicts VALUES ('e9', 'd', 'conflict', '{}', 'j', 1, 1)",
            {"nothing is quarantined"},
            0,
            0,
        ),
    ],
)
def test_damage_is_found_and_measured(books, statement, checks, micropoints, minor_units):
    damage(books, statement)
    result = reconcile(read_book_sums(books.database))
    assert not result.ok
    assert {finding.check for finding in result.findings} == checks
    assert result.difference_micropoints == micropoints
    if minor_units is not None:
        assert result.difference_minor_units == minor_units


def test_opposite_mistakes_do_not_cancel(books):
    damage(
        books,
        "UPDATE usage_lines SET micropoints = micropoints + 5 WHERE event_id = 'e1'",
        "UPDATE usage_lines SET micropoints = micropoints - 5 WHERE event_id = 'e2'",
    )
    result = reconcile(read_book_sums(books.database))
    assert not result.ok
    assert result.difference_micropoints >= 10


def test_empty_books_agree(database):
    result = reconcile(read_book_sums(database))
    assert (result.ok, result.event_count, result.invoice_count) == (True, 0, 0)
