"""Which limits a request counts against, and where they stand after a start."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from billing.errors import BudgetExceeded
from billing.holds import HoldBook, allowance_scope, customer_scope, key_scope
from billing.types import (
    ApiKey,
    Customer,
    CustomerId,
    EventId,
    KeyId,
    MicroPoints,
    Money,
    OverageRule,
    Package,
    PackageId,
    ProjectId,
    SlaTierId,
    Subscription,
    SubscriptionId,
)
from gateway.accounts import read_accounts
from gateway.limits import load_spent, scopes_of, set_limits
from routing_engine.types import ExpertId
from tests.fakes import FakeAccountsStore

NOW = datetime(2026, 12, 1, 2, tzinfo=UTC)
HERE, THERE = CustomerId("here"), CustomerId("there")
TIER = SlaTierId("standard")


def store(**overrides):
    rows = {
        "customer_rows": [
            Customer(HERE, "Here", "EUR", 1, TIER, budget=MicroPoints(1_000)),
            # In this zone it is still November at NOW.
            Customer(THERE, "There", "EUR", 1, TIER, time_zone="America/New_York"),
        ],
        "key_rows": [
            ApiKey(KeyId(name), customer_id, ProjectId("p"), name, f"digest of {name}", "", NOW,
                   budget=budget)
            for name, customer_id, budget in (
                ("k", HERE, MicroPoints(400)), ("l", HERE, None), ("m", THERE, None),
            )
        ],
        "package_rows": [
            Package(PackageId(rule), rule, frozenset({ExpertId("e")}), Money(0, "EUR"),
                    MicroPoints(300), rule)
            for rule in OverageRule
        ],
        "subscription_rows": [
            Subscription(SubscriptionId(f"s-{rule}"), HERE, PackageId(rule), NOW)
            for rule in OverageRule
        ],
    }  # fmt: skip
    return FakeAccountsStore(**{**rows, **overrides})


def principal(accounts, key):
    return accounts.principals[f"digest of {key}"]


def test_a_request_counts_against_customer_key_and_the_packages_that_refuse():
    accounts = read_accounts(store(), NOW)
    assert scopes_of(principal(accounts, "k"), accounts) == (
        customer_scope(HERE), key_scope(KeyId("k")), allowance_scope(SubscriptionId("s-refuse")),
    )  # fmt: skip
    assert scopes_of(principal(accounts, "m"), accounts) == (
        customer_scope(THERE), key_scope(KeyId("m")),
    )  # fmt: skip


@pytest.mark.parametrize(("key", "held_at_most"), [("k", 300), ("l", 300), ("m", 10**12)])
def test_the_tightest_limit_of_a_caller_holds(key, held_at_most):
    accounts, holds = read_accounts(store(), NOW), HoldBook()
    set_limits(holds, accounts)
    scopes = scopes_of(principal(accounts, key), accounts)
    holds.reserve(EventId("1"), scopes, MicroPoints(held_at_most), NOW)
    if key != "m":
        with pytest.raises(BudgetExceeded):
            holds.reserve(EventId("2"), scopes, MicroPoints(1), NOW)


def test_a_changed_budget_counts_at_once_and_forgets_nothing():
    rows, holds = store(subscription_rows=[]), HoldBook()
    accounts = read_accounts(rows, NOW)
    set_limits(holds, accounts)
    holds.reserve(EventId("1"), (customer_scope(HERE),), MicroPoints(900), NOW)
    rows.customer_rows[0] = replace(rows.customer_rows[0], budget=MicroPoints(950))
    set_limits(holds, read_accounts(rows, NOW))
    with pytest.raises(BudgetExceeded) as caught:
        holds.reserve(EventId("2"), (customer_scope(HERE),), MicroPoints(51), NOW)
    assert (caught.value.limit, caught.value.held) == (950, 900)


def test_what_was_spent_is_asked_for_in_each_customer_s_own_month():
    accounts, holds, asked = read_accounts(store(), NOW), HoldBook(), []
    set_limits(holds, accounts)
    december, november = datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 11, 1, 4, tzinfo=UTC)

    def spent_since(start):
        asked.append(start)
        rows = [(THERE, KeyId("m"), MicroPoints(70)), (CustomerId("gone"), KeyId("x"), 9)]
        if start == december:
            rows = [(HERE, KeyId("k"), MicroPoints(30)), (HERE, KeyId("l"), MicroPoints(5)), *rows]
        return rows

    load_spent(holds, accounts, spent_since, NOW)
    assert sorted(asked) == [november, december]
    spent = {
        scope: holds.standing(scope, NOW).spent
        for scope in (
            customer_scope(HERE), key_scope(KeyId("k")), key_scope(KeyId("l")),
            allowance_scope(SubscriptionId("s-refuse")), allowance_scope(SubscriptionId("s-charge")),
            customer_scope(THERE), key_scope(KeyId("m")), customer_scope(CustomerId("gone")),
        )
    }  # fmt: skip
    assert list(spent.values()) == [35, 30, 5, 35, 0, 70, 70, 0]
