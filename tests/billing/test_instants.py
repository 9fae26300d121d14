"""Instants as microseconds: exact both ways, UTC only."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.instants import from_micros, to_micros


@given(st.datetimes(timezones=st.timezones()))
def test_every_instant_comes_back_exactly(instant):
    utc = instant.astimezone(UTC) if 1 < instant.year < 9999 else instant.replace(tzinfo=UTC)
    assert from_micros(to_micros(utc)) == utc


def test_micros_count_from_1970():
    assert to_micros(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == 1_000_005
    assert to_micros(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1


def test_naive_datetime_is_refused():
    with pytest.raises(ValueError, match="UTC offset"):
        to_micros(datetime(2026, 1, 1))  # noqa: DTZ001
