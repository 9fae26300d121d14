"""What the journal's frames say: intents, outcomes and segment headers as MessagePack maps.

Owns the wire form of records. Pure. Fields are written by name, so a later version may add fields with
defaults, and an older one skips fields it doesn't know; renaming a field breaks the journal (a test pins
the names).
"""

import msgspec

from billing.types import UsageIntent, UsageOutcome

FORMAT_VERSION = 1
"""Grows only when an older version could not read a journal rightly."""


class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first record of a segment.

    `previous_end_bytes` is where the valid part of segment `previous_index` ends. Whatever stands after it was
    never acknowledged: its writer rewrote it, refused it, or died.
    """

    version: int
    journal_id: str
    index: int
    previous_index: int = 0
    previous_end_bytes: int = 0


_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(SegmentHeader)
_intent_decoder = msgspec.msgpack.Decoder(UsageIntent)
_outcome_decoder = msgspec.msgpack.Decoder(UsageOutcome)

encode_record = _encoder.encode
"""Return a header, intent or outcome as MessagePack bytes."""


def decode_header(payload: bytes) -> SegmentHeader:
    """Return the segment header of a frame's payload.

    Raises:
        ValueError: it is none.
    """
    return _header_decoder.decode(payload)


def decode_intent(payload: bytes) -> UsageIntent:
    """Return the intent of a frame's payload.

    Raises:
        ValueError: it is none.
    """
    return _intent_decoder.decode(payload)


def decode_outcome(payload: bytes) -> UsageOutcome:
    """Return the outcome of a frame's payload.

    Raises:
        ValueError: it is none.
    """
    return _outcome_decoder.decode(payload)
