from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.money import (
    add,
    allocate,
    decimal_text,
    exponent,
    negate,
    permille_of,
    price,
    round_half_away,
    total,
)
from billing.types import Money

amounts = st.integers(-(10**15), 10**15)


@pytest.mark.parametrize(
    ("numerator", "denominator", "rounded"),
    [
        (85, 10, 9),
        (-85, 10, -9),
        (5, 10, 1),
        (-5, 10, -1),
        (2675, 10, 268),
        (4, 10, 0),
        (-4, 10, 0),
        (0, 7, 0),
        (-9950, 10, -995),
        (10**30 + 5, 10, 10**29 + 1),
    ],
)
def test_halves_are_rounded_away_from_zero(numerator: int, denominator: int, rounded: int) -> None:
    assert round_half_away(numerator, denominator) == rounded


@given(amounts, st.integers(1, 10**12))
def test_rounding_is_nearest_and_odd(numerator: int, denominator: int) -> None:
    rounded = round_half_away(numerator, denominator)
    error = abs(Fraction(numerator, denominator) - rounded)
    assert error <= Fraction(1, 2)
    if error == Fraction(1, 2):
        assert abs(rounded) > abs(Fraction(numerator, denominator))
    assert round_half_away(-numerator, denominator) == -rounded


@pytest.mark.parametrize("denominator", [0, -1])
def test_rounding_refuses_a_denominator_that_is_not_positive(denominator: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        round_half_away(1, denominator)


@pytest.mark.parametrize(
    ("currency", "digits"),
    [
        ("EUR", 2),
        ("JPY", 0),
        ("KWD", 3),
        ("BHD", 3),
        ("IQD", 3),
        ("HUF", 2),
        ("ISK", 0),
        ("COP", 2),
    ],
)
def test_exponents_are_those_of_iso_4217(currency: str, digits: int) -> None:
    assert exponent(currency) == digits


@pytest.mark.parametrize("currency", ["", "EURO", "ZZZ", "XAU", "XXX"])
def test_what_has_no_minor_unit_is_refused(currency: str) -> None:
    with pytest.raises(ValueError, match=r"currency|minor unit"):
        exponent(currency)


@pytest.mark.parametrize(
    ("micropoints", "point_price_micros", "currency", "minor_units"),
    [
        (9_836_800, 20_000, "EUR", 20),  # 9.8368 points at 0.02 are 0.196736
        (9_750_000, 20_000, "EUR", 20),  # 0.195 exactly: half goes up
        (9_749_999, 20_000, "EUR", 19),
        (9_836_800, 3_000_000, "JPY", 30),  # 29.5104
        (1_000_000, 1_500, "KWD", 2),  # 0.0015 of three digits
        (0, 20_000, "EUR", 0),
        (-9_750_000, 20_000, "EUR", -20),
        (10**18, 10**12, "EUR", 10**20),
    ],
)
def test_micropoints_are_priced_with_one_rounding(
    micropoints: int, point_price_micros: int, currency: str, minor_units: int
) -> None:
    assert price(micropoints, point_price_micros, currency) == Money(minor_units, currency)


@given(st.integers(0, 10**18), st.integers(0, 10**9), st.sampled_from(["EUR", "JPY", "KWD"]))
def test_a_price_is_within_half_a_minor_unit(micropoints: int, micros: int, currency: str) -> None:
    exact = Fraction(micropoints, 10**6) * Fraction(micros, 10**6) * 10 ** exponent(currency)
    assert abs(price(micropoints, micros, currency).minor_units - exact) <= Fraction(1, 2)


def test_a_surcharge_is_rounded_once_on_the_subtotal() -> None:
    # Three lines of 0.23 at 15 %: 0.10 on the sum; rounding each line would say 0.09.
    assert permille_of(Money(69, "EUR"), 150) == Money(10, "EUR")
    assert permille_of(Money(-69, "EUR"), 150) == Money(-10, "EUR")


def test_totals_are_sums_of_rounded_parts() -> None:
    # 200.00 with 25 % tax ended on day 1 of 30: 193.33 + 48.33 = 241.66, not 241.67.
    net = Money(round_half_away(20_000 * 29, 30), "EUR")
    assert total([net, permille_of(net, 250)], "EUR") == Money(24_166, "EUR")
    net = Money(round_half_away(16_000 * 29, 30), "EUR")
    assert add(net, permille_of(net, 250)) == Money(19_334, "EUR")


def test_amounts_of_different_currencies_are_not_added() -> None:
    with pytest.raises(ValueError, match="EUR and JPY"):
        add(Money(1, "EUR"), Money(1, "JPY"))
    with pytest.raises(ValueError, match="EUR and JPY"):
        total([Money(1, "JPY")], "EUR")
    assert total([], "EUR") == Money(0, "EUR")
    assert negate(Money(5, "EUR")) == Money(-5, "EUR")


@pytest.mark.parametrize(
    ("amount", "weights", "shares"),
    [
        (10, [23, 23, 23], [4, 3, 3]),
        (100, [1, 1, 1], [34, 33, 33]),
        (5, [3, 7], [2, 3]),
        (-5, [3, 7], [-2, -3]),
        (0, [1, 2], [0, 0]),
        (7, [0, 1, 0], [0, 7, 0]),
    ],
)
def test_splits_go_by_largest_remainder(amount: int, weights: list[int], shares: list[int]) -> None:
    assert allocate(amount, weights) == shares


@given(amounts, st.lists(st.integers(0, 10**12), min_size=1, max_size=20).filter(any))
def test_splits_are_exact_and_fair(amount: int, weights: list[int]) -> None:
    shares = allocate(amount, weights)
    assert sum(shares) == amount
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - Fraction(amount * weight, sum(weights))) < 1
        assert weight or share == 0


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [-1, 3]])
def test_weights_without_a_split_are_refused(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="weights"):
        allocate(10, weights)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (Money(123_450, "EUR"), "1234.50"),
        (Money(-5, "EUR"), "-0.05"),
        (Money(987, "JPY"), "987"),
        (Money(-3226, "KWD"), "-3.226"),
        (Money(0, "EUR"), "0.00"),
    ],
)
def test_amounts_are_written_at_their_exponent(amount: Money, text: str) -> None:
    assert decimal_text(amount) == text
