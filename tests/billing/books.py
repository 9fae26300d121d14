"""Builders for tests of the books: a small catalog, a customer, usage events."""

import itertools
from datetime import UTC, datetime

from billing.catalog import apply_catalog, parse_catalog
from billing.store.accounts import SqlAccountsStore
from billing.store.invoices import SqlBooksStore
from billing.store.ledger import SqlLedgerStore
from billing.types import (
    CatalogVersion,
    Customer,
    CustomerId,
    EventId,
    KeyId,
    MicroPoints,
    PackageId,
    PriceVersion,
    Project,
    ProjectId,
    SlaTierId,
    Subscription,
    SubscriptionId,
    Usage,
    UsageEvent,
    UsageIntent,
    UsageOutcome,
    UsageSource,
    UsageStatus,
)
from routing_engine.types import ExpertId, ReplicaId

BEFORE = datetime(2026, 1, 1, tzinfo=UTC)
_serial = itertools.count(1)


def at(text):
    """The instant that ISO text names, in UTC when it has no offset."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def an_expert(expert_id, number, *, per_call=0, input_1k=1000, output_1k=2000, name=None, **more):
    return {
        "id": expert_id,
        "number": number,
        "domain": "programming",
        "name": name or expert_id,
        "replicas": [{"base_url": "http://127.0.0.1:9/v1", "model": "m"}],
        "rates": {"per_call": per_call, "input_1k": input_1k, "output_1k": output_1k, **more},
    }


def a_document(**changes):
    """A catalog document of three experts, two tiers and one package."""
    return {
        "default_expert": "general",
        "experts": [
            an_expert("general", 1),
            an_expert("python-algorithm", 387, input_1k=2000, output_1k=6400, name="Python 算法"),
            an_expert("contract-law", 512, per_call=500, input_1k=0, output_1k=0),
        ],
        "sla_tiers": [
            {"id": "standard", "name": "Standard"},
            {"id": "gold", "name": "Gold", "surcharge_permille": 150, "priority": 10},
        ],
        "packages": [
            {
                "id": "dev",
                "name": "Developer",
                "experts": ["general", "python-algorithm"],
                "monthly_fee": "19.00",
                "currency": "EUR",
                "allowance_points": 10,
            }
        ],
    } | changes


def a_catalog(**changes):
    return parse_catalog(a_document(**changes)).to_catalog({})


def a_customer(customer_id="acme", **changes):
    values = {
        "name": "Acme 有限公司",
        "currency": "EUR",
        "point_price_micros": 20_000,
        "sla_tier_id": SlaTierId("standard"),
    } | changes
    return Customer(customer_id=CustomerId(customer_id), **values)


def an_event(
    when, expert="general", tokens=(1000, 0), *, customer="acme", event_id=None, **changes
):
    """An event: `tokens` are (input, output), or (input, output, cached, reasoning)."""
    occurred_at = at(when) if isinstance(when, str) else when
    name = EventId(event_id or f"event-{next(_serial):08d}")
    outcome = {
        "status": UsageStatus.COMPLETED,
        "usage": Usage(*tokens),
        "usage_source": UsageSource.BACKEND,
        "ended_at": occurred_at,
        "reported_input_tokens": tokens[0],
        "flags": ("a", "b"),
    }
    intent = {"price_version": PriceVersion(1), "key_id": KeyId("key-1")}
    for name_, value in changes.items():
        (intent if name_ in UsageIntent.__slots__ else outcome)[name_] = value
    return UsageEvent(
        UsageIntent(
            event_id=name,
            request_id="req-1",
            customer_id=CustomerId(customer),
            project_id=ProjectId("default"),
            expert_id=ExpertId(expert),
            replica_id=ReplicaId(f"{expert}/0"),
            catalog_version=CatalogVersion(1),
            dictionary_version=3,
            route_source="gate",
            operation="chat",
            streamed=True,
            occurred_at=occurred_at,
            hold=MicroPoints(10),
            input_tokens_max=10**6,
            output_tokens_max=10**6,
            input_tokens_estimate=tokens[0],
            **intent,
        ),
        UsageOutcome(event_id=name, **outcome),
    )


class Books:
    """The three stores over one database, with what the tests do most."""

    def __init__(self, database):
        self.database = database
        self.accounts = SqlAccountsStore(database)
        self.ledger = SqlLedgerStore(database, clock=lambda: at("2026-12-31T00:00"))
        self.invoices = SqlBooksStore(database)
        self._position = 0

    def open(self, *customers, **catalog):
        apply_catalog(self.accounts, a_catalog(**catalog), BEFORE)
        for customer in customers or (a_customer(),):
            self.accounts.add_customer(customer, now=BEFORE, actor="test")
            project = Project(
                ProjectId(f"{customer.customer_id}-default"), customer.customer_id, "Default"
            )
            self.accounts.add_project(project, now=BEFORE, actor="test")
        return self

    def use(self, *events):
        self._position += len(events)
        return self.ledger.record_events(events, journal_id="journal", position=self._position)

    def subscribe(
        self, start="2026-01-01", *, package="dev", customer="acme", end=None, name="sub-1"
    ):
        self.accounts.add_subscription(
            Subscription(
                SubscriptionId(name),
                CustomerId(customer),
                PackageId(package),
                at(start),
                at(end) if end else None,
            ),
            now=BEFORE,
            actor="test",
        )
