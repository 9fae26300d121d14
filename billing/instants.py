"""Instants as integer microseconds since 1970 in UTC: how they are stored and compared in bulk.

Owns the conversion. Pure and exact in both directions.
"""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(instant: datetime) -> int:
    """Return microseconds since 1970 in UTC.

    Raises:
        ValueError: the instant has no UTC offset.
    """
    if instant.tzinfo is None:
        raise ValueError(f"an instant needs a UTC offset: {instant!r}")
    return (instant - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the instant that is `micros` microseconds after 1970 in UTC."""
    return _EPOCH + timedelta(microseconds=micros)
