"""The ledger store: once in the books, whatever is delivered how often; on both databases."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.errors import StoreUnavailable
from billing.store import schema
from billing.store.engine import open_database
from billing.store.event_rows import event_content, event_from_content
from billing.types import PriceVersion, UsageStatus
from tests.billing.books import Books, a_customer, an_event, an_expert, at


@pytest.fixture
def books(database):
    return Books(database).open(a_customer(), a_customer("beta"))


def rows(database, table, *order):
    with database.reading() as connection:
        return connection.execute(sa.select(table).order_by(*order)).all()


def test_event_is_rated_exactly_and_booked_twice_over(books):
    event = an_event("2026-12-05T10:00", "python-algorithm", (1537, 100, 37, 10))
    assert books.use(event) == [event.intent.event_id]
    # 1500 × 2000 + 37 × 2000 + 90 × 6400 + 10 × 6400
    cost = 3_714_000
    (line,) = rows(books.database, schema.usage_lines)
    assert (line.expert_id, line.price_version, line.micropoints) == ("python-algorithm", 1, cost)
    assert (line.invoice_id, line.covered_micropoints, line.billed_calls) == (None, 0, 1)
    entries = rows(books.database, schema.ledger_entries, schema.ledger_entries.c.entry_index)
    assert [(entry.account, entry.amount) for entry in entries] == [
        ("accrued/acme", cost),
        ("expert/python-algorithm", -cost),
    ]
    (rated,) = books.ledger.usage()
    assert (rated.event, rated.micropoints) == (event, cost)


def test_same_event_twice_is_billed_once(books):
    event = an_event("2026-12-05T10:00")
    assert books.use(event, event) == [event.intent.event_id]
    assert books.use(event) == []
    assert len(rows(books.database, schema.usage_lines)) == 1
    assert books.ledger.quarantined() == []


def test_same_id_with_other_content_is_quarantined_and_the_batch_goes_on(books):
    first = an_event("2026-12-05T10:00", event_id="e1")
    forged = an_event("2026-12-05T10:00", event_id="e1", tokens=(9000, 0))
    other = an_event("2026-12-05T10:00", event_id="e2")
    assert books.use(first) == ["e1"]
    assert books.use(forged, other) == ["e2"]
    assert books.use(forged) == []
    (kept,) = books.ledger.quarantined()
    assert (kept.event_id, kept.reason, kept.journal_id) == ("e1", "conflict", "journal")
    assert [item.micropoints for item in books.ledger.usage()] == [1_000_000, 1_000_000]


def test_conflict_inside_one_batch_is_quarantined(books):
    first = an_event("2026-12-05T10:00", event_id="e1")
    forged = an_event("2026-12-05T10:00", event_id="e1", tokens=(9000, 0))
    assert books.use(first, forged, first) == ["e1"]
    assert [item.event_id for item in books.ledger.quarantined()] == ["e1"]


def test_unpriced_and_unknown_are_quarantined_then_booked_once_known(books):
    unpriced = an_event("2026-12-05T10:00", "nobody", event_id="e1")
    stranger = an_event("2026-12-05T10:00", customer="gamma", event_id="e2")
    assert books.use(unpriced, stranger, an_event("2026-12-05T10:00", event_id="e3")) == ["e3"]
    assert {(item.event_id, item.reason) for item in books.ledger.quarantined()} == {
        ("e1", "unpriced"),
        ("e2", "unknown_customer"),
    }
    assert books.ledger.retry_quarantined() == []
    books.accounts.add_customer(a_customer("gamma"), now=at("2026-12-06"), actor="test")
    assert books.ledger.retry_quarantined() == ["e2"]
    assert [item.event_id for item in books.ledger.quarantined()] == ["e1"]


def test_price_is_that_of_the_version_named_by_the_event(books):
    from billing.catalog import apply_catalog
    from tests.billing.books import a_catalog

    dearer = a_catalog(
        experts=[
            an_expert("general", 1, input_1k=2500),
            an_expert("python-algorithm", 387, input_1k=2000, output_1k=6400, name="Python 算法"),
            an_expert("contract-law", 512, per_call=500, input_1k=0, output_1k=0),
        ]
    )
    apply_catalog(books.accounts, dearer, at("2026-05-08"))
    books.use(
        an_event("2026-05-02", tokens=(100_000, 0)),
        an_event("2026-05-10", tokens=(100_000, 0), price_version=PriceVersion(2)),
    )
    assert [item.micropoints for item in books.ledger.usage()] == [100_000_000, 250_000_000]


def test_uncharged_request_has_a_line_and_no_transfer(books):
    books.use(
        an_event("2026-12-05", tokens=(0, 0), billed_calls=0, status=UsageStatus.BACKEND_ERROR)
    )
    assert [line.micropoints for line in rows(books.database, schema.usage_lines)] == [0]
    assert rows(books.database, schema.ledger_transfers) == []


def test_cursor_moves_with_the_events_and_never_back(books):
    assert books.ledger.cursor("worker-0") == 0
    books.ledger.record_events([], journal_id="worker-0", position=70)
    books.ledger.record_events([an_event("2026-12-05")], journal_id="worker-0", position=50)
    assert (books.ledger.cursor("worker-0"), books.ledger.cursor("worker-1")) == (70, 0)


def test_failure_leaves_neither_events_nor_cursor(books):
    hostile = an_event("2026-12-05", event_id="e1")
    broken = replace(hostile, outcome=replace(hostile.outcome, delivered_bytes=-(2**63) * 4))
    with pytest.raises((OverflowError, StoreUnavailable, sa.exc.DBAPIError)):
        books.ledger.record_events([broken], journal_id="worker-0", position=9)
    assert books.ledger.cursor("worker-0") == 0
    assert rows(books.database, schema.usage_events) == []


def test_batches_over_the_statement_bound_are_whole(books):
    events = [an_event("2026-12-05") for _ in range(2_345)]
    assert books.use(*events) == [event.intent.event_id for event in events]
    assert sum(item.micropoints for item in books.ledger.usage()) == 2_345_000_000


def test_spent_since_sums_by_key_from_the_instant_on(books):
    books.use(
        an_event("2026-11-30T23:59:59.999999"),
        an_event("2026-12-01T00:00", key_id="k1"),
        an_event("2026-12-02T00:00", key_id="k1"),
        an_event("2026-12-02T00:00", key_id="k2", customer="beta", tokens=(3000, 0)),
    )
    assert books.ledger.spent_since(at("2026-12-01")) == [
        ("acme", "k1", 2_000_000),
        ("beta", "k2", 3_000_000),
    ]


def test_usage_is_listed_in_order_by_customer_and_time(books):
    late = an_event("2026-12-09", event_id="a")
    early = an_event("2026-12-01", event_id="b")
    books.use(late, early, an_event("2026-12-05", customer="beta"))
    assert [item.event for item in books.ledger.usage(customer_id="acme")] == [early, late]
    found = books.ledger.usage(customer_id="acme", start=at("2026-12-01"), end=at("2026-12-09"))
    assert [item.event for item in found] == [early]


def test_usage_pages_do_not_skip_events_of_one_instant(books):
    events = [an_event("2026-12-05") for _ in range(2_100)]
    books.use(*events)
    found = {item.event.intent.event_id for item in books.ledger.usage()}
    assert found == {event.intent.event_id for event in events}


def test_event_content_is_canonical_and_comes_back():
    event = an_event("2026-12-05T10:00:00.000001+01:00", tokens=(10, 5, 1, 2))
    content = event_content(event)
    assert json.loads(content)["intent"]["occurred_at"] == 1_796_461_200_000_001
    assert event_from_content(content) == event
    moved = replace(
        event, intent=replace(event.intent, occurred_at=event.intent.occurred_at.astimezone(UTC))
    )
    assert event_content(moved) == content


def test_unreachable_store_is_named_as_such(tmp_path):
    path = tmp_path / "file" / "books.sqlite"
    path.parent.mkdir()
    path.mkdir()
    with (
        open_database(f"sqlite:///{path}") as database,
        pytest.raises(StoreUnavailable, match="can't be used"),
        database.reading(),
    ):
        pass


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_order_and_batching_gives_the_same_books(tmp_path_factory, sqlite_template, data):
    import shutil

    events = [
        an_event(
            datetime(2026, 12, 1 + n % 28, tzinfo=UTC), tokens=(n * 7, n), event_id=f"e{n:02d}"
        )
        for n in range(12)
    ]
    delivered = data.draw(st.permutations(events + events[:5]))
    size = data.draw(st.integers(1, 20))
    path = tmp_path_factory.mktemp("any") / "books.sqlite"
    shutil.copy(sqlite_template, path)
    with open_database(f"sqlite:///{path}") as database:
        books = Books(database).open()
        for start in range(0, len(delivered), size):
            books.use(*delivered[start : start + size])
        found = [(item.event.intent.event_id, item.micropoints) for item in books.ledger.usage()]
    assert found == [(f"e{n:02d}", n * 7 * 1000 + n * 2000) for n in range(12)]
