"""What the data plane knows of accounts follows the store, and the clock."""

import asyncio
import secrets
from datetime import UTC, datetime, timedelta

import pytest

from billing.accounts import create_customer, create_key, start_subscription
from billing.catalog import apply_catalog, parse_catalog
from billing.holds import HoldBook
from billing.keys import SECRET_BYTES
from billing.store.accounts import SqlAccountsStore
from billing.store.engine import open_database
from billing.store.migration import upgrade
from billing.types import (
    ApiKey,
    Customer,
    CustomerId,
    KeyId,
    PackageId,
    ProjectId,
    SlaTierId,
    SubscriptionId,
)
from gateway.accounts import AccountsWatcher, read_accounts
from gateway.limits import set_limits
from tests.fakes import FakeAccountsStore

PEPPER = b"p" * 64
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
CATALOG = {
    "default_expert": "a",
    "sla_tiers": [{"id": "standard", "name": "Standard"}],
    "packages": [
        {
            "id": "only-a", "name": "Only A", "experts": ["a"], "monthly_fee": "1.00",
            "currency": "EUR", "allowance_points": 5, "overage": "refuse",
        }
    ],
    "experts": [
        {
            "id": name, "number": number, "domain": "d", "name": name,
            "replicas": [{"base_url": "http://x/v1", "model": "m"}],
            "rates": {"input_1k": 1, "output_1k": 1},
        }
        for number, name in enumerate(("a", "b"))
    ],
}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    url = f"sqlite:///{tmp_path / 'books.sqlite'}"
    upgrade(url)
    with open_database(url) as database:
        store = SqlAccountsStore(database)
        apply_catalog(store, parse_catalog(CATALOG).to_catalog({}), NOW)
        create_customer(
            store,
            Customer(CustomerId("c"), "C", "EUR", 1, SlaTierId("standard")),
            now=NOW,
            actor="t",
        )
        yield store


def add_key(store):
    _, key = create_key(
        store, customer_id=CustomerId("c"), name="k", pepper=PEPPER,
        random_bytes=secrets.token_bytes(SECRET_BYTES), key_id=KeyId("k"), now=NOW, actor="t",
    )  # fmt: skip
    return key


def subscribe(store, started_at):
    start_subscription(
        store, subscription_id=SubscriptionId("s"), customer_id=CustomerId("c"),
        package_id=PackageId("only-a"), started_at=started_at, now=NOW, actor="t",
    )  # fmt: skip


def test_a_key_names_its_owner_and_nobody_else(store):
    key = add_key(store)
    accounts = read_accounts(store, NOW)
    principal = accounts.principal_for(key, PEPPER)
    assert (principal.key_id, principal.customer_id, principal.entitled) == ("k", "c", None)
    assert accounts.principal_for(key[:-1] + ("0" if key[-1] != "0" else "1"), PEPPER) is None
    assert accounts.principal_for("eg_", PEPPER) is None
    assert accounts.principal_for(key, b"q" * 64) is None


def test_a_package_bounds_what_its_customer_may_use(store):
    key = add_key(store)
    subscribe(store, NOW)
    accounts = read_accounts(store, NOW)
    assert accounts.principal_for(key, PEPPER).entitled == {"a"}
    assert accounts.refusing_packages["c"][0].subscription_id == "s"


async def followed(watcher, holds):
    watching = asyncio.create_task(watcher.watch())
    try:
        async with asyncio.timeout(1):
            while not holds():
                await asyncio.sleep(0.005)
    finally:
        watching.cancel()


async def test_a_revoked_key_is_gone_within_a_second(store):
    key = add_key(store)
    seen = []
    watcher = AccountsWatcher(store, refresh_s=0.02, clock=lambda: NOW, on_change=seen.append)
    assert watcher.current.principal_for(key, PEPPER) is not None
    store.revoke_key(KeyId("k"), now=NOW, actor="t")
    await followed(watcher, lambda: watcher.current.principal_for(key, PEPPER) is None)
    assert len(seen) == 2


async def test_a_subscription_that_begins_later_begins_by_the_clock(store):
    key = add_key(store)
    subscribe(store, NOW + timedelta(hours=1))
    now = NOW
    watcher = AccountsWatcher(store, refresh_s=0.02, clock=lambda: now, on_change=lambda _: None)
    assert watcher.current.principal_for(key, PEPPER).entitled is None
    now = NOW + timedelta(hours=1)
    await followed(watcher, lambda: watcher.current.principal_for(key, PEPPER).entitled == {"a"})


def rows(customer_id):
    customer = Customer(CustomerId(customer_id), "C", "EUR", 1, SlaTierId("standard"))
    key = ApiKey(
        KeyId(f"k-{customer_id}"), customer.customer_id, ProjectId("p"), "k", customer_id, "", NOW
    )
    return customer, key


async def test_a_customer_added_between_two_reads_is_taken_at_the_next_look():
    old, new = rows("old"), rows("new")
    store = FakeAccountsStore([old[0]], [old[1]])

    def add():
        store.on_customers_read = None
        store.customer_rows.append(new[0])
        store.key_rows.append(new[1])
        store.epoch_number += 1

    store.on_customers_read = add
    holds = HoldBook()
    watcher = AccountsWatcher(
        store, refresh_s=0.01, clock=lambda: NOW, on_change=lambda each: set_limits(holds, each)
    )
    assert list(watcher.current.keys) == ["k-old"]
    await followed(watcher, lambda: list(watcher.current.keys) == ["k-old", "k-new"])


async def test_books_that_cannot_be_read_leave_the_last_snapshot_in_force(caplog):
    store = FakeAccountsStore(*([each] for each in rows("old")))
    watcher = AccountsWatcher(store, refresh_s=0.01, clock=lambda: NOW, on_change=lambda _: None)
    store.fails_with = OSError("the disk is gone")
    store.key_rows.clear()
    store.epoch_number += 1
    await followed(watcher, lambda: "accounts_refresh_failed" in caplog.messages)
    assert list(watcher.current.keys) == ["k-old"]
    store.fails_with = None
    await followed(watcher, lambda: not watcher.current.keys)
