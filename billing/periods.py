"""Calendar months, weeks and days of a time zone as half-open ranges of UTC instants.

Owns the arithmetic of calendars. Pure. A period begins at the first instant of its first local day, also
where a clock change removes or repeats midnight, and ends where the next one begins: no gap, no overlap.
"""

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from billing.types import BillingPeriod

_MONTH = re.compile(r"(\d{4})-(\d{2})")
_DAY = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_WEEK = re.compile(r"(\d{4})-W(\d{2})")


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    """Return the IANA time zone of this name.

    Raises:
        ValueError: there is none.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"no IANA time zone is named {name!r}") from None


def month_of(instant: datetime, zone: str) -> BillingPeriod:
    """Return the calendar month of `zone` that contains an instant; label ``2026-12``.

    Raises:
        ValueError: the instant has no UTC offset, or there is no such zone.
    """
    return _month(_local_date(instant, zone), zone)


def week_of(instant: datetime, zone: str) -> BillingPeriod:
    """Return the ISO week (Monday to Sunday) of `zone` that contains an instant; label ``2026-W49``.

    Raises:
        ValueError: the instant has no UTC offset, or there is no such zone.
    """
    return _week(_local_date(instant, zone), zone)


def day_of(instant: datetime, zone: str) -> BillingPeriod:
    """Return the calendar day of `zone` that contains an instant; label ``2026-12-01``.

    Raises:
        ValueError: the instant has no UTC offset, or there is no such zone.
    """
    return _day(_local_date(instant, zone), zone)


def period_from_label(label: str, zone: str) -> BillingPeriod:
    """Return the period of `zone` that a label names: ``2026-12``, ``2026-W49`` or ``2026-12-01``.

    Raises:
        ValueError: the label names no month, week or day, or there is no such zone.
    """
    try:
        if match := _MONTH.fullmatch(label):
            return _month(date(int(match[1]), int(match[2]), 1), zone)
        if match := _WEEK.fullmatch(label):
            return _week(date.fromisocalendar(int(match[1]), int(match[2]), 1), zone)
        if match := _DAY.fullmatch(label):
            return _day(date(int(match[1]), int(match[2]), int(match[3])), zone)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"no period is labelled {label!r} in {zone}: {error}") from None
    raise ValueError(
        f"a period is labelled like 2026-12 (month), 2026-W49 (week) or 2026-12-01 (day): {label!r}"
    )


def contains(period: BillingPeriod, instant: datetime) -> bool:
    """Say whether an instant lies in the half-open period."""
    return period.start <= instant < period.end


def _local_date(instant: datetime, zone: str) -> date:
    if instant.tzinfo is None:
        raise ValueError(f"an instant needs a UTC offset: {instant!r}")
    return instant.astimezone(zone_of(zone)).date()


def _month(day: date, zone: str) -> BillingPeriod:
    first = day.replace(day=1)
    after = date(first.year + first.month // 12, first.month % 12 + 1, 1)
    return BillingPeriod(_first_instant(first, zone), _first_instant(after, zone), f"{first:%Y-%m}")


def _week(day: date, zone: str) -> BillingPeriod:
    monday = day - timedelta(days=day.weekday())
    label = f"{monday:%G-W%V}"
    after = monday + timedelta(days=7)
    return BillingPeriod(_first_instant(monday, zone), _first_instant(after, zone), label)


def _day(day: date, zone: str) -> BillingPeriod:
    after = day + timedelta(days=1)
    return BillingPeriod(_first_instant(day, zone), _first_instant(after, zone), day.isoformat())


def _first_instant(day: date, zone: str) -> datetime:
    # fold=0 is right in both odd cases. Midnight in a gap is read with the offset before it, which is
    # the instant of the change, the day's first; a repeated midnight is read as the first of the two.
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone_of(zone), fold=0)
    return midnight.astimezone(UTC)
