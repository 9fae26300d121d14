"""The writer thread of a journal: group commit, rotation, and what happens when the disk fails.

Owns the active segment. Whatever is queued when the thread is free goes out as one write and one sync,
so batches grow by themselves under load and a lone record waits for nothing. Records are acknowledged
only after the sync.

After a failed write or sync the file is never touched again, because the kernel may report a later sync
of lost pages as a success. Its valid end is noted in the next segment's header, which goes to another
directory if there is one; records not acknowledged are written again there. Without such a segment
intents are refused and outcomes wait in memory (their progress slots survive us) until a new segment
can be made; that is tried once per `RETRY_S`.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from billing.errors import MeteringUnavailable
from billing.faults import fault_point
from billing.journal.frames import HEADER_BYTES, FrameType, encode_frame
from billing.journal.records import FORMAT_VERSION, SegmentHeader, encode_record
from billing.journal.segments import (
    SEGMENT_BYTES_MIN,
    Disk,
    segment_path,
    write_fully,
)

RETRY_S = 1.0
"""Pause before a directory that failed is tried again."""

RESERVE_SHARE = 4
"""One part in four of a segment is kept for outcomes, so that a full disk doesn't strand requests."""

BATCH_BYTES_MAX = 1024 * 1024
"""Bytes per write: bounds how long the first record of a batch waits for the last."""

Token = TypeVar("Token")


@dataclass(slots=True, eq=False)
class Queued(Generic[Token]):
    """A record on its way to the disk; `token` is the submitter's."""

    kind: FrameType
    payload: bytes
    token: Token


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """Where a journal goes on: the next numbers, and the valid end of its last segment."""

    journal_id: str
    boot_id: int
    next_index: int = 1
    next_seq: int = 1
    previous_index: int = 0
    previous_end_bytes: int = 0


@dataclass(slots=True)
class _Active:
    path: Path
    index: int
    fd: int
    end_bytes: int


