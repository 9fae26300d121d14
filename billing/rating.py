"""What usage costs in micro-points: exact, no division, no rounding.

Owns the formula and its upper bound. Pure. Token counts and rates are bounded by their types
(`TOKENS_MAX`, `RATE_MAX`) and calls here, so every result fits a signed 64-bit column.
"""

from billing.types import TOKENS_MAX, MicroPoints, Rates, Usage

CALLS_MAX = 10**9
"""Bound on calls rated at once: 10**9 calls at the highest rate cost 10**18 micro-points."""

_MICROPOINTS_PER_MILLIPOINT = 1000


def rate(usage: Usage, rates: Rates, calls: int = 1) -> MicroPoints:
    """Return what `usage` and `calls` cost at `rates`.

    Milli-points per 1,000 tokens times tokens are micro-points: no division is needed. Cached input and
    reasoning output are charged at their own rates instead of, not on top of, those of the whole.

    Raises:
        ValueError: `calls` is negative or above `CALLS_MAX`.
    """
    if not 0 <= calls <= CALLS_MAX:
        raise ValueError(f"calls must be between 0 and {CALLS_MAX}: {calls}")
    return MicroPoints(
        (usage.input_tokens - usage.cached_input_tokens) * rates.input_1k
        + usage.cached_input_tokens * rates.cached_input_1k
        + (usage.output_tokens - usage.reasoning_tokens) * rates.output_1k
        + usage.reasoning_tokens * rates.reasoning_1k
        + calls * rates.per_call * _MICROPOINTS_PER_MILLIPOINT
    )


def hold_for(rates: Rates, input_tokens_max: int, output_tokens_max: int) -> MicroPoints:
    """Return what one call costs at most when its token counts stay within these bounds.

    Raises:
        ValueError: a bound is negative or above `TOKENS_MAX`.
    """
    for bound in (input_tokens_max, output_tokens_max):
        if not 0 <= bound <= TOKENS_MAX:
            raise ValueError(f"token bounds are between 0 and {TOKENS_MAX}: {bound}")
    return MicroPoints(
        input_tokens_max * max(rates.input_1k, rates.cached_input_1k)
        + output_tokens_max * max(rates.output_1k, rates.reasoning_1k)
        + rates.per_call * _MICROPOINTS_PER_MILLIPOINT
    )
