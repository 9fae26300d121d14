"""The demo's customers: made anew for every run, so that a run always starts as a stranger."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from billing.accounts import create_customer, create_key, start_subscription
from billing.keys import SECRET_BYTES
from billing.store.accounts import SqlAccountsStore
from billing.types import (
    Customer,
    CustomerId,
    KeyId,
    MicroPoints,
    PackageId,
    SlaTierId,
    SubscriptionId,
)
from gateway.demo.prompts import DemoCaller

ACTOR = "demo"

STARTUP_BUDGET = MicroPoints(1_250_000)
"""Base points for one call to the nutrition expert, whose hold is about 1.1 of them, but not for a second."""

POINT_PRICE_MICROS = 250_000
"""0.25 EUR for a base point."""


@dataclass(frozen=True, slots=True)
class DemoAccount:
    """A demo customer and the one key it was given."""

    customer_id: CustomerId
    name: str
    key: str


def next_run(customers: list[CustomerId]) -> int:
    """Return the number of this run: one more than the highest that has customers."""
    runs = [int(end) for each in customers if (end := each.rpartition("-")[2]).isdigit()]
    return max(runs, default=0) + 1


def create_accounts(
    store: SqlAccountsStore, *, run: int, pepper: bytes, now: datetime
) -> Mapping[DemoCaller, DemoAccount]:
    """Create the three customers of one run, each with a project and a key."""
    made = {}
    for caller, name, tier, budget in (
        (DemoCaller.ANALYTICS, "Aurora Analytics 极光分析", "gold", None),
        (DemoCaller.STUDENT, "Campus Lab 校园实验室", "standard", None),
        (DemoCaller.STARTUP, "Tiny Startup 微创公司", "standard", STARTUP_BUDGET),
    ):
        customer_id = CustomerId(f"{caller.value}-{run}")
        create_customer(
            store,
            Customer(
                customer_id=customer_id,
                name=name,
                currency="EUR",
                point_price_micros=POINT_PRICE_MICROS,
                sla_tier_id=SlaTierId(tier),
                budget=budget,
            ),
            now=now,
            actor=ACTOR,
        )
        _, key = create_key(
            store,
            customer_id=customer_id,
            name="demo",
            pepper=pepper,
            random_bytes=secrets.token_bytes(SECRET_BYTES),
            key_id=KeyId(f"{customer_id}-key"),
            now=now,
            actor=ACTOR,
        )
        made[caller] = DemoAccount(customer_id, name, key)
    student = made[DemoCaller.STUDENT].customer_id
    start_subscription(
        store,
        subscription_id=SubscriptionId(f"{student}-subscription"),
        customer_id=student,
        package_id=PackageId("programming-starter"),
        started_at=now,
        now=now,
        actor=ACTOR,
    )
    return made
