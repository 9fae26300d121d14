"""The meter of one worker: durable intent before, progress in between, durable outcome after.

Owns a journal directory (locked by `flock`), its progress slots and its writer thread. Decides nothing
about money: what is billed is in the outcome it is given. Every intent that became durable gets exactly
one outcome: from `finish`, from a cancelled `begin`, or from recovery at the next start.
"""

import asyncio
import fcntl
import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from billing.errors import EventConflict, JournalLocked, MeteringUnavailable
from billing.faults import fault_point
from billing.journal.frames import FrameType
from billing.journal.progress import SLOTS, MappedSlot, ProgressFile
from billing.journal.reader import KEPT_SEGMENTS, JournalReader
from billing.journal.records import encode_record
from billing.journal.recovery import Replay, recovered_outcomes, replay
from billing.journal.segments import SEGMENT_BYTES, Disk, PosixDisk
from billing.journal.writer import RETRY_S, JournalPosition, JournalWriter, Queued
from billing.types import (
    EventId,
    Usage,
    UsageIntent,
    UsageOutcome,
    UsageSource,
    UsageStatus,
)

logger = logging.getLogger(__name__)

SEQ_GAP_PER_OPEN = 1_000_000
"""Positions skipped at each open, so that none is used twice even if a torn tail was read before."""

SLOT_SYNC_INTERVAL_S = 0.25
"""Bounds how much progress of a running stream a power loss takes."""

CLOSE_TIMEOUT_S = 30.0
"""How long closing waits for queued outcomes to become durable."""


@dataclass(slots=True, eq=False)
class _Open:
    """An event between its intent and its durable outcome."""

    event_id: EventId
    slot: MappedSlot
    loop: asyncio.AbstractEventLoop
    intent_durable: asyncio.Future[None]
    is_ended: bool = False
    is_durable: bool = False
    waiter: asyncio.Future[None] | None = None


