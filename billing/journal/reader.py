"""Reading a journal while it is written: outcomes with their intents, in order, after a position.

Owns following the segments and deciding which may be deleted. Reads only up to the durable position it
is given, so nothing reaches the books that a power loss could take back. Segments are deleted oldest
first, once everything in them is shipped and no intent in them is open; the last few are kept as
evidence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from billing.journal.frames import Frame, FrameType, frame_at, next_frame
from billing.journal.records import decode_intent, decode_outcome
from billing.journal.recovery import (
    SEGMENT_READ_BYTES_MAX,
    read_headers,
    refuse_unknown_critical,
    segment_ends,
)
from billing.journal.segments import Disk, Segment, list_segments
from billing.types import EventId, UsageEvent, UsageIntent, UsageOutcome, UsageSource

KEPT_SEGMENTS = 4
"""Fully shipped segments kept as evidence; 32 MiB at the default size."""

READ_BYTES = 256 * 1024
"""Bytes read at a time; more than the largest frame."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Events in journal order and the position of the last one.

    `orphans` are outcomes whose intent could not be read; `damage` lists unreadable stretches.
    """

    events: Sequence[UsageEvent]
    position: int
    orphans: Sequence[UsageOutcome] = ()
    damage: Sequence[tuple[Path, int, int]] = ()


@dataclass(slots=True)
class _Progress:
    """How far one segment was read."""

    segment: Segment
    offset: int = 0
    last_seq: int = 0
    open_intents: int = 0
    is_finished: bool = False


@dataclass(slots=True)
class _Found:
    events: list[UsageEvent] = field(default_factory=list)
    orphans: list[UsageOutcome] = field(default_factory=list)
    damage: list[tuple[Path, int, int]] = field(default_factory=list)


class JournalReader:
    """Follows one journal from a position on; used from one thread."""

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[Path],
        *,
        after: int,
        durable_seq: Callable[[], int],
        kept_segments: int = KEPT_SEGMENTS,
    ) -> None:
        self._disk, self._directories = disk, tuple(directories)
        self._durable_seq, self._kept_segments = durable_seq, kept_segments
        self._after = after
        self._read: list[_Progress] = []
        self._open: dict[EventId, tuple[UsageIntent, _Progress]] = {}
        self._seen_seq = 0
        self._found = _Found()
        self.position = after
        """Position of the last outcome returned, or the position to begin after."""

    @property
    def open_intents(self) -> int:
        """How many intents were read whose outcome was not."""
        return len(self._open)

    def read(self, limit: int) -> Batch:
        """Return up to `limit` further events; fewer when the journal has no more for now.

        Raises:
            OSError: a segment can't be read; calling again goes on where it stopped.
            UnsupportedJournal: a newer version wrote something that must be understood.
        """
        # Kept until it is returned: an error half-way must not lose what was read before it.
        found = self._found
        # The order matters: what failed in an old segment has a number above this, unless the new
        # segment that says so exists already.
        durable_seq = self._durable_seq()
        if self._seen_seq < durable_seq:
            segments = list_segments(self._disk, self._directories)
            ends = self._ends(segments)
            while (progress := self._current(segments)) is not None:
                is_finished = self._read_segment(
                    progress, ends.get(progress.segment.index), durable_seq, limit, found
                )
                if not is_finished or len(found.events) >= limit:
                    break
        self._found = _Found()
        return Batch(found.events, self.position, found.orphans, found.damage)

    def reclaim(self, shipped: int) -> int:
        """Delete the oldest segments that are wholly shipped up to `shipped`; return how many.

        Keeps the last `kept_segments` of those, and every segment after one that must stay: an intent
        is never kept without its outcome.

        Raises:
            OSError: a segment can't be deleted.
        """
        is_done = [
            progress.last_seq <= shipped and progress.open_intents == 0
            for progress in self._read[:-1]
        ]
        done = is_done.index(False) if False in is_done else len(is_done)
        surplus = max(0, done - self._kept_segments)
        for _ in range(surplus):
            self._disk.delete(self._read[0].segment.path)
            del self._read[0]
        return surplus

    def _ends(self, segments: Sequence[Segment]) -> dict[int, int]:
        """Return where each segment that has a successor ends, from the current one on."""
        current = self._read[-1].segment.index if self._read else 0
        following = [segment for segment in segments if segment.index >= current]
        return segment_ends(following, read_headers(self._disk, following))

    def _current(self, segments: Sequence[Segment]) -> _Progress | None:
        """Return the segment to read on in: the last one, or the next when that is finished."""
        if self._read and not self._read[-1].is_finished:
            return self._read[-1]
        last = self._read[-1].segment.index if self._read else -1
        following = next((segment for segment in segments if segment.index > last), None)
        if following is None:
            return None
        self._read.append(_Progress(following))
        return self._read[-1]

    def _read_segment(
        self, progress: _Progress, end: int | None, durable_seq: int, limit: int, found: _Found
    ) -> bool:
        """Read on in a segment; True when it is finished and the next one may be read."""
        while end is None or progress.offset < end:
            if end is None and self._seen_seq >= durable_seq:
                return False
            size_bytes = READ_BYTES if end is None else min(READ_BYTES, end - progress.offset)
            data = self._disk.read(progress.segment.path, progress.offset, size_bytes)
            offset = 0
            while (frame := frame_at(data, offset)) is not None:
                if frame.seq > durable_seq or len(found.events) >= limit:
                    return False
                offset += frame.size_bytes
                progress.offset += frame.size_bytes
                self._take(progress, frame, found)
            if offset == 0 and not self._skip_damage(progress, end, found):
                break
        progress.is_finished = end is not None
        return progress.is_finished

    def _skip_damage(self, progress: _Progress, end: int | None, found: _Found) -> bool:
        """Move past what can't be read; False when nothing follows (for now)."""
        size_bytes = (end or SEGMENT_READ_BYTES_MAX) - progress.offset
        data = self._disk.read(progress.segment.path, progress.offset, size_bytes)
        resumed = next_frame(data, 0)
        if resumed is None:
            if end is not None and data.strip(b"\0"):
                found.damage.append((progress.segment.path, progress.offset, end))
            return False
        start = progress.offset
        progress.offset += resumed
        found.damage.append((progress.segment.path, start, progress.offset))
        return True

    def _take(self, progress: _Progress, frame: Frame, found: _Found) -> None:
        progress.last_seq = self._seen_seq = frame.seq
        try:
            if frame.kind == FrameType.INTENT:
                intent = decode_intent(frame.payload)
                self._open[intent.event_id] = intent, progress
                progress.open_intents += 1
            elif frame.kind == FrameType.OUTCOME:
                self._close(decode_outcome(frame.payload), frame.seq, found)
            elif frame.kind != FrameType.HEADER:
                refuse_unknown_critical(progress.segment, frame.kind)
        except ValueError:
            end = progress.offset
            found.damage.append((progress.segment.path, end - frame.size_bytes, end))

    def _close(self, outcome: UsageOutcome, seq: int, found: _Found) -> None:
        intent, progress = self._open.pop(outcome.event_id, (None, None))
        if progress is not None:
            progress.open_intents -= 1
        if seq <= self._after:
            return
        self.position = seq
        if intent is not None:
            found.events.append(UsageEvent(intent, outcome))
        elif outcome.usage_source is not UsageSource.NONE:
            # One that bills nothing is what remains of a cancelled request whose intent was refused.
            found.orphans.append(outcome)
