"""Builders and fakes for the tests of metering: intents, outcomes, disks that fail and forget."""

import errno
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from billing.errors import StoreUnavailable
from billing.ids import new_event_id
from billing.journal.segments import PosixDisk
from billing.types import (
    CatalogVersion,
    CustomerId,
    EventId,
    KeyId,
    MicroPoints,
    PriceVersion,
    ProjectId,
    Usage,
    UsageEvent,
    UsageIntent,
    UsageOutcome,
    UsageSource,
    UsageStatus,
)
from routing_engine.types import ExpertId, ReplicaId

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def event_id(number: int) -> EventId:
    return new_event_id(1_764_590_400_000_000 + number, number.to_bytes(8, "big"))


def an_intent(number: int = 1, **changes: object) -> UsageIntent:
    intent = UsageIntent(
        event_id=event_id(number),
        request_id=f"req-{number}",
        customer_id=CustomerId("acme"),
        project_id=ProjectId("web"),
        key_id=KeyId("key-1"),
        expert_id=ExpertId("python-algorithm"),
        replica_id=ReplicaId("python-algorithm/1"),
        price_version=PriceVersion(3),
        catalog_version=CatalogVersion(2),
        dictionary_version=7,
        route_source="gate",
        operation="chat",
        streamed=True,
        occurred_at=NOON,
        hold=MicroPoints(10_000_000),
        input_tokens_max=4000,
        output_tokens_max=1000,
        input_tokens_estimate=120,
    )
    return replace(intent, **changes)  # type: ignore[arg-type]


def an_outcome(number: int = 1, **changes: object) -> UsageOutcome:
    outcome = UsageOutcome(
        event_id=event_id(number),
        status=UsageStatus.COMPLETED,
        usage=Usage(120, 20),
        usage_source=UsageSource.BACKEND,
        ended_at=NOON,
        delivered_chunks=20,
        delivered_bytes=2000,
        reported_input_tokens=120,
        reported_output_tokens=20,
        backend_status=200,
        duration_us=30_000,
    )
    return replace(outcome, **changes)  # type: ignore[arg-type]


class FakeLedger:
    """A ledger store in memory: event id unique, cursor per journal; fails while `failures` lasts."""

    def __init__(self) -> None:
        self.events: dict[EventId, UsageEvent] = {}
        self.cursors: dict[str, int] = {}
        self.calls = 0
        self.failures = 0
        self.loses_answers = 0
        self.conflicts: list[EventId] = []

    def record_events(
        self, events: Sequence[UsageEvent], *, journal_id: str, position: int
    ) -> Sequence[EventId]:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("down")
        new = []
        for event in events:
            known = self.events.setdefault(event.intent.event_id, event)
            if known is event:
                new.append(event.intent.event_id)
            elif known != event:
                self.conflicts.append(event.intent.event_id)
        if self.loses_answers:
            self.loses_answers -= 1
            raise ConnectionResetError("committed, but who knows")
        self.cursors[journal_id] = max(position, self.cursors.get(journal_id, 0))
        return new

    def cursor(self, journal_id: str) -> int:
        return self.cursors.get(journal_id, 0)

    def spent_since(self, start: datetime) -> Sequence[tuple[CustomerId, KeyId, MicroPoints]]:
        return []


class FailingDisk(PosixDisk):
    """The real disk, except that calls listed as (operation, directory name) raise; counts operations.

    An entry is used up by the call it fails, unless `is_lasting`.
    """

    def __init__(self) -> None:
        self.failing: dict[tuple[str, str], int] = {}
        self.is_lasting = False
        self.short_writes = 0
        self.synced: list[int] = []
        self.touched_after_failure: list[int] = []
        self._failed_fds: set[int] = set()
        self._paths: dict[int, str] = {}

    def create(self, path: Path, size_bytes: int) -> int:
        self._maybe_fail("create", path.parent.name)
        fd = super().create(path, size_bytes)
        self._paths[fd] = path.parent.name
        self._failed_fds.discard(fd)
        return fd

    def write(self, fd: int, data: bytes, offset: int) -> int:
        self._check(fd, "write")
        if self.short_writes and len(data) > 1:
            self.short_writes -= 1
            data = data[: len(data) // 2]
        return super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._check(fd, "sync")
        super().sync(fd)
        self.synced.append(fd)

    def _check(self, fd: int, operation: str) -> None:
        if fd in self._failed_fds:
            self.touched_after_failure.append(fd)
        try:
            self._maybe_fail(operation, self._paths[fd])
        except OSError:
            self._failed_fds.add(fd)
            raise

    def _maybe_fail(self, operation: str, directory: str) -> None:
        left = self.failing.get((operation, directory), 0)
        if left:
            if not self.is_lasting:
                self.failing[operation, directory] = left - 1
            code = errno.ENOSPC if operation == "create" else errno.EIO
            raise OSError(code, f"injected {operation}")


class ForgetfulDisk:
    """A disk in memory that forgets what was not synced, in any mix, when its power is cut."""

    def __init__(self, cut_after: int | None = None) -> None:
        self.files: dict[Path, bytearray] = {}
        self.unsynced: dict[Path, list[tuple[int, bytes]]] = {}
        self._fds: dict[int, Path] = {}
        self._operations_left = cut_after
        self._next_fd = 3

    def _operate(self) -> None:
        if self._operations_left is not None:
            if self._operations_left == 0:
                raise OSError(errno.EIO, "no power")
            self._operations_left -= 1

    def list(self, directory: Path) -> Sequence[str]:
        return [path.name for path in self.files if path.parent == directory]

    def create(self, path: Path, size_bytes: int) -> int:
        self._operate()
        if path in self.files:
            raise FileExistsError(path)
        self.files[path] = bytearray(size_bytes)
        self.unsynced[path] = []
        self._next_fd += 1
        self._fds[self._next_fd] = path
        return self._next_fd

    def write(self, fd: int, data: bytes, offset: int) -> int:
        self._operate()
        self.unsynced[self._fds[fd]].append((offset, data))
        return len(data)

    def sync(self, fd: int) -> None:
        self._operate()
        self._apply(self._fds[fd])

    def close(self, fd: int) -> None:
        del self._fds[fd]

    def read(self, path: Path, offset: int, size_bytes: int) -> bytes:
        content = bytearray(self.files[path])
        for at, data in self.unsynced[path]:
            content[at : at + len(data)] = data
        return bytes(content[offset : offset + size_bytes])

    def delete(self, path: Path) -> None:
        self._operate()
        del self.files[path], self.unsynced[path]

    def _apply(self, path: Path) -> None:
        for offset, data in self.unsynced[path]:
            self.files[path][offset : offset + len(data)] = data
        self.unsynced[path] = []

    def after_power_loss(self, dice: random.Random) -> "ForgetfulDisk":
        """Return a disk with what was synced, and of each other write all, a torn part or nothing."""
        survivor = ForgetfulDisk()
        for path, content in self.files.items():
            image = bytearray(content)
            for offset, data in self.unsynced[path]:
                # Sectors of 512 bytes reach the disk whole, in any order.
                for start in range(0, len(data), 512):
                    if dice.random() < 0.5:
                        sector = data[start : start + 512]
                        image[offset + start : offset + start + len(sector)] = sector
            survivor.files[path] = image
            survivor.unsynced[path] = []
        return survivor
