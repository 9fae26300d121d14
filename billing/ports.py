"""What billing's use cases need from the outside: ports that adapters implement.

`MeterPort` is what the gateway meters through; `LedgerStore` is where events end up. Fakes in
`tests/fakes.py` implement the same protocols.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from billing.types import (
    ApiKey,
    Customer,
    CustomerId,
    EventId,
    KeyId,
    MicroPoints,
    Package,
    RateCard,
    SlaTier,
    Subscription,
    UsageEvent,
    UsageIntent,
    UsageOutcome,
)


class ProgressSlot(Protocol):
    """Crash-proof progress of one stream; every call is synchronous and takes under a microsecond or so."""

    def begin_chunk(self) -> None:
        """Record that a chunk is about to be handed to the client's socket."""

    def chunk_done(self, byte_count: int, *, is_content: bool) -> None:
        """Record that the chunk was accepted by our kernel."""

    def usage_seen(self, input_tokens: int, output_tokens: int) -> None:
        """Record the backend's own (already validated) usage figures."""


class MeterPort(Protocol):
    """Durable metering: intent before, outcome after, progress in between."""

    async def begin(self, intent: UsageIntent) -> ProgressSlot:
        """Return when the intent is durable.

        Raises:
            MeteringUnavailable: it can't be made durable; nothing may be sent to a backend.
        """

    def finish(self, outcome: UsageOutcome) -> None:
        """Enqueue the outcome, synchronously, so that it works in a cancelled task's ``finally``."""

    async def finished(self, event_id: EventId) -> None:
        """Return when the outcome of `event_id` is durable."""


class LedgerStore(Protocol):
    """Where shipped events become the books. One writer; every method is one transaction."""

    def record_events(
        self, events: Sequence[UsageEvent], *, journal_id: str, position: int
    ) -> Sequence[EventId]:
        """Insert events not yet in the books with their lines and ledger entries, and move the cursor.

        Returns the ids that were new. An id already present with the same content is ignored; with
        different content it is quarantined and reported, and the batch goes on. `journal_id` is stable and
        unique to one journal, `position` belongs to the last event of the batch; the cursor never moves
        back. Called from the shipper's thread, and again with the same batch after any exception.

        Raises:
            StoreUnavailable: nothing is known to be written; the batch is shipped again.
        """

    def cursor(self, journal_id: str) -> int:
        """Return the position up to which a journal was shipped (0 when never)."""

    def spent_since(self, start: datetime) -> Sequence[tuple[CustomerId, KeyId, MicroPoints]]:
        """Return what each key spent on events that occurred at or after `start`."""


class AccountsStore(Protocol):
    """Read side for the data plane: everything it needs to admit a request, in one snapshot."""

    def epoch(self) -> int:
        """Return a number that grows with every change to accounts or catalog."""

    def customers(self) -> Sequence[Customer]:
        """Return every customer."""

    def keys(self) -> Sequence[ApiKey]:
        """Return every key, revoked ones included."""

    def subscriptions(self) -> Sequence[Subscription]:
        """Return every subscription."""

    def packages(self) -> Sequence[Package]:
        """Return the packages of the catalog in force."""

    def sla_tiers(self) -> Sequence[SlaTier]:
        """Return the SLA tiers of the catalog in force."""

    def rate_cards(self, at: datetime) -> Sequence[RateCard]:
        """Return the rate card in force at `at` for each priced expert."""
