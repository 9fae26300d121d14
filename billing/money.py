"""Money arithmetic in integer minor units, with the only rounding of the project.

Owns rounding, pricing of micro-points and splitting of amounts. Pure. Amounts are exact rationals until
`round_half_away` is called, once per line; totals are sums of rounded lines, never roundings of sums.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import iso4217

from billing.types import Money

MICROPOINTS_PER_POINT = 10**6
PRICE_MICROS_PER_MAJOR_UNIT = 10**6


@lru_cache(maxsize=512)
def exponent(currency: str) -> int:
    """Return how many decimal digits the minor unit of an ISO 4217 currency has (EUR 2, JPY 0, KWD 3).

    Raises:
        ValueError: it is no ISO 4217 currency, or one without a minor unit (gold, test codes).
    """
    try:
        digits = iso4217.Currency(currency).exponent
    except ValueError:
        raise ValueError(f"not an ISO 4217 currency: {currency!r}") from None
    if digits is None:
        raise ValueError(f"{currency} has no minor unit")
    return int(digits)


def round_half_away(numerator: int, denominator: int) -> int:
    """Return ``numerator / denominator`` rounded to the nearest integer, halves away from zero.

    Raises:
        ValueError: the denominator is not positive.
    """
    if denominator <= 0:
        raise ValueError(f"the denominator must be positive: {denominator}")
    magnitude = (2 * abs(numerator) + denominator) // (2 * denominator)
    return -magnitude if numerator < 0 else magnitude


def price(micropoints: int, point_price_micros: int, currency: str) -> Money:
    """Return what micro-points cost, exact until one rounding to the minor unit.

    Args:
        micropoints: millionths of a base point.
        point_price_micros: price of one base point in millionths of the major unit (0.02 EUR = 20,000).
        currency: ISO 4217 code; its exponent decides the minor unit.
    """
    numerator = micropoints * point_price_micros * 10 ** exponent(currency)
    denominator = MICROPOINTS_PER_POINT * PRICE_MICROS_PER_MAJOR_UNIT
    return Money(round_half_away(numerator, denominator), currency)


def permille_of(amount: Money, permille: int) -> Money:
    """Return a share of an amount in thousandths, rounded once (an SLA surcharge of 150 is +15 %)."""
    return Money(round_half_away(amount.minor_units * permille, 1000), amount.currency)


def add(left: Money, right: Money) -> Money:
    """Return the sum of two amounts.

    Raises:
        ValueError: their currencies differ.
    """
    if left.currency != right.currency:
        raise ValueError(f"{left.currency} and {right.currency} can't be added")
    return Money(left.minor_units + right.minor_units, left.currency)


def negate(amount: Money) -> Money:
    """Return the amount with the opposite sign."""
    return Money(-amount.minor_units, amount.currency)


def total(amounts: Iterable[Money], currency: str) -> Money:
    """Return the sum of amounts, which must all be of `currency`; zero for none.

    Raises:
        ValueError: an amount is of another currency.
    """
    result = Money(0, currency)
    for amount in amounts:
        result = add(result, amount)
    return result


def allocate(amount: int, weights: Sequence[int]) -> list[int]:
    """Return integer shares proportional to `weights` that sum to `amount` exactly.

    Largest remainder; equal remainders favour the lower index, so callers sort by id first. Each share
    differs from the exact one by less than one unit. A negative amount is split as its opposite is.

    Raises:
        ValueError: a weight is negative, or none is positive.
    """
    weight_sum = sum(weights)
    if weight_sum <= 0 or min(weights) < 0:
        raise ValueError("weights must be zero or more, and one of them positive")
    sign, magnitude = (-1, -amount) if amount < 0 else (1, amount)
    shares, remainders = [], []
    for weight in weights:
        share, remainder = divmod(magnitude * weight, weight_sum)
        shares.append(share)
        remainders.append(remainder)
    left = magnitude - sum(shares)
    for index in sorted(range(len(weights)), key=lambda index: (-remainders[index], index))[:left]:
        shares[index] += 1
    return [sign * share for share in shares]


def decimal_text(amount: Money) -> str:
    """Return the amount as plain decimal text at the currency's exponent (``-1234.50``, ``987``)."""
    digits = exponent(amount.currency)
    sign = "-" if amount.minor_units < 0 else ""
    magnitude = str(abs(amount.minor_units)).rjust(digits + 1, "0")
    return f"{sign}{magnitude[:-digits]}.{magnitude[-digits:]}" if digits else f"{sign}{magnitude}"
