"""Reading accounts and the catalog on an open connection, for every module of the store.

Owns the mapping from rows to types; what may be changed is `billing.store.accounts`'s.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from billing.catalog import CatalogDocument
from billing.errors import UnknownRecord
from billing.store import schema
from billing.types import (
    ApiKey,
    Customer,
    CustomerId,
    KeyId,
    MicroPoints,
    Package,
    PackageId,
    PriceVersion,
    ProjectId,
    RateCard,
    Rates,
    SlaTier,
    SlaTierId,
    Subscription,
    SubscriptionId,
)
from routing_engine.types import ExpertId

EPOCH = "accounts"
"""Name of the counter that every change to accounts or catalog advances."""


def read_customer(connection: Connection, customer_id: str, *, is_locked: bool = False) -> Customer:
    """Return a customer; `is_locked` keeps others from closing its books until the transaction ends.

    Raises:
        UnknownRecord: there is none of this id.
    """
    query = sa.select(schema.customers).where(schema.customers.c.customer_id == customer_id)
    row = connection.execute(query.with_for_update() if is_locked else query).first()
    if row is None:
        raise UnknownRecord("customer", customer_id)
    return customer_from_row(row)


def read_subscriptions(
    connection: Connection, customer_id: str | None = None
) -> list[Subscription]:
    """Return subscriptions by start, of one customer or of all."""
    table = schema.subscriptions
    query = sa.select(table).order_by(table.c.started_at, table.c.subscription_id)
    if customer_id is not None:
        query = query.where(table.c.customer_id == customer_id)
    return [subscription_from_row(row) for row in connection.execute(query)]


def read_packages(connection: Connection) -> list[Package]:
    """Return the packages of the catalog in force."""
    document = _document(connection)
    return [package.to_package() for package in document.packages] if document else []


def read_packages_ever(connection: Connection, package_ids: set[PackageId]) -> list[Package]:
    """Return packages in their newest form, also those that a later catalog dropped, by id."""
    found = {item.package_id: item for item in read_packages(connection)}
    if not package_ids <= found.keys():
        table = schema.catalog_versions
        query = sa.select(table.c.document).order_by(table.c.version.desc())
        for text in connection.execute(query).scalars():
            for item in CatalogDocument.model_validate_json(text).packages:
                found.setdefault(PackageId(item.id), item.to_package())
    return [found[package_id] for package_id in sorted(package_ids & found.keys())]


def read_sla_tiers(connection: Connection) -> list[SlaTier]:
    """Return the SLA tiers of the catalog in force."""
    document = _document(connection)
    return [tier.to_tier() for tier in document.sla_tiers] if document else []


def read_expert_names(connection: Connection) -> dict[ExpertId, str]:
    """Return the display name of each expert of the catalog in force."""
    document = _document(connection)
    return {ExpertId(item.id): item.name for item in document.experts} if document else {}


def catalog_in_force() -> sa.Select[Any]:
    """Return the query of the newest catalog version."""
    table = schema.catalog_versions
    return sa.select(table).order_by(table.c.version.desc()).limit(1)


def _document(connection: Connection) -> CatalogDocument | None:
    row = connection.execute(catalog_in_force()).first()
    return None if row is None else CatalogDocument.model_validate_json(row.document)


def read_epoch(connection: Connection) -> int:
    """Return the number of changes so far."""
    column = schema.epochs.c.value
    return int(
        connection.execute(sa.select(column).where(schema.epochs.c.name == EPOCH)).scalar() or 0
    )


def read_newest_cards(connection: Connection, query: sa.Select[Any]) -> list[RateCard]:
    """Return the newest of the rate cards that a query selects, per expert, by expert id."""
    newest: dict[str, RateCard] = {}
    for row in connection.execute(query.order_by(schema.price_versions.c.effective_from)):
        newest[row.expert_id] = RateCard(
            ExpertId(row.expert_id),
            PriceVersion(row.version),
            row.effective_from,
            Rates(row.per_call, row.input_1k, row.output_1k, row.cached_input_1k, row.reasoning_1k),
        )
    return [newest[expert_id] for expert_id in sorted(newest)]


def customer_from_row(row: sa.Row[Any]) -> Customer:
    """Return the customer of a row."""
    return Customer(
        CustomerId(row.customer_id),
        row.name,
        row.currency,
        row.point_price_micros,
        SlaTierId(row.sla_tier_id),
        row.time_zone,
        None if row.budget is None else MicroPoints(row.budget),
    )


def key_from_row(row: sa.Row[Any]) -> ApiKey:
    """Return the key of a row."""
    return ApiKey(
        KeyId(row.key_id),
        CustomerId(row.customer_id),
        ProjectId(row.project_id),
        row.name,
        row.digest,
        row.last_four,
        row.created_at,
        row.revoked_at,
        None if row.budget is None else MicroPoints(row.budget),
    )


def subscription_from_row(row: sa.Row[Any]) -> Subscription:
    """Return the subscription of a row."""
    return Subscription(
        SubscriptionId(row.subscription_id),
        CustomerId(row.customer_id),
        PackageId(row.package_id),
        row.started_at,
        row.ended_at,
    )
