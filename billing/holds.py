"""Holds on limits: what may be reserved before a request runs, and what it settles to afterwards.

Owns the counters of one process, in memory; used from the event loop only, so every call is atomic.
Reads no clock and keeps nothing on disk: counters are set from the books at start (`load`) and holds of
a dead process die with it. Which scopes a request has, and what it costs, is decided elsewhere.

A scope's limit is per calendar month of its time zone. A hold belongs to the month in which it was
taken; settled later, it counts for that month and not for the next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from billing.errors import BudgetExceeded
from billing.periods import month_of
from billing.types import (
    BillingPeriod,
    CustomerId,
    EventId,
    KeyId,
    MicroPoints,
    SubscriptionId,
)

_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)


def customer_scope(customer_id: CustomerId) -> str:
    """Return the scope of a customer's budget."""
    return f"customer {customer_id}"


def key_scope(key_id: KeyId) -> str:
    """Return the scope of a key's budget."""
    return f"key {key_id}"


def allowance_scope(subscription_id: SubscriptionId) -> str:
    """Return the scope of a package allowance that refuses overage."""
    return f"allowance {subscription_id}"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a scope stands in its current month; `limit` None is no limit."""

    scope: str
    limit: MicroPoints | None
    spent: MicroPoints
    held: MicroPoints
    period: BillingPeriod | None


@dataclass(slots=True, eq=False)
class _Window:
    """The counters of one scope in one month."""

    period: BillingPeriod | None = None
    spent: int = 0
    held: int = 0


@dataclass(slots=True, eq=False)
class _Account:
    limit: int | None = None
    time_zone: str = "UTC"
    ends_at: datetime = _BEFORE_ALL
    window: _Window = field(default_factory=_Window)


@dataclass(frozen=True, slots=True)
class _Hold:
    micropoints: int
    windows: tuple[_Window, ...]


class HoldBook:
    """Limits, what was spent of them and what is held; spent + held never passes a limit by a hold."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._holds: dict[EventId, _Hold] = {}

    def set_limit(self, scope: str, limit: MicroPoints | None, *, time_zone: str = "UTC") -> None:
        """Set or change a scope's limit, live; None lifts it. What was spent and is held stays.

        A changed time zone applies from the end of the current window on.

        Raises:
            ValueError: the limit is negative.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"{scope}: a limit is zero or more: {limit}")
        account = self._accounts.setdefault(scope, _Account())
        account.limit, account.time_zone = limit, time_zone

    def load(self, spent: Mapping[str, MicroPoints], now: datetime) -> None:
        """Set (never add) what each scope has spent in the month of `now`; holds stay.

        Loading the same figures twice changes nothing. A scope not in `spent` keeps its figure. Scopes
        are given their limits first, so that the month is of the right time zone.
        """
        for scope, micropoints in spent.items():
            account = self._accounts.setdefault(scope, _Account())
            self._window(account, now).spent = int(micropoints)

    def reserve(
        self, event_id: EventId, scopes: Sequence[str], micropoints: MicroPoints, now: datetime
    ) -> None:
        """Hold `micropoints` on every scope, or on none.

        Scopes without a limit only count. A scope named twice is held once.

        Raises:
            BudgetExceeded: it would overshoot a scope's limit; the first such scope is named.
            ValueError: the event already has a hold, or the amount is negative.
        """
        if event_id in self._holds or micropoints < 0:
            raise ValueError(f"event {event_id} can't be given a hold of {micropoints}")
        windows = []
        for scope in dict.fromkeys(scopes):
            account = self._accounts.setdefault(scope, _Account())
            window = self._window(account, now)
            limit = account.limit
            if limit is not None and window.spent + window.held + micropoints > limit:
                raise BudgetExceeded(
                    scope=scope,
                    limit=limit,
                    spent=window.spent,
                    held=window.held,
                    asked=micropoints,
                    resets_at=account.ends_at.isoformat(),
                )
            windows.append(window)
        for window in windows:
            window.held += micropoints
        self._holds[event_id] = _Hold(micropoints, tuple(windows))

    def settle(self, event_id: EventId, actual: MicroPoints) -> bool:
        """Turn an event's hold into what it really cost; the rest is free again.

        Returns:
            False when the event has no hold (any more): settling twice spends once.

        Raises:
            ValueError: `actual` is negative or above the hold, which is the caller's bug: usage is
                bounded by what the hold was computed from (see `billing.usage_truth`).
        """
        hold = self._holds.get(event_id)
        if hold is None:
            return False
        if not 0 <= actual <= hold.micropoints:
            raise ValueError(f"event {event_id} held {hold.micropoints}, but cost {actual}")
        del self._holds[event_id]
        for window in hold.windows:
            window.held -= hold.micropoints
            window.spent += actual
        return True

    def release(self, event_id: EventId) -> bool:
        """Drop an event's hold and spend nothing; False when it has none."""
        return self.settle(event_id, MicroPoints(0))

    def standing(self, scope: str, now: datetime) -> Standing:
        """Return where a scope stands at `now`; an unknown scope has no limit and spent nothing."""
        account = self._accounts.get(scope)
        if account is None:
            return Standing(scope, None, MicroPoints(0), MicroPoints(0), None)
        window = self._window(account, now)
        limit = None if account.limit is None else MicroPoints(account.limit)
        return Standing(
            scope, limit, MicroPoints(window.spent), MicroPoints(window.held), window.period
        )

    @property
    def open_holds(self) -> int:
        """How many holds are neither settled nor released; zero when nothing runs."""
        return len(self._holds)

    @staticmethod
    def _window(account: _Account, now: datetime) -> _Window:
        """Return the account's window at `now`, rolled when its month is over.

        A clock that stepped back stays in the window it was in: a month is never re-opened.
        """
        if now >= account.ends_at:
            period = month_of(now, account.time_zone)
            account.window = _Window(period)
            account.ends_at = period.end
        return account.window
