import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.rating import CALLS_MAX, hold_for, rate
from billing.types import RATE_MAX, TOKENS_MAX, Rates, Usage

any_rate = st.integers(0, RATE_MAX)
any_rates = st.builds(Rates, any_rate, any_rate, any_rate, any_rate, any_rate)


@st.composite
def usages(draw: st.DrawFn, tokens_max: int = TOKENS_MAX) -> Usage:
    whole_in, whole_out = draw(st.integers(0, tokens_max)), draw(st.integers(0, tokens_max))
    cached, reasoning = draw(st.integers(0, whole_in)), draw(st.integers(0, whole_out))
    return Usage(whole_in, whole_out, cached, reasoning)


@pytest.mark.parametrize(
    ("usage", "rates", "calls", "micropoints"),
    [
        (Usage(1537, 0), Rates(0, 6400, 0, 0, 0), 1, 9_836_800),
        (Usage(0, 1537), Rates(0, 0, 6400, 0, 0), 1, 9_836_800),
        (Usage(1000, 0), Rates(0, 2000, 0, 0, 0), 1, 2_000_000),
        (Usage(0, 0), Rates(5, 9, 9, 9, 9), 3, 15_000),
        (Usage(0, 0), Rates(5, 9, 9, 9, 9), 0, 0),
        (Usage(100, 50, 40, 20), Rates(1, 10, 20, 1, 30), 1, 600 + 40 + 600 + 600 + 1000),
        (Usage(1, 1, 1, 1), Rates(0, 999, 999, 0, 0), 1, 0),
    ],
)
def test_usage_is_rated_exactly(usage: Usage, rates: Rates, calls: int, micropoints: int) -> None:
    assert rate(usage, rates, calls) == micropoints


@given(usages(), any_rates)
def test_a_rating_is_never_above_its_hold(usage: Usage, rates: Rates) -> None:
    hold = hold_for(rates, usage.input_tokens, usage.output_tokens)
    assert 0 <= rate(usage, rates, 0) <= rate(usage, rates) <= hold


@given(usages(1000), any_rates)
def test_a_hold_for_more_tokens_covers_less_usage(usage: Usage, rates: Rates) -> None:
    assert rate(usage, rates) <= hold_for(rates, 1000, 1000)


def test_the_largest_rating_fits_a_signed_64_bit_column() -> None:
    rates = Rates(*[RATE_MAX] * 5)
    assert rate(Usage(TOKENS_MAX, TOKENS_MAX), rates, CALLS_MAX) < 2**63


@pytest.mark.parametrize("calls", [-1, CALLS_MAX + 1])
def test_calls_out_of_bounds_are_refused(calls: int) -> None:
    with pytest.raises(ValueError, match="calls"):
        rate(Usage(0, 0), Rates(0, 0, 0, 0, 0), calls)


@pytest.mark.parametrize("bounds", [(-1, 0), (0, TOKENS_MAX + 1)])
def test_token_bounds_out_of_range_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="token bounds"):
        hold_for(Rates(0, 0, 0, 0, 0), *bounds)