class JournalWriter(Generic[Token]):
    """Appends records in the order of `submit`; one thread writes, any may submit.

    `on_durable` and `on_refused` are called in the writer thread, once per batch, and must not block.
    """

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[Path],
        position: JournalPosition,
        *,
        segment_bytes: int,
        on_durable: Callable[[Sequence[Queued[Token]]], None],
        on_refused: Callable[[Sequence[Queued[Token]], MeteringUnavailable], None],
        retry_s: float = RETRY_S,
    ) -> None:
        if segment_bytes < SEGMENT_BYTES_MIN:
            raise ValueError(f"a segment has at least {SEGMENT_BYTES_MIN} bytes: {segment_bytes}")
        self._disk, self._directories = disk, list(directories)
        self._journal_id, self._boot_id = position.journal_id, position.boot_id
        self._next_index, self._next_seq = position.next_index, position.next_seq
        self._previous = position.previous_index, position.previous_end_bytes
        self._segment_bytes, self._retry_s = segment_bytes, retry_s
        self._intent_limit = segment_bytes - segment_bytes // RESERVE_SHARE
        self._on_durable, self._on_refused = on_durable, on_refused
        self._queue: queue.SimpleQueue[Queued[Token] | None] = queue.SimpleQueue()
        self._unacknowledged: list[Queued[Token]] = []
        self._retry_at: dict[Path, float] = {}
        self._active: _Active | None = None
        self._last_error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self.durable_seq = position.next_seq - 1
        """Position up to which the journal is durable; only grows."""

    def start(self, first: Sequence[Queued[Token]] = ()) -> None:
        """Make the first segment, write what recovery found into it, and start the thread.

        Raises:
            MeteringUnavailable: no directory takes a segment, or not all of `first` became durable.
        """
        if not self._rotate():
            raise self._unavailable()
        self._commit(list(first))
        if self._unacknowledged:
            raise self._unavailable()
        self._thread.start()

    def submit(self, record: Queued[Token]) -> None:
        """Queue a record; returns at once."""
        self._queue.put(record)

    def stop(self, timeout_s: float) -> bool:
        """Write what is queued and end the thread; True if everything queued became durable."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        is_drained = not self._thread.is_alive() and not self._unacknowledged
        if not self._thread.is_alive() and self._active is not None:
            self._disk.close(self._active.fd)
            self._active = None
        return is_drained

    @property
    def queued(self) -> int:
        """How many records wait for the disk."""
        return self._queue.qsize() + len(self._unacknowledged)

    @property
    def is_healthy(self) -> bool:
        """Whether the journal takes records now."""
        return self._active is not None and not self._unacknowledged

    def _run(self) -> None:
        is_stopping = False
        while not is_stopping:
            batch, is_stopping = self._next_batch()
            if batch or self._unacknowledged:
                self._commit(self._unacknowledged + batch)

    def _next_batch(self) -> tuple[list[Queued[Token]], bool]:
        """Wait for a record, then take every other that is queued; the flag says to stop after it."""
        batch: list[Queued[Token]] = []
        try:
            record = self._queue.get(timeout=self._retry_s if self._unacknowledged else None)
            while record is not None:
                batch.append(record)
                record = self._queue.get_nowait()
        except queue.Empty:
            return batch, False
        return batch, True

    def _commit(self, pending: list[Queued[Token]]) -> None:
        self._unacknowledged = []
        while pending:
            count = self._fitting(pending, self._intent_limit)
            if count:
                if self._append(pending[:count]):
                    pending = pending[count:]
            elif not self._rotate():
                self._unacknowledged = self._save_outcomes(self._refuse_intents(pending))
                return

    def _fitting(self, pending: Sequence[Queued[Token]], intent_limit: int) -> int:
        """Return how many of the first records go into the active segment as one batch."""
        if self._active is None:
            return 0
        end = self._active.end_bytes
        batch_end = end + BATCH_BYTES_MAX
        for count, record in enumerate(pending):
            end += HEADER_BYTES + len(record.payload)
            limit = intent_limit if record.kind is FrameType.INTENT else self._segment_bytes
            if end > min(limit, batch_end):
                return count
        return len(pending)

    def _append(self, records: Sequence[Queued[Token]]) -> bool:
        """Make records durable at the end of the active segment; False when the disk failed."""
        active = self._active
        assert active is not None
        seq = self._next_seq
        data = b"".join(
            [
                encode_frame(record.kind, seq + index, self._boot_id, record.payload)
                for index, record in enumerate(records)
            ]
        )
        self._next_seq = seq + len(records)
        try:
            fault_point("before_journal_write")
            write_fully(self._disk, active.fd, data, active.end_bytes)
            if records[0].kind is FrameType.INTENT:
                fault_point("before_intent_fsync")
            else:
                fault_point("before_outcome_fsync")
            self._disk.sync(active.fd)
        except OSError as error:
            self._seal_failed(active, error)
            return False
        active.end_bytes += len(data)
        self.durable_seq = self._next_seq - 1
        self._on_durable(records)
        return True

    def _seal_failed(self, active: _Active, error: OSError) -> None:
        self._last_error = error
        self._retry_at[active.path.parent] = time.monotonic() + self._retry_s
        self._retire(active)

    def _retire(self, active: _Active) -> None:
        self._previous = active.index, active.end_bytes
        self._active = None
        try:
            self._disk.close(active.fd)
        except OSError as error:
            # The descriptor is gone either way; what was acknowledged was synced before.
            self._last_error = error

    def _rotate(self) -> bool:
        """Begin a new segment in the first directory that takes one; False when none does.

        The old segment stays active when there is no new one: its reserve takes outcomes.
        """
        for directory in self._directories:
            if time.monotonic() < self._retry_at.get(directory, 0.0):
                continue
            try:
                self._begin_segment(directory)
            except OSError as error:
                self._last_error = error
                self._retry_at[directory] = time.monotonic() + self._retry_s
            else:
                return True
        return False

    def _begin_segment(self, directory: Path) -> None:
        replaced = self._active
        previous = self._previous if replaced is None else (replaced.index, replaced.end_bytes)
        # An index is used once, whatever becomes of the attempt.
        index = self._next_index
        self._next_index += 1
        header = SegmentHeader(
            version=FORMAT_VERSION,
            journal_id=self._journal_id,
            index=index,
            previous_index=previous[0],
            previous_end_bytes=previous[1],
        )
        path = segment_path(directory, index)
        frame = encode_frame(FrameType.HEADER, self._next_seq, self._boot_id, encode_record(header))
        fd = self._disk.create(path, self._segment_bytes)
        try:
            write_fully(self._disk, fd, frame, 0)
            self._disk.sync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.close(fd)
                self._disk.delete(path)
            raise
        if replaced is not None:
            self._retire(replaced)
        self._next_seq += 1
        self._active = _Active(path, index, fd, len(frame))

    def _refuse_intents(self, pending: Sequence[Queued[Token]]) -> list[Queued[Token]]:
        intents = [record for record in pending if record.kind is FrameType.INTENT]
        if intents:
            self._on_refused(intents, self._unavailable())
        return [record for record in pending if record.kind is not FrameType.INTENT]

    def _save_outcomes(self, outcomes: list[Queued[Token]]) -> list[Queued[Token]]:
        """Write outcomes into what the active segment kept for them; return those that remain."""
        while outcomes:
            count = self._fitting(outcomes, 0)
            if not count or not self._append(outcomes[:count]):
                break
            outcomes = outcomes[count:]
        return outcomes

    def _unavailable(self) -> MeteringUnavailable:
        return MeteringUnavailable(f"the usage journal can't be written: {self._last_error}")
