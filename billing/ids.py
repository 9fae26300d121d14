"""Event ids: UUIDv7 in canonical text, unique forever and in order within a process.

Owns how ids are made; what they name is decided elsewhere. `new_event_id` is pure, `EventIdMint` adds
the clock and the randomness.

Source: RFC 9562 section 5.7 (version 7) and section 6.2 method 3 (sub-millisecond fraction).
"""

import os
import time
from collections.abc import Callable

from billing.types import EventId

RANDOM_BYTES = 8
"""Random bytes an id needs; the top two bits are replaced by the variant."""

_RANDOM_POOL_BYTES = 512 * RANDOM_BYTES

_TIMESTAMP_US_MAX = (1 << 48) * 1000


def new_event_id(now_us: int, random_bytes: bytes) -> EventId:
    """Return the UUIDv7 of an instant in microseconds since the epoch and eight random bytes.

    Ids of different microseconds compare as their instants do.

    Raises:
        ValueError: the instant does not fit 48 bits of milliseconds, or there are not eight bytes.
    """
    if not 0 <= now_us < _TIMESTAMP_US_MAX or len(random_bytes) != RANDOM_BYTES:
        raise ValueError(f"not an instant and {RANDOM_BYTES} random bytes: {now_us}")
    milliseconds, microseconds = divmod(now_us, 1000)
    # 4,096 steps per millisecond: consecutive microseconds are at least four steps apart.
    fraction = (microseconds << 12) // 1000
    tail = (int.from_bytes(random_bytes, "big") & 0x3FFF_FFFF_FFFF_FFFF) | 0x8000_0000_0000_0000
    text = f"{milliseconds:012x}{0x7000 | fraction:04x}{tail:016x}"
    return EventId(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")


def event_id_bytes(event_id: EventId) -> bytes:
    """Return the 16 bytes of an id in canonical text form.

    Raises:
        ValueError: it is not canonical: 32 lower-case hexadecimal digits grouped 8-4-4-4-12.
    """
    digits = event_id.replace("-", "")
    value = bytes.fromhex(digits) if digits.isascii() else b""
    if event_id_text(value) != event_id:
        raise ValueError(f"not a UUID in canonical text form: {event_id!r}")
    return value


def event_id_text(value: bytes) -> EventId:
    """Return the canonical text of 16 bytes (of anything else, something no id equals)."""
    text = value.hex()
    return EventId(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")


class EventIdMint:
    """Mints ids that increase strictly within a process, even when the clock steps back.

    One per process, made after any fork; used from one thread.
    """

    def __init__(
        self,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._clock_us, self._random = clock_us, random
        self._last_us = -1
        self._pool = b""
        self._pool_index = 0

    def mint(self) -> EventId:
        """Return a new id, greater than any minted before."""
        now_us = self._clock_us()
        if now_us <= self._last_us:
            now_us = self._last_us + 1
        self._last_us = now_us
        if self._pool_index >= len(self._pool):
            self._pool, self._pool_index = self._random(_RANDOM_POOL_BYTES), 0
        start = self._pool_index
        self._pool_index = start + RANDOM_BYTES
        return new_event_id(now_us, self._pool[start : self._pool_index])
