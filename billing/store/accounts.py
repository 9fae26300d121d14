"""Customers, projects, keys, subscriptions and catalog versions in the store.

Owns `AccountsStore` of billing/ports.py, the changes to accounts, and the epoch: a number that grows with
every change, in the same transaction, so that a reader who sees the old number has the old accounts. Every
change leaves a line in the audit log. A key's secret never gets here, only its digest.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from billing.catalog import Catalog, CatalogState
from billing.errors import DuplicateRecord, InvalidCatalog, UnknownRecord
from billing.store import schema
from billing.store.account_rows import (
    EPOCH,
    catalog_in_force,
    customer_from_row,
    key_from_row,
    read_customer,
    read_epoch,
    read_newest_cards,
    read_packages,
    read_sla_tiers,
    read_subscriptions,
    subscription_from_row,
)
from billing.store.engine import Database
from billing.store.inserts import insert_if_absent
from billing.types import (
    ApiKey,
    CatalogVersion,
    Customer,
    CustomerId,
    KeyId,
    Package,
    Project,
    ProjectId,
    RateCard,
    SlaTier,
    Subscription,
    SubscriptionId,
)

AUDIT_ENTRIES_MAX = 10_000
"""Audit entries returned at once."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who changed what, when; `details` is canonical JSON without secrets."""

    recorded_at: datetime
    actor: str
    action: str
    record_kind: str
    record_id: str
    details: str


