from datetime import UTC, datetime, timedelta

import pytest
import whenever
from hypothesis import given
from hypothesis import strategies as st

from billing.periods import contains, day_of, month_of, period_from_label, week_of, zone_of

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Shanghai",
    "Asia/Tokyo",
    "Africa/Cairo",  # midnight is missing on the last Friday of April
    "America/Havana",  # midnight is missing in March and repeated in November
    "America/Sao_Paulo",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Pacific/Apia",  # 2011-12-30 did not exist
    "America/Nuuk",
]
instants = st.integers(946_684_800, 2_082_758_400).map(
    lambda second: datetime.fromtimestamp(second, UTC)
)


def hours(label: str, zone: str) -> float:
    period = period_from_label(label, zone)
    return (period.end - period.start) / timedelta(hours=1)


@pytest.mark.parametrize(
    ("label", "zone", "length_h"),
    [
        ("2026-03", "America/New_York", 743),
        ("2026-11", "America/New_York", 721),
        ("2026-03", "Europe/Berlin", 743),
        ("2026-10", "Europe/Berlin", 745),
        ("2026-12", "Asia/Shanghai", 744),
        ("2024-02", "UTC", 696),
        ("2026-03-29", "Europe/Berlin", 23),
        ("2026-10-25", "Europe/Berlin", 25),
        ("2026-04-24", "Africa/Cairo", 23),
        ("2026-11-01", "America/Havana", 25),
        ("2026-W13", "Europe/Berlin", 167),
    ],
)
def test_periods_are_as_long_as_their_clock_changes_make_them(
    label: str, zone: str, length_h: int
) -> None:
    assert hours(label, zone) == length_h


def test_bounds_are_half_open_instants_of_local_midnight() -> None:
    period = period_from_label("2026-08", "Asia/Tokyo")
    assert period.start == datetime(2026, 7, 31, 15, tzinfo=UTC)
    assert period.end == datetime(2026, 8, 31, 15, tzinfo=UTC)
    assert period.start.tzinfo is UTC
    assert contains(period, period.start)
    assert not contains(period, period.end)
    assert month_of(period.end - timedelta(microseconds=1), "Asia/Tokyo") == period
    assert month_of(period.end, "Asia/Tokyo").label == "2026-09"


def test_december_ends_at_new_year() -> None:
    period = month_of(datetime(2026, 12, 31, 23, 59, tzinfo=UTC), "UTC")
    assert (period.label, period.end) == ("2026-12", datetime(2027, 1, 1, tzinfo=UTC))


def test_iso_weeks_belong_to_the_year_of_their_thursday() -> None:
    assert week_of(datetime(2027, 1, 1, tzinfo=UTC), "UTC").label == "2026-W53"
    assert period_from_label("2026-W53", "UTC").end == datetime(2027, 1, 4, tzinfo=UTC)


@given(instants, st.sampled_from(ZONES))
def test_every_instant_is_in_its_periods_and_labels_name_them(instant: datetime, zone: str) -> None:
    for period_of in (month_of, week_of, day_of):
        period = period_of(instant, zone)
        assert contains(period, instant)
        assert period_from_label(period.label, zone) == period


@given(instants, st.sampled_from(ZONES))
def test_periods_follow_without_gap_or_overlap(instant: datetime, zone: str) -> None:
    for period_of in (month_of, week_of, day_of):
        period = period_of(instant, zone)
        following = period_of(period.end, zone)
        assert following.start == period.end
        assert following.label > period.label


@given(instants, st.sampled_from(ZONES))
def test_days_begin_where_an_independent_calendar_says(instant: datetime, zone: str) -> None:
    local = whenever.Instant(instant).to_tz(zone)
    expected = local.start_of("day").to_instant().to_stdlib()
    assert day_of(instant, zone).start == expected


@pytest.mark.parametrize(
    "label",
    ["", "2026", "2026-13", "2026-00", "2026-12-32", "2026-W54", "26-12", "9999-12", "२०२६-१२-"],
)
def test_labels_that_name_no_period_are_refused(label: str) -> None:
    with pytest.raises(ValueError, match="label"):
        period_from_label(label, "UTC")


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "../etc/passwd", "/etc/localtime", "Europe"])
def test_zones_that_do_not_exist_are_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="time zone"):
        zone_of(zone)


def test_an_instant_without_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="UTC offset"):
        month_of(datetime(2026, 12, 1), "UTC")  # noqa: DTZ001
