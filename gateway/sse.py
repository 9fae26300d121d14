"""An incremental parser of server-sent events that keeps the raw bytes of every event. Pure.

Source: WHATWG HTML §9.2. Accepts LF, CRLF and CR line ends, `data:` with and without the space, comments, and
bytes split anywhere. Knows nothing of what the data means.
"""

import re
from dataclasses import dataclass

EVENT_BYTES_MAX = 1 << 20
"""Longest event that is waited for; a backend that sends more without a blank line is broken."""

# One pattern, so that each byte is looked at once however many events arrived together.
_BLANK_LINE = re.compile(rb"\r?\n\r?\n|\r\r(?!\Z)\n?")


class EventTooLong(Exception):
    """The backend sent more than `EVENT_BYTES_MAX` bytes without ending an event."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its bytes as received, separator included, and its data lines joined by LF."""

    raw: bytes
    data: bytes


class EventParser:
    """Cuts a byte stream into events; what isn't complete yet stays in `pending`."""

    __slots__ = ("_buffer", "_scan_from")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scan_from = 0

    @property
    def pending(self) -> bytes:
        """The bytes of an event that hasn't ended yet."""
        return bytes(self._buffer)

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that `chunk` completes.

        Raises:
            EventTooLong: an event grew over `EVENT_BYTES_MAX`.
        """
        self._buffer += chunk
        events: list[Event] = []
        start = 0
        while (end := self._end_of_event(start)) is not None:
            raw = bytes(self._buffer[start:end])
            events.append(Event(raw, _data_of(raw)))
            start = end
            self._scan_from = end
        if start:
            del self._buffer[:start]
            self._scan_from = 0
        if len(self._buffer) > EVENT_BYTES_MAX:
            raise EventTooLong
        # A separator may be split over chunks, so the next scan starts a little earlier.
        self._scan_from = max(0, len(self._buffer) - 3)
        return events

    def _end_of_event(self, start: int) -> int | None:
        """Return the index after the first blank line at or after `start`, or None.

        A trailing CR can't be judged before the next byte is there: it may be half of a CRLF.
        """
        found = _BLANK_LINE.search(self._buffer, max(start, self._scan_from))
        return found.end() if found else None


def _data_of(raw: bytes) -> bytes:
    """Return the data lines of an event joined by LF; empty for comments and other fields."""
    if raw.startswith(b"data: ") and raw.count(b"\n") == 2 and b"\r" not in raw:
        return raw[6:-2]
    lines = []
    for line in raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            value = line[5:]
            lines.append(value.removeprefix(b" "))
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines)