class SqlAccountsStore:
    """`AccountsStore` and `CatalogStore` on SQLite or PostgreSQL; every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # Reading.

    def epoch(self) -> int:
        """Return a number that grows with every change to accounts or catalog."""
        with self._database.reading() as connection:
            return read_epoch(connection)

    def customers(self) -> Sequence[Customer]:
        """Return every customer, by id."""
        table = schema.customers
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(table).order_by(table.c.customer_id))
            return [customer_from_row(row) for row in rows]

    def customer(self, customer_id: CustomerId) -> Customer:
        """Return a customer.

        Raises:
            UnknownRecord: there is none of this id.
        """
        with self._database.reading() as connection:
            return read_customer(connection, customer_id)

    def projects(self, customer_id: CustomerId | None = None) -> Sequence[Project]:
        """Return every project (of one customer), by id."""
        table = schema.projects
        query = sa.select(table).order_by(table.c.project_id)
        if customer_id is not None:
            query = query.where(table.c.customer_id == customer_id)
        with self._database.reading() as connection:
            return [
                Project(ProjectId(row.project_id), CustomerId(row.customer_id), row.name)
                for row in connection.execute(query)
            ]

    def keys(self) -> Sequence[ApiKey]:
        """Return every key, revoked ones included, by id."""
        table = schema.api_keys
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(table).order_by(table.c.key_id))
            return [key_from_row(row) for row in rows]

    def subscriptions(self) -> Sequence[Subscription]:
        """Return every subscription, ended ones included, by start."""
        with self._database.reading() as connection:
            return read_subscriptions(connection)

    def packages(self) -> Sequence[Package]:
        """Return the packages of the catalog in force."""
        with self._database.reading() as connection:
            return read_packages(connection)

    def sla_tiers(self) -> Sequence[SlaTier]:
        """Return the SLA tiers of the catalog in force."""
        with self._database.reading() as connection:
            return read_sla_tiers(connection)

    def rate_cards(self, at: datetime) -> Sequence[RateCard]:
        """Return the rate card in force at `at` for each priced expert, by expert id."""
        table = schema.price_versions
        query = sa.select(table).where(table.c.effective_from <= at)
        with self._database.reading() as connection:
            return read_newest_cards(connection, query)

    def catalog_state(self) -> CatalogState:
        """Return the catalog in force; version 0 and no document when none was ever applied."""
        with self._database.reading() as connection:
            row = connection.execute(catalog_in_force()).first()
            cards = read_newest_cards(connection, sa.select(schema.price_versions))
        if row is None:
            return CatalogState(CatalogVersion(0), None, tuple(cards))
        return CatalogState(CatalogVersion(row.version), row.document, tuple(cards))

    def audit_entries(self) -> Sequence[AuditEntry]:
        """Return the newest entries of the audit log, newest first."""
        table = schema.audit_log
        query = sa.select(table).order_by(table.c.entry_id.desc()).limit(AUDIT_ENTRIES_MAX)
        with self._database.reading() as connection:
            return [
                AuditEntry(
                    row.recorded_at,
                    row.actor,
                    row.action,
                    row.record_kind,
                    row.record_id,
                    row.details,
                )
                for row in connection.execute(query)
            ]

    # Changing.

    def add_customer(self, customer: Customer, *, now: datetime, actor: str) -> None:
        """Record a new customer.

        Raises:
            DuplicateRecord: the id is taken.
            UnknownRecord: the catalog in force has no such SLA tier.
        """
        with self._database.writing() as connection:
            _require_tier(connection, customer.sla_tier_id)
            values = asdict(customer) | {"created_at": now}
            _insert(connection, schema.customers, values, "customer", customer.customer_id)
            _log(connection, now, actor, "create", "customer", customer.customer_id, values)

    def change_customer(self, customer: Customer, *, now: datetime, actor: str) -> None:
        """Replace a customer's terms; the currency stays what it is.

        Raises:
            UnknownRecord: there is no such customer or SLA tier.
        """
        table = schema.customers
        with self._database.writing() as connection:
            before = read_customer(connection, customer.customer_id)
            if before.currency != customer.currency:
                raise DuplicateRecord("currency of the customer", before.currency)
            _require_tier(connection, customer.sla_tier_id)
            values = asdict(customer)
            connection.execute(
                sa.update(table).where(table.c.customer_id == customer.customer_id).values(values)
            )
            _log(connection, now, actor, "change", "customer", customer.customer_id, values)

    def add_project(self, project: Project, *, now: datetime, actor: str) -> None:
        """Record a new project.

        Raises:
            DuplicateRecord: the id is taken.
            UnknownRecord: there is no such customer.
        """
        with self._database.writing() as connection:
            read_customer(connection, project.customer_id)
            values = asdict(project) | {"created_at": now}
            _insert(connection, schema.projects, values, "project", project.project_id)
            _log(connection, now, actor, "create", "project", project.project_id, values)

    def add_key(self, key: ApiKey, *, now: datetime, actor: str) -> None:
        """Record a new key; its project must be the customer's.

        Raises:
            DuplicateRecord: the id or the digest is taken.
            UnknownRecord: the customer has no such project.
        """
        projects = schema.projects.c
        with self._database.writing() as connection:
            owned = connection.execute(
                sa.select(projects.project_id).where(
                    projects.project_id == key.project_id, projects.customer_id == key.customer_id
                )
            ).first()
            if owned is None:
                raise UnknownRecord(f"project of customer {key.customer_id}", key.project_id)
            values = asdict(key)
            _insert(connection, schema.api_keys, values, "key", key.key_id)
            shown = {name: value for name, value in values.items() if name != "digest"}
            _log(connection, now, actor, "create", "key", key.key_id, shown)

    def revoke_key(self, key_id: KeyId, *, now: datetime, actor: str) -> ApiKey:
        """End a key's life now and return it; one that is revoked already keeps its instant.

        Raises:
            UnknownRecord: there is no such key.
        """
        table = schema.api_keys
        with self._database.writing() as connection:
            revoked = connection.execute(
                sa.update(table)
                .where(table.c.key_id == key_id, table.c.revoked_at.is_(None))
                .values(revoked_at=now)
            )
            row = connection.execute(sa.select(table).where(table.c.key_id == key_id)).first()
            if row is None:
                raise UnknownRecord("key", key_id)
            if revoked.rowcount:
                _log(connection, now, actor, "revoke", "key", key_id, {})
            return key_from_row(row)

    def add_subscription(self, subscription: Subscription, *, now: datetime, actor: str) -> None:
        """Record a new subscription.

        Raises:
            DuplicateRecord: the id is taken, or the customer has the package at that time already.
            UnknownRecord: there is no such customer or package, or it is sold in another currency.
        """
        with self._database.writing() as connection:
            customer = read_customer(connection, subscription.customer_id, is_locked=True)
            _require_package(connection, subscription.package_id, customer.currency)
            for other in read_subscriptions(connection, subscription.customer_id):
                is_over = other.ended_at is not None and other.ended_at <= subscription.started_at
                if other.package_id == subscription.package_id and not is_over:
                    raise DuplicateRecord("running subscription", other.subscription_id)
            values = asdict(subscription)
            record_id = subscription.subscription_id
            _insert(connection, schema.subscriptions, values, "subscription", record_id)
            _log(connection, now, actor, "start", "subscription", record_id, values)

    def end_subscription(
        self, subscription_id: SubscriptionId, *, at: datetime, now: datetime, actor: str
    ) -> Subscription:
        """End a subscription at `at` (not before its start) and return it.

        Raises:
            UnknownRecord: there is no running subscription of this id.
        """
        table = schema.subscriptions
        with self._database.writing() as connection:
            ended = connection.execute(
                sa.update(table)
                .where(
                    table.c.subscription_id == subscription_id,
                    table.c.ended_at.is_(None),
                    table.c.started_at <= at,
                )
                .values(ended_at=at)
            )
            if not ended.rowcount:
                raise UnknownRecord("running subscription", subscription_id)
            _log(connection, now, actor, "end", "subscription", subscription_id, {"ended_at": at})
            row = connection.execute(
                sa.select(table).where(table.c.subscription_id == subscription_id)
            ).one()
            return subscription_from_row(row)

    def record_catalog(
        self,
        catalog: Catalog,
        cards: tuple[RateCard, ...],
        *,
        expected_version: CatalogVersion,
        now: datetime,
        actor: str,
    ) -> CatalogVersion:
        """Store a catalog version with its new rate cards in one transaction.

        Raises:
            InvalidCatalog: another version was applied meanwhile, or it drops a package or SLA tier that
                a customer uses.
        """
        with self._database.writing() as connection:
            row = connection.execute(catalog_in_force()).first()
            if (row.version if row else 0) != expected_version:
                raise InvalidCatalog("document", "another catalog was applied meanwhile; try again")
            _require_nothing_dropped(connection, catalog, now)
            version = CatalogVersion(expected_version + 1)
            _insert(
                connection,
                schema.catalog_versions,
                {
                    "version": version,
                    "document": catalog.document,
                    "digest": catalog.digest,
                    "applied_at": now,
                },
                "catalog version",
                str(version),
            )
            for card in cards:
                values = asdict(card)
                rates = values.pop("rates")
                record_id = f"{card.expert_id}/{card.version}"
                _insert(
                    connection, schema.price_versions, values | rates, "price version", record_id
                )
            _log(
                connection, now, actor, "apply", "catalog", str(version), {"digest": catalog.digest}
            )
            return version


def _require_tier(connection: Connection, sla_tier_id: str) -> None:
    if sla_tier_id not in {tier.sla_tier_id for tier in read_sla_tiers(connection)}:
        raise UnknownRecord("SLA tier in the catalog", sla_tier_id)


def _require_package(connection: Connection, package_id: str, currency: str) -> None:
    for package in read_packages(connection):
        if package.package_id == package_id:
            if package.monthly_fee.currency != currency:
                raise UnknownRecord(f"package sold in {currency}", package_id)
            return
    raise UnknownRecord("package in the catalog", package_id)


def _require_nothing_dropped(connection: Connection, catalog: Catalog, now: datetime) -> None:
    packages = {package.package_id: package for package in catalog.packages}
    tiers = {tier.sla_tier_id for tier in catalog.sla_tiers}
    customers = {
        row.customer_id: customer_from_row(row)
        for row in connection.execute(sa.select(schema.customers))
    }
    for customer in customers.values():
        if customer.sla_tier_id not in tiers:
            raise InvalidCatalog(
                "sla_tiers", f"{customer.sla_tier_id!r} is used by {customer.customer_id!r}"
            )
    for item in read_subscriptions(connection):
        if item.ended_at is not None and item.ended_at <= now:
            continue
        package = packages.get(item.package_id)
        if package is None:
            raise InvalidCatalog(
                "packages", f"{item.package_id!r} is subscribed to by {item.customer_id!r}"
            )
        currency = customers[item.customer_id].currency
        if package.monthly_fee.currency != currency:
            raise InvalidCatalog(
                "packages", f"{item.package_id!r} is paid in {currency} by {item.customer_id!r}"
            )


def _insert(
    connection: Connection, table: sa.Table, values: dict[str, Any], kind: str, record_id: str
) -> None:
    if not insert_if_absent(connection, table, values):
        raise DuplicateRecord(kind, record_id)


def _log(
    connection: Connection,
    now: datetime,
    actor: str,
    action: str,
    kind: str,
    record_id: str,
    details: dict[str, Any],
) -> None:
    text = json.dumps(details, sort_keys=True, ensure_ascii=False, default=str)
    connection.execute(
        sa.insert(schema.audit_log).values(
            recorded_at=now,
            actor=actor,
            action=action,
            record_kind=kind,
            record_id=record_id,
            details=text,
        )
    )
    epochs = schema.epochs
    insert_if_absent(connection, epochs, {"name": EPOCH, "value": 0})
    connection.execute(
        sa.update(epochs).where(epochs.c.name == EPOCH).values(value=epochs.c.value + 1)
    )
