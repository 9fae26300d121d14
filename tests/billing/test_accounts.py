"""Accounts on both databases: validation, keys, subscriptions, epoch and audit log."""

from dataclasses import replace

import pytest

from billing import accounts
from billing.errors import DuplicateRecord, InvalidInput, UnknownRecord
from billing.keys import is_well_formed, key_digest
from billing.types import Project
from tests.billing.books import BEFORE, Books, a_customer, at

PEPPER = b"p" * 32


@pytest.fixture
def books(database):
    return Books(database).open(a_customer(), a_customer("beta", budget=5))


def new_key(books, **changes):
    values = {
        "customer_id": "acme",
        "name": "ci",
        "pepper": PEPPER,
        "random_bytes": bytes(range(32)),
        "key_id": "key-1",
        "now": BEFORE,
        "actor": "mei",
    } | changes
    return accounts.create_key(books.accounts, **values)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"customer_id": "Acme"}, "customer_id"),
        ({"customer_id": "a/b"}, "customer_id"),
        ({"customer_id": ""}, "customer_id"),
        ({"customer_id": "a" * 65}, "customer_id"),
        ({"name": "  "}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"currency": "EURO"}, "currency"),
        ({"currency": "XAU"}, "currency"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"time_zone": "../etc"}, "time_zone"),
        ({"point_price_micros": -1}, "point_price"),
        ({"budget": -1}, "budget"),
        ({"budget": 2**63}, "budget"),
    ],
)
def test_invalid_terms_are_named_and_not_stored(books, changes, field):
    with pytest.raises(InvalidInput) as caught:
        accounts.create_customer(
            books.accounts, replace(a_customer("new"), **changes), now=BEFORE, actor="mei"
        )
    assert caught.value.field == field
    assert len(books.accounts.customers()) == 2


def test_customers_come_back_whole(books):
    assert books.accounts.customers() == [a_customer(), a_customer("beta", budget=5)]
    assert books.accounts.customer("beta").budget == 5


def test_taken_and_unknown_ids_are_refused(books):
    epoch = books.accounts.epoch()
    with pytest.raises(DuplicateRecord, match="'acme'"):
        books.accounts.add_customer(a_customer(), now=BEFORE, actor="mei")
    with pytest.raises(UnknownRecord, match="'platinum'"):
        books.accounts.add_customer(
            a_customer("new", sla_tier_id="platinum"), now=BEFORE, actor="mei"
        )
    with pytest.raises(UnknownRecord, match="'nobody'"):
        books.accounts.add_project(Project("p", "nobody", "P"), now=BEFORE, actor="mei")
    with pytest.raises(UnknownRecord, match="'beta-default'"):
        new_key(books, project_id="beta-default")
    assert books.accounts.epoch() == epoch


def test_budget_can_be_set_and_lifted(books):
    changed = accounts.set_budget(books.accounts, "acme", 7, now=BEFORE, actor="mei")
    assert changed == books.accounts.customer("acme") == a_customer(budget=7)
    accounts.set_budget(books.accounts, "acme", None, now=BEFORE, actor="mei")
    assert books.accounts.customer("acme").budget is None


def test_currency_of_a_customer_stays(books):
    with pytest.raises(DuplicateRecord, match="EUR"):
        books.accounts.change_customer(a_customer(currency="USD"), now=BEFORE, actor="mei")


def test_key_is_stored_as_digest_only(books):
    key, text = new_key(books)
    assert is_well_formed(text)
    (stored,) = books.accounts.keys()
    assert stored == key
    assert (stored.digest, stored.last_four) == (key_digest(PEPPER, text), text[-4:])
    assert text not in repr(books.accounts.audit_entries())
    assert stored.digest not in repr(books.accounts.audit_entries())
    assert stored.digest not in repr(stored)
    with pytest.raises(DuplicateRecord):
        new_key(books, key_id="key-2")


def test_default_project_is_made_when_there_is_none(books):
    books.accounts.add_customer(a_customer("new"), now=BEFORE, actor="mei")
    key, _ = new_key(books, customer_id="new")
    assert key.project_id == "new-default"
    assert books.accounts.projects("new") == [Project("new-default", "new", "Default")]
    with pytest.raises(UnknownRecord):
        new_key(books, customer_id="nobody", random_bytes=b"x" * 32, key_id="k")


def test_revoking_keeps_the_first_instant(books):
    new_key(books)
    revoked = books.accounts.revoke_key("key-1", now=at("2026-02-01"), actor="mei")
    again = books.accounts.revoke_key("key-1", now=at("2026-03-01"), actor="mei")
    assert revoked.revoked_at == again.revoked_at == at("2026-02-01")
    with pytest.raises(UnknownRecord, match="'key-9'"):
        books.accounts.revoke_key("key-9", now=BEFORE, actor="mei")


def test_subscription_starts_once_and_ends(books):
    subscription = accounts.start_subscription(
        books.accounts,
        subscription_id="s1",
        customer_id="acme",
        package_id="dev",
        started_at=BEFORE,
        now=BEFORE,
        actor="mei",
    )
    assert books.accounts.subscriptions() == [subscription]
    with pytest.raises(DuplicateRecord, match="'s1'"):
        books.subscribe("2026-02-01", name="s2")
    with pytest.raises(UnknownRecord, match="'s1'"):
        books.accounts.end_subscription("s1", at=at("2025-01-01"), now=BEFORE, actor="mei")
    ended = books.accounts.end_subscription("s1", at=at("2026-03-01"), now=BEFORE, actor="mei")
    assert ended.ended_at == at("2026-03-01")
    books.subscribe("2026-03-01", name="s2")
    assert len(books.accounts.subscriptions()) == 2


def test_package_must_exist_in_the_customers_currency(books):
    with pytest.raises(UnknownRecord, match="'nothing'"):
        books.subscribe(package="nothing")
    books.accounts.add_customer(a_customer("us", currency="USD"), now=BEFORE, actor="mei")
    with pytest.raises(UnknownRecord, match="sold in USD"):
        books.subscribe(customer="us")


def test_every_change_moves_the_epoch_and_leaves_an_audit_entry(books):
    before, entries = books.accounts.epoch(), len(books.accounts.audit_entries())
    new_key(books)
    books.subscribe()
    assert books.accounts.epoch() == before + 2
    newest = books.accounts.audit_entries()
    assert len(newest) == entries + 2
    assert [(item.action, item.record_kind, item.record_id) for item in newest[:2]] == [
        ("start", "subscription", "sub-1"),
        ("create", "key", "key-1"),
    ]


@pytest.mark.parametrize(
    ("text", "micros"), [("0.02", 20_000), ("12", 12_000_000), ("0.000001", 1), ("0", 0)]
)
def test_decimal_text_is_exact(text, micros):
    assert accounts.micros_from_text("price", text) == micros


@pytest.mark.parametrize("text", ["", "-1", "1e3", "0.0000001", "1,5", ".5", "nan", "1" * 14])
def test_other_text_is_not_a_number(text):
    with pytest.raises(InvalidInput, match="price"):
        accounts.micros_from_text("price", text)
