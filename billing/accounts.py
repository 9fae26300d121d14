"""Use cases on accounts: customers, keys and subscriptions, with what makes their values valid.

Owns validation of what people type in, and the making of a key; storing is the store's. Random bytes, the
clock and the pepper are passed in.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from billing.errors import InvalidInput
from billing.keys import key_digest, make_key
from billing.money import exponent
from billing.periods import zone_of
from billing.types import (
    ApiKey,
    Customer,
    CustomerId,
    KeyId,
    MicroPoints,
    PackageId,
    Project,
    ProjectId,
    Subscription,
    SubscriptionId,
)

NAME_LENGTH_MAX = 200
ID_LENGTH_MAX = 64
POINT_PRICE_MICROS_MAX = 10**12
"""Bound on the price of a point: a million units of the currency."""

BUDGET_MAX = 10**18
"""Bound on a budget in micro-points, so that sums with it stay below 2**63."""

_ID = re.compile(r"[a-z0-9]+(?:[-_.][a-z0-9]+)*")
_DECIMAL = re.compile(r"(\d{1,13})(?:\.(\d{1,6}))?")


class AccountsWriter(Protocol):
    """What these use cases need from the store."""

    def customer(self, customer_id: CustomerId) -> Customer:
        """Return a customer."""

    def projects(self, customer_id: CustomerId | None = None) -> Sequence[Project]:
        """Return every project (of one customer)."""

    def add_customer(self, customer: Customer, *, now: datetime, actor: str) -> None:
        """Record a new customer."""

    def change_customer(self, customer: Customer, *, now: datetime, actor: str) -> None:
        """Replace a customer's terms."""

    def add_project(self, project: Project, *, now: datetime, actor: str) -> None:
        """Record a new project."""

    def add_key(self, key: ApiKey, *, now: datetime, actor: str) -> None:
        """Record a new key."""

    def add_subscription(self, subscription: Subscription, *, now: datetime, actor: str) -> None:
        """Record a new subscription."""


def create_customer(
    store: AccountsWriter, customer: Customer, *, now: datetime, actor: str
) -> Customer:
    """Record a new customer with valid terms and return it.

    Raises:
        InvalidInput: a field is not valid; it names the field.
        DuplicateRecord: the id is taken.
        UnknownRecord: the catalog has no such SLA tier.
    """
    store.add_customer(require_valid(customer), now=now, actor=actor)
    return customer


def set_budget(
    store: AccountsWriter,
    customer_id: CustomerId,
    budget: MicroPoints | None,
    *,
    now: datetime,
    actor: str,
) -> Customer:
    """Set a customer's monthly budget in micro-points (None is no limit) and return the customer.

    Raises:
        InvalidInput: the budget is negative or too large.
        UnknownRecord: there is no such customer.
    """
    changed = require_valid(replace(store.customer(customer_id), budget=budget))
    store.change_customer(changed, now=now, actor=actor)
    return changed


def create_key(
    store: AccountsWriter,
    *,
    customer_id: CustomerId,
    name: str,
    pepper: bytes,
    random_bytes: bytes,
    key_id: KeyId,
    now: datetime,
    actor: str,
    project_id: ProjectId | None = None,
    budget: MicroPoints | None = None,
) -> tuple[ApiKey, str]:
    """Record a new key and return it with its secret text, which exists nowhere else.

    Without a project the customer's default one is used, and made when there is none yet.

    Raises:
        InvalidInput: the name or budget is not valid.
        UnknownRecord: there is no such customer or project.
    """
    _require_name("name", name)
    _require_budget(budget)
    if project_id is None:
        project_id = ProjectId(f"{customer_id}-default")
        if project_id not in {item.project_id for item in store.projects(customer_id)}:
            project = Project(project_id, customer_id, "Default")
            store.customer(customer_id)
            store.add_project(project, now=now, actor=actor)
    text = make_key(random_bytes)
    key = ApiKey(
        key_id=key_id,
        customer_id=customer_id,
        project_id=project_id,
        name=name,
        digest=key_digest(pepper, text),
        last_four=text[-4:],
        created_at=now,
        budget=budget,
    )
    store.add_key(key, now=now, actor=actor)
    return key, text


def start_subscription(
    store: AccountsWriter,
    *,
    subscription_id: SubscriptionId,
    customer_id: CustomerId,
    package_id: PackageId,
    started_at: datetime,
    now: datetime,
    actor: str,
) -> Subscription:
    """Record a new subscription and return it.

    Raises:
        DuplicateRecord: the customer has the package already.
        UnknownRecord: there is no such customer, or no such package in its currency.
    """
    subscription = Subscription(subscription_id, customer_id, package_id, started_at)
    store.add_subscription(subscription, now=now, actor=actor)
    return subscription


def require_valid(customer: Customer) -> Customer:
    """Return `customer` when all its terms are valid.

    Raises:
        InvalidInput: one isn't; it names the field.
    """
    require_id("customer_id", customer.customer_id)
    _require_name("name", customer.name)
    try:
        exponent(customer.currency)
    except ValueError as exc:
        raise InvalidInput("currency", str(exc)) from None
    try:
        zone_of(customer.time_zone)
    except ValueError as exc:
        raise InvalidInput("time_zone", str(exc)) from None
    if not 0 <= customer.point_price_micros <= POINT_PRICE_MICROS_MAX:
        raise InvalidInput("point_price", f"between 0 and {POINT_PRICE_MICROS_MAX} micros")
    _require_budget(customer.budget)
    return customer


def require_id(field: str, text: str) -> str:
    """Return `text` when it can be an id: lower-case letters, digits, and single `-`, `_`, `.` between.

    Raises:
        InvalidInput: it can't.
    """
    if len(text) > ID_LENGTH_MAX or not _ID.fullmatch(text):
        raise InvalidInput(
            field, f"lower-case letters, digits and hyphens, at most {ID_LENGTH_MAX}: {text!r}"
        )
    return text


def micros_from_text(field: str, text: str) -> int:
    """Return decimal text (`0.02`) as exact millionths.

    Raises:
        InvalidInput: it isn't plain decimal text with at most six decimals.
    """
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise InvalidInput(field, f"a number like 12 or 0.02 with up to six decimals: {text!r}")
    return int(match[1]) * 10**6 + int((match[2] or "").ljust(6, "0"))


def _require_name(field: str, name: str) -> None:
    if not name.strip() or len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidInput(field, f"1 to {NAME_LENGTH_MAX} printable characters")


def _require_budget(budget: MicroPoints | None) -> None:
    if budget is not None and not 0 <= budget <= BUDGET_MAX:
        raise InvalidInput("budget", f"between 0 and {BUDGET_MAX} micro-points")
