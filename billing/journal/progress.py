"""Progress slots: how far each running stream has come, kept where a kill -9 can't reach it.

Owns a memory-mapped file of 4,096 slots of 128 bytes. The pages belong to the kernel, so every store
survives the death of the process; `sync` bounds what a power loss takes. A slot is sixteen aligned
64-bit words, each stored by one machine instruction, so no word is ever half written::

    0, 1  event id              5  bytes done             9  check of 7 and 8, written after them
    2     (unused)              6  content chunks done    15 check of 0 and 1, written last on claiming
    3     chunks begun          7  input tokens reported
    4     chunks done           8  output tokens reported

The words of one chunk are stored in the order begun, bytes, content, done; a reader believes a slot only
if ``content <= done + 1`` and ``done <= begun <= done + 1``, which every interrupted update satisfies and
hardly any damage does.
"""

import contextlib
import mmap
import os
import struct
import zlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from billing.errors import MeteringUnavailable
from billing.ids import event_id_bytes, event_id_text
from billing.journal.segments import reserve_space, sync_data
from billing.types import EventId

SLOTS = 4096
"""Requests in flight at once per worker; more are refused."""

SLOT_BYTES = 128
_WORDS = SLOT_BYTES // 8

_ID, _BEGUN, _DONE, _BYTES, _CONTENT, _INPUT, _OUTPUT, _USAGE_CHECK, _CHECK = (
    0,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    15,
)
_COUNT_MAX = 2**62
_CHECK_SET = 1 << 32
"""Added to checks, so that zeros are never valid."""

_ZEROS = memoryview(bytes(SLOT_BYTES)).cast("Q")[:_CHECK]
_NOWHERE = memoryview(bytearray(SLOT_BYTES)).cast("Q")
"""Where calls on a slot go that was released; never read."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a slot said about an event; `is_damaged` when its counters contradict each other."""

    event_id: EventId
    chunks_begun: int
    chunks_done: int
    bytes_done: int
    content_chunks_done: int
    input_tokens: int | None = None
    output_tokens: int | None = None
    is_damaged: bool = False


class MappedSlot:
    """The slot of one event; see `billing.ports.ProgressSlot`. Used by one task at a time."""

    __slots__ = ("_index", "_words")

    def __init__(self, words: memoryview, index: int) -> None:
        self._words, self._index = words, index

    def begin_chunk(self) -> None:
        """Record that a chunk is about to be handed to the client's socket."""
        self._words[_BEGUN] += 1

    def chunk_done(self, byte_count: int, *, is_content: bool) -> None:
        """Record that the chunk was accepted by our kernel."""
        words = self._words
        words[_BYTES] += byte_count
        if is_content:
            words[_CONTENT] += 1
        words[_DONE] += 1

    def usage_seen(self, input_tokens: int, output_tokens: int) -> None:
        """Record the backend's own usage figures, which the caller has validated.

        Raises:
            ValueError: a figure is negative or absurd.
        """
        if not (0 <= input_tokens <= _COUNT_MAX and 0 <= output_tokens <= _COUNT_MAX):
            raise ValueError(f"not validated token counts: {input_tokens}, {output_tokens}")
        words = self._words
        words[_USAGE_CHECK] = 0
        words[_INPUT] = input_tokens
        words[_OUTPUT] = output_tokens
        words[_USAGE_CHECK] = _check(input_tokens, output_tokens)

    def detach(self) -> int:
        """Let later calls record nowhere, so that they can't touch the next owner's counters.

        Returns the index of the slot.
        """
        self._words = _NOWHERE
        return self._index


class ProgressFile:
    """The slots of one journal; claimed and released by its meter."""

    def __init__(self, path: Path, *, slots: int = SLOTS) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            reserve_space(self._fd, slots * SLOT_BYTES)
            # A file left by a process with more slots is mapped whole, so that none is overlooked.
            slots = os.fstat(self._fd).st_size // SLOT_BYTES
            self._map = mmap.mmap(self._fd, slots * SLOT_BYTES)
        except OSError:
            os.close(self._fd)
            raise
        self._words = memoryview(self._map).cast("Q")
        self._free = deque(range(slots))
        self.slots = slots

    def claim(self, event_id: EventId) -> MappedSlot:
        """Return a zeroed slot for an event.

        Raises:
            MeteringUnavailable: all slots are in use.
            ValueError: the event id is not a canonical UUID.
        """
        first, second = struct.unpack("=QQ", event_id_bytes(event_id))
        try:
            index = self._free.popleft()
        except IndexError:
            raise MeteringUnavailable(f"{self.slots} requests are in flight already") from None
        words = self._words[index * _WORDS : (index + 1) * _WORDS]
        words[_CHECK] = 0
        words[:_CHECK] = _ZEROS
        words[_ID] = first
        words[_ID + 1] = second
        words[_CHECK] = _check(first, second)
        return MappedSlot(words, index)

    def release(self, slot: MappedSlot) -> None:
        """Make a slot free for another event; called once its outcome is durable, from any thread."""
        self._free.append(slot.detach())

    @property
    def in_use(self) -> int:
        """How many slots are claimed."""
        return self.slots - len(self._free)

    def read(self) -> dict[EventId, Progress]:
        """Return what every slot with a valid event id says."""
        found = {}
        for base in range(0, self.slots * _WORDS, _WORDS):
            if self._words[base + _CHECK]:
                progress = _progress(self._words[base : base + _WORDS].tolist())
                if progress is not None:
                    found[progress.event_id] = progress
        return found

    def clear(self) -> None:
        """Zero every slot, durably; only before the first is claimed."""
        self._map[:] = bytes(len(self._map))
        self.sync()

    def sync(self) -> None:
        """Return when what the slots said at the call is durable."""
        # fdatasync writes dirty pages of shared mappings like msync does, and lets other threads run.
        sync_data(self._fd)

    def close(self) -> None:
        """Unmap the file; slots still claimed stop recording."""
        self._words.release()
        # Slots still claimed keep the mapping alive until they are dropped.
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self._fd)


def _progress(words: list[int]) -> Progress | None:
    first, second = words[_ID], words[_ID + 1]
    if words[_CHECK] != _check(first, second):
        return None
    begun, done, content = words[_BEGUN], words[_DONE], words[_CONTENT]
    is_damaged = (
        not (done <= begun <= done + 1 and content <= done + 1) or words[_BYTES] > _COUNT_MAX
    )
    usage: tuple[int | None, int | None] = (None, None)
    if words[_USAGE_CHECK] == _check(words[_INPUT], words[_OUTPUT]):
        usage = words[_INPUT], words[_OUTPUT]
    return Progress(
        event_id_text(struct.pack("=QQ", first, second)),
        begun,
        done,
        words[_BYTES],
        content,
        *usage,
        is_damaged=is_damaged,
    )


def _check(first: int, second: int) -> int:
    return _CHECK_SET | zlib.crc32(struct.pack("=QQ", first, second))
