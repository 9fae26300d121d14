"""Recovery of a journal at start: what the last process left open is closed, once.

Owns the replay. Runs under the journal's lock, so it can't race a living owner. Reads every segment that
was kept, finds the intents without an outcome, and says what each is billed from its progress slot;
`billing.meter` writes these outcomes before it takes new work.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from billing.errors import UnsupportedJournal
from billing.journal.frames import CRITICAL_TYPE_MIN, Damage, Frame, FrameType, frame_at, scan
from billing.journal.progress import Progress
from billing.journal.records import (
    FORMAT_VERSION,
    SegmentHeader,
    decode_header,
    decode_intent,
    decode_outcome,
)
from billing.journal.segments import SEGMENT_BYTES, Disk, Segment, list_segments
from billing.types import EventId, Usage, UsageIntent, UsageOutcome, UsageSource, UsageStatus
from billing.usage_truth import (
    FLAG_EXPERT_UNKNOWN,
    FLAG_RECOVERED,
    Evidence,
    ReportedUsage,
    decide,
)

SEGMENT_READ_BYTES_MAX = 64 * SEGMENT_BYTES
"""Bound on a segment read at recovery, whatever its writer's setting was."""

FLAG_SLOT_LOST = "progress_lost"
"""The event's progress slot was missing or damaged: what was delivered isn't known, and is not billed."""

_FLAGS_LOST = (FLAG_RECOVERED, FLAG_EXPERT_UNKNOWN, FLAG_SLOT_LOST)
_NOTHING = Usage(0, 0)


@dataclass(slots=True)
class Replay:
    """What a journal holds: its open intents, and where it ends."""

    open_intents: dict[EventId, UsageIntent] = field(default_factory=dict)
    journal_id: str | None = None
    last_index: int = 0
    last_end_bytes: int = 0
    last_seq: int = 0
    damage: list[tuple[Path, int, int]] = field(default_factory=list)
    outcomes: int = 0


def replay(disk: Disk, directories: Sequence[Path]) -> Replay:
    """Return what the kept segments say.

    Damaged stretches are listed and skipped; frames of unknown types are left alone.

    Raises:
        OSError: a segment can't be read.
        UnsupportedJournal: a newer version wrote something that must be understood.
    """
    result = Replay()
    segments = list_segments(disk, directories)
    headers = read_headers(disk, segments)
    ends = segment_ends(segments, headers)
    for header in headers.values():
        result.journal_id = header.journal_id
    for segment in segments:
        data = disk.read(segment.path, 0, ends.get(segment.index, SEGMENT_READ_BYTES_MAX))
        result.last_index, result.last_end_bytes = segment.index, 0
        for offset, found in scan(data):
            if isinstance(found, Damage):
                result.damage.append((segment.path, found.start, found.end))
                continue
            result.last_seq = max(result.last_seq, found.seq)
            result.last_end_bytes = offset + found.size_bytes
            _apply(result, segment, offset, found)
    return result


def read_headers(disk: Disk, segments: Sequence[Segment]) -> dict[int, SegmentHeader]:
    """Return the readable headers of segments by index, in order.

    Raises:
        OSError: one can't be read.
        UnsupportedJournal: a newer version wrote one.
    """
    headers = {}
    for segment in segments:
        header = read_header(disk, segment)
        if header is not None:
            headers[segment.index] = header
    return headers


def segment_ends(
    segments: Sequence[Segment], headers: Mapping[int, SegmentHeader]
) -> dict[int, int]:
    """Return where the valid part of each segment ends that has a successor with a readable header.

    A segment that a later one passes over was never completed and ends at 0; one whose successor lost
    its header is read to the end of the file.
    """
    ends: dict[int, int] = {}
    for index, header in headers.items():
        for segment in segments:
            if segment.index >= index:
                continue
            if segment.index == header.previous_index:
                ends[segment.index] = header.previous_end_bytes
            elif segment.index > header.previous_index and segment.index not in headers:
                ends[segment.index] = 0
            else:
                ends.setdefault(segment.index, SEGMENT_READ_BYTES_MAX)
    return ends


def read_header(disk: Disk, segment: Segment) -> SegmentHeader | None:
    """Return a segment's header, or None when it is damaged or was never written.

    Raises:
        OSError: it can't be read.
        UnsupportedJournal: a newer version wrote it.
    """
    frame = frame_at(disk.read(segment.path, 0, 4096), 0)
    if frame is None or frame.kind != FrameType.HEADER:
        return None
    try:
        header = decode_header(frame.payload)
    except ValueError as error:
        raise UnsupportedJournal(str(segment.path), f"unreadable header: {error}") from error
    if header.version > FORMAT_VERSION:
        raise UnsupportedJournal(
            str(segment.path), f"journal version {header.version}, this is {FORMAT_VERSION}"
        )
    return header


def refuse_unknown_critical(segment: Segment, kind: int) -> None:
    """Pass over a frame of an unknown type if that is safe.

    Raises:
        UnsupportedJournal: its type says that it must be understood.
    """
    if kind >= CRITICAL_TYPE_MIN:
        raise UnsupportedJournal(str(segment.path), f"record type {kind} must be understood")


def recovered_outcomes(
    intents: Mapping[EventId, UsageIntent], progress: Mapping[EventId, Progress], now: datetime
) -> Iterator[UsageOutcome]:
    """Yield the outcome of each intent whose process died, in the order of the intents."""
    for event_id, intent in intents.items():
        yield recovered_outcome(intent, progress.get(event_id), now)


def recovered_outcome(intent: UsageIntent, slot: Progress | None, now: datetime) -> UsageOutcome:
    """Return the outcome of an intent whose process died, from what its slot says."""
    if slot is None or slot.is_damaged:
        return UsageOutcome(
            event_id=intent.event_id,
            status=UsageStatus.ABORTED,
            usage=_NOTHING,
            usage_source=UsageSource.NONE,
            ended_at=now,
            flags=_FLAGS_LOST,
            billed_calls=0,
        )
    verdict = decide(
        intent,
        Evidence(
            status=UsageStatus.ABORTED,
            delivered_chunks=slot.content_chunks_done,
            reported=ReportedUsage(slot.input_tokens, slot.output_tokens),
            is_recovered=True,
        ),
    )
    assert verdict.source in {UsageSource.RECOVERED, UsageSource.NONE}
    return UsageOutcome(
        event_id=intent.event_id,
        status=UsageStatus.ABORTED,
        usage=verdict.usage,
        usage_source=verdict.source,
        ended_at=now,
        delivered_chunks=slot.content_chunks_done,
        delivered_bytes=slot.bytes_done,
        reported_input_tokens=verdict.reported_input_tokens,
        reported_output_tokens=verdict.reported_output_tokens,
        flags=verdict.flags,
        billed_calls=verdict.billed_calls,
    )


def _apply(result: Replay, segment: Segment, offset: int, frame: Frame) -> None:
    try:
        if frame.kind == FrameType.INTENT:
            intent = decode_intent(frame.payload)
            result.open_intents[intent.event_id] = intent
        elif frame.kind == FrameType.OUTCOME:
            result.open_intents.pop(decode_outcome(frame.payload).event_id, None)
            result.outcomes += 1
        elif frame.kind != FrameType.HEADER:
            refuse_unknown_critical(segment, frame.kind)
    except ValueError:
        # Its checksum is right, so another version wrote it: kept in the file, reported, not guessed at.
        result.damage.append((segment.path, offset, offset + frame.size_bytes))