class Meter:
    """Implements `billing.ports.MeterPort` for one worker process; used from one event loop.

    Args:
        directory: the worker's journal directory; created if missing.
        second_directory: takes over when the first one's disk fails; on another disk, to be of use.
        segment_bytes: preallocated size of a journal segment.
        slots: requests in flight at most.
        disk: the disk operations; tests pass one that fails.
        now: the clock, for outcomes the meter writes itself.
        retry_s: pause before a directory that failed is tried again.
        slot_sync_interval_s: bounds what a power loss takes of a running stream's progress.
    """

    def __init__(
        self,
        directory: Path,
        *,
        second_directory: Path | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        slots: int = SLOTS,
        disk: Disk | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        retry_s: float = RETRY_S,
        slot_sync_interval_s: float = SLOT_SYNC_INTERVAL_S,
    ) -> None:
        self.directories: tuple[Path, ...] = (
            (directory,) if second_directory is None else (directory, second_directory)
        )
        self._segment_bytes, self._slot_count, self._now = segment_bytes, slots, now
        self._retry_s, self._slot_sync_interval_s = retry_s, slot_sync_interval_s
        self._disk = PosixDisk() if disk is None else disk
        self._open: dict[EventId, _Open] = {}
        self._resources = ExitStack()
        self._closing = threading.Event()
        self._is_open = False
        self.journal_id = ""
        """Identity of the journal, kept in its segments; known once it is open."""
        self.first_seq = 0
        """Position of the first record written since it was opened."""

    def open(self) -> None:
        """Lock the journal, recover what the last process left open, and begin to take work.

        Raises:
            JournalLocked: another process owns a directory.
            MeteringUnavailable: the journal can't be read or written.
            UnsupportedJournal: a newer version wrote it.
        """
        self._open.clear()
        with ExitStack() as undo:
            try:
                for directory in self.directories:
                    directory.mkdir(parents=True, exist_ok=True)
                    _lock(directory, undo)
                found = replay(self._disk, self.directories)
                self._slots = ProgressFile(
                    self.directories[0] / "progress.slots", slots=self._slot_count
                )
                undo.callback(self._slots.close)
            except OSError as error:
                raise MeteringUnavailable(f"the usage journal can't be opened: {error}") from error
            self._start_writer(found)
            undo.callback(self._writer.stop, CLOSE_TIMEOUT_S)
            fault_point("before_slots_clear")
            self._slots.clear()
            self._closing.clear()
            syncer = threading.Thread(target=self._sync_slots, name="slot-sync", daemon=True)
            syncer.start()
            undo.callback(syncer.join, CLOSE_TIMEOUT_S)
            undo.callback(self._closing.set)
            self._resources = undo.pop_all()
        self._is_open = True

    def close(self) -> None:
        """Make every queued outcome durable and unlock the journal; events still open are recovered later.

        Raises:
            MeteringUnavailable: some outcomes could not be written; recovery will close their events.
        """
        if not self._is_open:
            return
        self._is_open = False
        is_drained = self._writer.stop(CLOSE_TIMEOUT_S)
        self._resources.close()
        if not is_drained:
            raise MeteringUnavailable(
                "outcomes were left unwritten; they are recovered at next start"
            )

    async def begin(self, intent: UsageIntent) -> MappedSlot:
        """Return the event's progress slot when its intent is durable.

        If the caller is cancelled meanwhile, the event is closed here with nothing billed.

        Raises:
            MeteringUnavailable: it can't be made durable, or too much is in flight; nothing may be sent
                to a backend, and the event needs no outcome.
            EventConflict: the event is open already.
        """
        event_id = intent.event_id
        if not self._is_open:
            raise MeteringUnavailable("the usage journal is not open")
        if event_id in self._open:
            raise EventConflict(event_id)
        payload = encode_record(intent)
        loop = asyncio.get_running_loop()
        entry = _Open(event_id, self._slots.claim(event_id), loop, loop.create_future())
        self._open[event_id] = entry
        self._writer.submit(Queued(FrameType.INTENT, payload, entry))
        try:
            await entry.intent_durable
        except asyncio.CancelledError:
            self.finish(_abandoned(event_id, self._now()))
            raise
        fault_point("after_intent")
        return entry.slot

    def finish(self, outcome: UsageOutcome) -> None:
        """Queue the outcome of an open event; returns at once, so it works in a cancelled ``finally``.

        The first outcome of an event counts; another, or one of an event that is not open, is ignored.
        """
        entry = self._open.get(outcome.event_id)
        if entry is None or entry.is_ended:
            return
        entry.is_ended = True
        self._writer.submit(Queued(FrameType.OUTCOME, encode_record(outcome), entry))

    async def finished(self, event_id: EventId) -> None:
        """Return when the outcome of `event_id` is durable; at once when the event is not open.

        While the disk refuses outcomes this waits; the caller has the deadline.
        """
        entry = self._open.get(event_id)
        if entry is not None:
            if entry.waiter is None:
                entry.waiter = entry.loop.create_future()
            # The writer sets the flag before it looks for the waiter, so one of the two sees the other.
            if not entry.is_durable:
                await asyncio.shield(entry.waiter)
        fault_point("after_outcome")

    @property
    def durable_seq(self) -> int:
        """Position up to which the journal is durable."""
        return self._writer.durable_seq

    @property
    def open_events(self) -> int:
        """How many events have no durable outcome yet."""
        return len(self._open)

    @property
    def queued_records(self) -> int:
        """How many records wait for the disk; the age of admission's queue is felt here."""
        return self._writer.queued

    @property
    def is_healthy(self) -> bool:
        """Whether the journal takes records now."""
        return self._is_open and self._writer.is_healthy

    def reader(self, *, after: int, kept_segments: int = KEPT_SEGMENTS) -> JournalReader:
        """Return a reader of this journal's durable outcomes after a position."""
        return JournalReader(
            self._disk,
            self.directories,
            after=after,
            durable_seq=lambda: self._writer.durable_seq,
            kept_segments=kept_segments,
        )

    def _start_writer(self, found: Replay) -> None:
        for path, start, end in found.damage:
            logger.error("journal_damaged", extra={"path": str(path), "start": start, "end": end})
        self.journal_id = found.journal_id or uuid.uuid4().hex
        self.first_seq = found.last_seq + SEQ_GAP_PER_OPEN
        self._writer: JournalWriter[_Open | None] = JournalWriter(
            self._disk,
            self.directories,
            JournalPosition(
                journal_id=self.journal_id,
                boot_id=int.from_bytes(os.urandom(8), "little"),
                next_index=found.last_index + 1,
                next_seq=self.first_seq,
                previous_index=found.last_index,
                previous_end_bytes=found.last_end_bytes,
            ),
            segment_bytes=self._segment_bytes,
            on_durable=self._on_durable,
            on_refused=self._on_refused,
            retry_s=self._retry_s,
        )
        self._writer.start(self._recovered(found))

    def _recovered(self, found: Replay) -> list[Queued[_Open | None]]:
        """Return the outcome of every intent that has none, to be written before anything else."""
        if not found.open_intents:
            return []
        outcomes = list(recovered_outcomes(found.open_intents, self._slots.read(), self._now()))
        logger.warning("journal_recovered", extra={"event_count": len(outcomes)})
        return [Queued(FrameType.OUTCOME, encode_record(outcome), None) for outcome in outcomes]

    def _sync_slots(self) -> None:
        while not self._closing.wait(self._slot_sync_interval_s):
            if self._slots.in_use:
                try:
                    self._slots.sync()
                except OSError as error:
                    # Progress still survives our death; only a power loss would take more than stated.
                    logger.error("slot_sync_failed", extra={"error": str(error)})

    def _on_durable(self, records: Sequence[Queued[_Open | None]]) -> None:
        """Runs in the writer thread."""
        waiting: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for record in records:
            entry = record.token
            if entry is None:
                continue
            if record.kind is FrameType.INTENT:
                waiting.setdefault(entry.loop, []).append(entry.intent_durable)
                continue
            entry.is_durable = True
            self._open.pop(entry.event_id, None)
            self._slots.release(entry.slot)
            if entry.waiter is not None:
                waiting.setdefault(entry.loop, []).append(entry.waiter)
        for loop, futures in waiting.items():
            _call(loop, _resolve, futures)

    def _on_refused(
        self, records: Sequence[Queued[_Open | None]], error: MeteringUnavailable
    ) -> None:
        """Runs in the writer thread."""
        for record in records:
            entry = record.token
            assert entry is not None
            _call(entry.loop, self._refuse, entry, error)

    def _refuse(self, entry: _Open, error: MeteringUnavailable) -> None:
        if entry.intent_durable.done():
            # Its task was cancelled and has queued an outcome, which closes the event.
            return
        del self._open[entry.event_id]
        self._slots.release(entry.slot)
        entry.intent_durable.set_exception(error)


def _abandoned(event_id: EventId, now: datetime) -> UsageOutcome:
    return UsageOutcome(
        event_id=event_id,
        status=UsageStatus.CLIENT_CANCELLED,
        usage=Usage(0, 0),
        usage_source=UsageSource.NONE,
        ended_at=now,
        billed_calls=0,
    )


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        # The loop is closed: nobody waits any more, and the record is on disk.
        logger.info("loop_closed_before_acknowledgement")


def _resolve(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _lock(directory: Path, undo: ExitStack) -> None:
    fd = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    undo.callback(os.close, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JournalLocked(str(directory)) from None
