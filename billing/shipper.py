"""The shipper: moves a journal's events into the books, at least once, where they count once.

Owns one thread and its retries. Off the request path: when the store is down, the backlog grows in the
journal and requests don't notice. The store's `record_events` ignores events it already has, so a
commit whose answer was lost is simply made again.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from billing.faults import fault_point
from billing.journal.reader import KEPT_SEGMENTS, Batch, JournalReader
from billing.meter import Meter
from billing.ports import LedgerStore
from billing.types import UsageEvent

logger = logging.getLogger(__name__)

BATCH_EVENTS_MAX = 1000
"""Events per transaction: enough to make the commit cheap, few enough to hold in memory."""

SHIP_INTERVAL_S = 0.1
"""How long the shipper waits for more when it has caught up."""

RETRY_S_MIN = 0.1
RETRY_S_MAX = 5.0
"""Bounds of the pause after a failure; it doubles from one to the next and is spread by half."""

STOP_TIMEOUT_S = 30.0
"""How long stopping waits for a running transaction."""


@dataclass(frozen=True, slots=True)
class ShipperStatus:
    """How shipping goes: events shipped, failures in a row, and what could not be read."""

    shipped_events: int
    consecutive_failures: int
    orphans: int
    damaged_stretches: int
    last_error: str = ""


class Shipper:
    """Ships one meter's journal to a store from its own thread.

    Args:
        meter: an open meter; it may be closed before the last drain.
        store: where events become the books; called from this thread only.
        on_shipped: told of each batch after its transaction, in this thread.
        batch_events_max: events per transaction.
        interval_s: pause when there is nothing to ship.
        kept_segments: shipped segments kept as evidence.
        retry_s_min: first pause after a failure.
        spread: draws a number in [0, 1) that spreads the pauses.
    """

    def __init__(
        self,
        meter: Meter,
        store: LedgerStore,
        on_shipped: Callable[[Sequence[UsageEvent]], None] = lambda _: None,
        *,
        batch_events_max: int = BATCH_EVENTS_MAX,
        interval_s: float = SHIP_INTERVAL_S,
        kept_segments: int = KEPT_SEGMENTS,
        retry_s_min: float = RETRY_S_MIN,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._meter, self._store, self._on_shipped = meter, store, on_shipped
        self._batch_events_max, self._interval_s = batch_events_max, interval_s
        self._kept_segments, self._retry_s_min, self._spread = kept_segments, retry_s_min, spread
        self._thread = threading.Thread(target=self._run, name="journal-shipper", daemon=True)
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._progress = threading.Condition()
        self._shipped_seq = -1
        self._reader: JournalReader | None = None
        self._pending: tuple[Batch, int] | None = None
        self._status = ShipperStatus(0, 0, 0, 0)

    def start(self) -> None:
        """Start shipping."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the transaction it is in; what is left is shipped at the next start."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def drain(self, timeout_s: float) -> bool:
        """Return True once all that was durable at the call is in the books; False after the timeout."""
        target = self._meter.durable_seq
        deadline = time.monotonic() + timeout_s
        self._wake.set()
        with self._progress:
            while self._shipped_seq < target:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self._progress.wait(left_s)
        return True

    @property
    def status(self) -> ShipperStatus:
        """How shipping goes."""
        return self._status

    @property
    def backlog_records(self) -> int:
        """How many records written since the journal was opened are not in the books yet."""
        return self._meter.durable_seq - max(self._shipped_seq, self._meter.first_seq - 1)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            pause_s = 0.0
            try:
                if not self.ship_once():
                    pause_s = self._interval_s
                failures = 0
            # Whatever the store raises, the answer is the same: keep the batch and try again. Dying here
            # would silently stop the books.
            except Exception as error:  # noqa: BLE001
                failures += 1
                pause_s = self._after_failure(error, failures)
            if pause_s and self._wake.wait(pause_s):
                self._wake.clear()

    def ship_once(self) -> bool:
        """Ship one batch; True if there may be more at once. For the thread, and for tests without it.

        Raises:
            Exception: whatever the store or the disk raised; the batch is kept for the next call.
        """
        if self._reader is None:
            after = self._store.cursor(self._meter.journal_id)
            self._reader = self._meter.reader(after=after, kept_segments=self._kept_segments)
        if self._pending is None:
            looked_at = self._meter.durable_seq
            self._pending = self._reader.read(self._batch_events_max), looked_at
            self._report(self._pending[0])
        batch, looked_at = self._pending
        if batch.events:
            self._store.record_events(
                batch.events, journal_id=self._meter.journal_id, position=batch.position
            )
            fault_point("after_ledger_commit")
        self._pending = None
        is_full = len(batch.events) >= self._batch_events_max
        self._note(batch, batch.position if is_full else looked_at)
        if batch.events:
            self._on_shipped(batch.events)
            self._reader.reclaim(batch.position)
        return is_full

    def _note(self, batch: Batch, shipped_seq: int) -> None:
        status = self._status
        with self._progress:
            self._shipped_seq = max(self._shipped_seq, shipped_seq)
            self._status = ShipperStatus(
                status.shipped_events + len(batch.events),
                0,
                status.orphans + len(batch.orphans),
                status.damaged_stretches + len(batch.damage),
            )
            self._progress.notify_all()

    def _report(self, batch: Batch) -> None:
        for path, start, end in batch.damage:
            logger.error("journal_damaged", extra={"path": str(path), "start": start, "end": end})
        for outcome in batch.orphans:
            logger.error("outcome_without_intent", extra={"event_id": outcome.event_id})

    def _after_failure(self, error: Exception, failures: int) -> float:
        status = self._status
        self._status = ShipperStatus(
            status.shipped_events,
            failures,
            status.orphans,
            status.damaged_stretches,
            f"{type(error).__name__}: {error}",
        )
        logger.warning("shipping_failed", extra={"error": self._status.last_error})
        pause_s = min(RETRY_S_MAX, self._retry_s_min * 2.0 ** min(failures - 1, 16))
        return pause_s * (0.5 + self._spread() / 2)
