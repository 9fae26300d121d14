"""What the data plane knows of customers, keys, prices and packages: one immutable snapshot, swapped whole.

No query runs on the request path. `AccountsWatcher` looks at the store's epoch a few times a second, so a revoked
key is dead within a second on every worker.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from billing.keys import is_well_formed, key_digest
from billing.ports import AccountsStore
from billing.types import (
    ApiKey,
    Customer,
    CustomerId,
    KeyId,
    OverageRule,
    Package,
    PackageId,
    RateCard,
    SlaTier,
    SlaTierId,
    Subscription,
    SubscriptionId,
)
from gateway.types import Principal
from routing_engine.types import ExpertId

log = logging.getLogger("expertgate.gateway")


@dataclass(frozen=True, slots=True)
class OwnedPackage:
    """An active subscription and its package."""

    subscription_id: SubscriptionId
    package: Package


@dataclass(frozen=True, slots=True)
class Accounts:
    """Everything that admits a request, as of one epoch of the store.

    `stale_at` is when a subscription next begins or ends: from then on this snapshot is wrong.
    """

    epoch: int
    stale_at: datetime | None
    customers: Mapping[CustomerId, Customer]
    keys: Mapping[KeyId, ApiKey]
    principals: Mapping[str, Principal]
    rate_cards: Mapping[ExpertId, RateCard]
    sla_tiers: Mapping[SlaTierId, SlaTier]
    refusing_packages: Mapping[CustomerId, tuple[OwnedPackage, ...]]

    def principal_for(self, key: str, pepper: bytes) -> Principal | None:
        """Return who `key` belongs to; None when it is malformed, unknown or revoked."""
        # The checksum costs nothing and keeps a flood of made-up keys away from the digest.
        return self.principals.get(key_digest(pepper, key)) if is_well_formed(key) else None


def read_accounts(store: AccountsStore, now: datetime) -> Accounts:
    """Return the snapshot of `store` as of `now`."""
    # The epoch first: a change between the reads is seen again at the next look.
    epoch = store.epoch()
    customers = {customer.customer_id: customer for customer in store.customers()}
    all_keys = store.keys()
    # The key of a customer who was added between these two reads is taken at the next look.
    keys = [key for key in all_keys if key.customer_id in customers]
    packages = {package.package_id: package for package in store.packages()}
    subscriptions = store.subscriptions()
    active = _active_packages(subscriptions, packages, now)
    return Accounts(
        epoch=epoch,
        stale_at=_next_boundary(subscriptions, now),
        customers=customers,
        keys={key.key_id: key for key in keys},
        principals={
            key.digest: _principal(key, customers[key.customer_id], active)
            for key in keys
            if key.revoked_at is None
        },
        rate_cards={card.expert_id: card for card in store.rate_cards(now)},
        sla_tiers={tier.sla_tier_id: tier for tier in store.sla_tiers()},
        refusing_packages={
            customer_id: refusing
            for customer_id, owned in active.items()
            if (refusing := tuple(o for o in owned if o.package.overage is OverageRule.REFUSE))
        },
    )


def _next_boundary(subscriptions: Sequence[Subscription], now: datetime) -> datetime | None:
    boundaries = (
        at for each in subscriptions for at in (each.started_at, each.ended_at) if at is not None
    )
    return min((at for at in boundaries if at > now), default=None)


def _active_packages(
    subscriptions: Sequence[Subscription], packages: Mapping[PackageId, Package], now: datetime
) -> dict[CustomerId, list[OwnedPackage]]:
    active: dict[CustomerId, list[OwnedPackage]] = {}
    for subscription in subscriptions:
        package = packages.get(subscription.package_id)
        is_active = subscription.started_at <= now and (
            subscription.ended_at is None or now < subscription.ended_at
        )
        if is_active and package is not None:
            active.setdefault(subscription.customer_id, []).append(
                OwnedPackage(subscription.subscription_id, package)
            )
    return active


def _principal(
    key: ApiKey, customer: Customer, active: Mapping[CustomerId, Sequence[OwnedPackage]]
) -> Principal:
    owned = active.get(customer.customer_id)
    return Principal(
        key_id=key.key_id,
        customer_id=customer.customer_id,
        project_id=key.project_id,
        sla_tier_id=customer.sla_tier_id,
        entitled=None
        if owned is None
        else frozenset(expert for each in owned for expert in each.package.experts),
    )


class AccountsWatcher:
    """Keeps `current` up to date; a store that can't be read leaves the last snapshot in force."""

    def __init__(
        self,
        store: AccountsStore,
        *,
        refresh_s: float,
        clock: Callable[[], datetime],
        on_change: Callable[[Accounts], None],
    ) -> None:
        self._store = store
        self._refresh_s = refresh_s
        self._clock = clock
        self._on_change = on_change
        self.current = read_accounts(store, clock())
        on_change(self.current)

    async def watch(self) -> None:
        """Look for changes until cancelled."""
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                changed = await asyncio.to_thread(self._read_if_changed)
            except Exception:  # the store's drivers raise their own; the next look may succeed
                log.exception("accounts_refresh_failed")
                continue
            if changed is not None:
                self.current = changed
                self._on_change(changed)

    def _read_if_changed(self) -> Accounts | None:
        now = self._clock()
        stale_at = self.current.stale_at
        is_stale = stale_at is not None and now >= stale_at
        is_same = self._store.epoch() == self.current.epoch and not is_stale
        return None if is_same else read_accounts(self._store, now)
