"""Frames of the journal: how a record is wrapped so that damage is found and stays local.

Owns the byte layout. Pure. A frame is 32 bytes of header and a payload, little-endian::

    0  magic    4   FF 45 47 4A
    4  crc      4   CRC-32 (zlib's, IEEE 802.3) of bytes 8 to the end of the payload
    8  length   4   of the payload
    12 type     1   FrameType; 128 and above must be understood by whoever reads on
    13 zero     3
    16 seq      8   grows along the journal; a position
    24 boot id  8   of the process that wrote it

CRC-32 and not CRC-32C because zlib's runs at gigabytes per second from the standard library; both find
every burst error up to 32 bits. The magic's first byte never occurs in UTF-8, so that no text in a
payload can pass for the start of a frame after damage.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

MAGIC = b"\xffEGJ"
HEADER_BYTES = 32

PAYLOAD_BYTES_MAX = 64 * 1024
"""Bound on a payload; an intent takes about 600 bytes. A longer length is damage."""

CRITICAL_TYPE_MIN = 128
"""A reader that doesn't know a type from here on must refuse; one below it skips the frame."""

_HEADER = struct.Struct("<4sIIB3xQQ")
_CHECKED = struct.Struct("<IB3xQQ")
_CHECKED_FROM = 8


class FrameType(IntEnum):
    """The records this version knows."""

    HEADER = 1
    INTENT = 2
    OUTCOME = 3


@dataclass(frozen=True, slots=True)
class Frame:
    """One record; `kind` may be a type this version doesn't know."""

    kind: int
    seq: int
    boot_id: int
    payload: bytes

    @property
    def size_bytes(self) -> int:
        """The frame's length in a segment."""
        return HEADER_BYTES + len(self.payload)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes ``[start, end)`` of a buffer hold no valid frame."""

    start: int
    end: int


def encode_frame(kind: int, seq: int, boot_id: int, payload: bytes) -> bytes:
    """Return the bytes of a frame.

    Raises:
        ValueError: the payload is longer than `PAYLOAD_BYTES_MAX`.
    """
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a record has at most {PAYLOAD_BYTES_MAX} bytes: {len(payload)}")
    checked = _CHECKED.pack(len(payload), kind, seq, boot_id)
    crc = zlib.crc32(payload, zlib.crc32(checked))
    return MAGIC + crc.to_bytes(4, "little") + checked + payload


def frame_at(data: bytes, offset: int) -> Frame | None:
    """Return the valid frame that begins at `offset`, or None."""
    if len(data) - offset < HEADER_BYTES:
        return None
    magic, crc, length, kind, seq, boot_id = _HEADER.unpack_from(data, offset)
    start = offset + HEADER_BYTES
    if magic != MAGIC or length > PAYLOAD_BYTES_MAX or start + length > len(data):
        return None
    payload = data[start : start + length]
    if zlib.crc32(payload, zlib.crc32(data[offset + _CHECKED_FROM : start])) != crc:
        return None
    return Frame(kind, seq, boot_id, payload)


def next_frame(data: bytes, offset: int) -> int | None:
    """Return the offset of the first valid frame at or after `offset`, or None."""
    while (offset := data.find(MAGIC, offset)) >= 0:
        if frame_at(data, offset) is not None:
            return offset
        offset += 1
    return None


def scan(data: bytes, start: int = 0) -> Iterator[tuple[int, Frame | Damage]]:
    """Yield every valid frame from `start` on with its offset, and every damaged stretch between them.

    Zeros up to the end of the buffer are unused space, not damage.
    """
    offset = start
    while offset < len(data):
        frame = frame_at(data, offset)
        if frame is not None:
            yield offset, frame
            offset += frame.size_bytes
            continue
        resumed = next_frame(data, offset + 1)
        if resumed is None:
            if data[offset:].strip(b"\0"):
                yield offset, Damage(offset, len(data))
            return
        yield offset, Damage(offset, resumed)
        offset = resumed
