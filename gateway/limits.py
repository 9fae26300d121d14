"""Which limits a request is held against, and how they are set from accounts and books. Pure but for the books."""

from collections.abc import Callable, Sequence
from datetime import datetime

from billing.holds import HoldBook, allowance_scope, customer_scope, key_scope
from billing.periods import month_of
from billing.types import CustomerId, KeyId, MicroPoints
from gateway.accounts import Accounts
from gateway.types import Principal

SpentSince = Callable[[datetime], Sequence[tuple[CustomerId, KeyId, MicroPoints]]]


def scopes_of(principal: Principal, accounts: Accounts) -> tuple[str, ...]:
    """Return the scopes that a caller's requests count against, the customer's budget first."""
    return (
        customer_scope(principal.customer_id),
        key_scope(principal.key_id),
        *(
            allowance_scope(refusing.subscription_id)
            for refusing in accounts.refusing_packages.get(principal.customer_id, ())
        ),
    )


def set_limits(holds: HoldBook, accounts: Accounts) -> None:
    """Set every limit to what the accounts say; what was spent and is held stays."""
    for customer in accounts.customers.values():
        scope = customer_scope(customer.customer_id)
        holds.set_limit(scope, customer.budget, time_zone=customer.time_zone)
        for refusing in accounts.refusing_packages.get(customer.customer_id, ()):
            scope = allowance_scope(refusing.subscription_id)
            holds.set_limit(scope, refusing.package.allowance, time_zone=customer.time_zone)
    for key in accounts.keys.values():
        customer = accounts.customers[key.customer_id]
        holds.set_limit(key_scope(key.key_id), key.budget, time_zone=customer.time_zone)


def load_spent(holds: HoldBook, accounts: Accounts, spent_since: SpentSince, now: datetime) -> None:
    """Set what each scope has spent in its current month, from the books. Call after `set_limits`."""
    zones = {customer.time_zone for customer in accounts.customers.values()}
    for zone in sorted(zones):
        spent: dict[str, int] = {}
        for customer_id, key_id, micropoints in spent_since(month_of(now, zone).start):
            customer = accounts.customers.get(customer_id)
            if customer is None or customer.time_zone != zone:
                continue
            refusing = accounts.refusing_packages.get(customer_id, ())
            for scope in (
                customer_scope(customer_id),
                key_scope(key_id),
                *(allowance_scope(each.subscription_id) for each in refusing),
            ):
                spent[scope] = spent.get(scope, 0) + micropoints
        holds.load({scope: MicroPoints(value) for scope, value in spent.items()}, now)
