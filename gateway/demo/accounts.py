"""The demo's customers: made anew for every run, so that a run always starts as a stranger."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from billing.keys import SECRET_BYTES, key_digest, make_key
from billing.store.accounts import Project, SqlAccountsStore
from billing.types import (
    ApiKey,
    Customer,
    CustomerId,
    KeyId,
    MicroPoints,
    PackageId,
    ProjectId,
    SlaTierId,
    Subscription,
    SubscriptionId,
)
from gateway.demo.prompts import DemoCaller

ACTOR = "demo"

STARTUP_BUDGET = MicroPoints(2_000_000)
"""Two base points: enough for one call to the nutrition expert, not for a second."""

_POINT_PRICE_MICROS = 20_000
"""0.02 EUR for a base point."""


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
        store.add_customer(
            Customer(
                customer_id=customer_id,
                name=name,
                currency="EUR",
                point_price_micros=_POINT_PRICE_MICROS,
                sla_tier_id=SlaTierId(tier),
                budget=budget,
            ),
            now=now,
            actor=ACTOR,
        )
        project_id = ProjectId(f"{customer_id}-default")
        store.add_project(Project(project_id, customer_id, "Default"), now=now, actor=ACTOR)
        key = make_key(secrets.token_bytes(SECRET_BYTES))
        store.add_key(
            ApiKey(
                key_id=KeyId(f"{customer_id}-key"),
                customer_id=customer_id,
                project_id=project_id,
                name="demo",
                digest=key_digest(pepper, key),
                last_four=key[-4:],
                created_at=now,
            ),
            now=now,
            actor=ACTOR,
        )
        made[caller] = DemoAccount(customer_id, name, key)
    student = made[DemoCaller.STUDENT].customer_id
    store.add_subscription(
        Subscription(
            subscription_id=SubscriptionId(f"{student}-subscription"),
            customer_id=student,
            package_id=PackageId("programming-starter"),
            started_at=now,
        ),
        now=now,
        actor=ACTOR,
    )
    return made
