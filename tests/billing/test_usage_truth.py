import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.rating import hold_for, rate
from billing.types import Rates, Usage, UsageSource, UsageStatus
from billing.usage_truth import (
    BilledUsage,
    Evidence,
    ReportedUsage,
    decide,
    latest_report,
)
from tests.billing.metering import an_intent

INTENT = an_intent(input_tokens_max=4000, output_tokens_max=1000, input_tokens_estimate=120)
DONE, LEFT = UsageStatus.COMPLETED, UsageStatus.CLIENT_CANCELLED
BROKE, ABORTED = UsageStatus.BACKEND_ERROR, UsageStatus.ABORTED
NOTHING = Usage(0, 0)
HUGE = 2**64


def said(*figures: object) -> ReportedUsage:
    return ReportedUsage(*figures)


@pytest.mark.parametrize(
    ("evidence", "usage", "source", "flags", "calls"),
    [
        # The backend is believed when it can be.
        (Evidence(DONE, 9, said(100, 20)), Usage(100, 20), "backend", (), 1),
        (Evidence(DONE, 9, said(100, 5)), Usage(100, 5), "backend", (), 1),
        (Evidence(DONE, 0, said(100, 0)), Usage(100, 0), "backend", (), 1),
        (Evidence(DONE, 1, said(4000, 1000)), Usage(4000, 1000), "backend", (), 1),
        (Evidence(DONE, 9, said(100, 20, 60, 7)), Usage(100, 20, 60, 7), "backend", (), 1),
        # Parts are cut to their wholes.
        (
            Evidence(DONE, 9, said(100, 20, 101, 21)),
            Usage(100, 20, 100, 20),
            "backend",
            ("usage_parts_clamped",),
            1,
        ),
        (
            Evidence(DONE, 9, said(100, 20, -1, True)),
            Usage(100, 20),
            "backend",
            ("usage_invalid",),
            1,
        ),
        # Missing: our own count.
        (Evidence(DONE, 9), Usage(120, 9), "counted", ("usage_missing",), 1),
        (Evidence(DONE, 9, said(), 14), Usage(120, 14), "counted", ("usage_missing",), 1),
        (Evidence(DONE, 0), Usage(120, 0), "counted", ("usage_missing",), 1),
        (Evidence(DONE, 9, said(100)), Usage(100, 9), "counted", (), 1),
        # Lies.
        (Evidence(DONE, 9, said(100, 0)), Usage(100, 9), "counted", ("usage_disputed",), 1),
        (
            Evidence(DONE, 1001, said(4001, HUGE)),
            Usage(120, 1000),
            "counted",
            ("usage_out_of_bounds", "count_clamped"),
            1,
        ),
        # A stream that broke off: what was delivered, whatever the backend says.
        (Evidence(LEFT, 3, said(100, 20)), Usage(100, 3), "counted", (), 1),
        (Evidence(LEFT, 3), Usage(120, 3), "counted", (), 1),
        (Evidence(LEFT, 3, said(), 50), Usage(120, 3), "counted", (), 1),
        (Evidence(BROKE, 3, said(100, 20, 50, 9)), Usage(100, 3, 50, 0), "counted", (), 1),
        (Evidence(ABORTED, 3), Usage(120, 3), "counted", (), 1),
        # Before the first content byte.
        (Evidence(BROKE, 0, said(100, 20)), NOTHING, "none", (), 0),
        (Evidence(ABORTED, 0), NOTHING, "none", (), 0),
        (Evidence(LEFT, 0), NOTHING, "none", (), 0),
        (Evidence(LEFT, 0, said(100, 20)), Usage(100, 0), "counted", (), 1),
        # After a crash, from the progress slot.
        (
            Evidence(ABORTED, 3, is_recovered=True),
            Usage(120, 3),
            "recovered",
            ("recovered", "usage_missing"),
            1,
        ),
        (
            Evidence(ABORTED, 9, said(100, 20), is_recovered=True),
            Usage(100, 20),
            "recovered",
            ("recovered",),
            1,
        ),
        (
            Evidence(ABORTED, 0, is_recovered=True),
            NOTHING,
            "none",
            ("recovered", "expert_unknown"),
            0,
        ),
    ],
)
def test_what_is_billed(
    evidence: Evidence, usage: Usage, source: str, flags: tuple[str, ...], calls: int
) -> None:
    verdict = decide(INTENT, evidence)
    assert (verdict.usage, verdict.source.value, verdict.flags) == (usage, source, flags)
    assert verdict.billed_calls == calls


@pytest.mark.parametrize("figure", [-1, 20.0, "20", True, [], {}, float("nan"), -(2**64)])
def test_figures_that_are_no_counts_are_never_billed(figure: object) -> None:
    verdict = decide(INTENT, Evidence(DONE, 9, said(figure, figure)))
    assert verdict == BilledUsage(Usage(120, 9), UsageSource.COUNTED, ("usage_invalid",), 1)


@pytest.mark.parametrize("figure", [1001, HUGE, 2**53 - 1, 10**30])
def test_impossible_figures_are_never_billed(figure: int) -> None:
    verdict = decide(INTENT, Evidence(DONE, 9, said(100, figure)))
    assert verdict == BilledUsage(
        Usage(100, 9), UsageSource.COUNTED, ("usage_out_of_bounds",), 1, reported_input_tokens=100
    )


def test_what_the_backend_said_is_kept_beside_what_is_billed() -> None:
    verdict = decide(INTENT, Evidence(LEFT, 3, said(100, 20)))
    assert (verdict.reported_input_tokens, verdict.reported_output_tokens) == (100, 20)


anything = st.one_of(
    st.none(),
    st.integers(),
    st.integers(0, 5000),
    st.floats(),
    st.booleans(),
    st.text(max_size=3),
    st.just([]),
)


@given(
    st.builds(
        Evidence,
        status=st.sampled_from(UsageStatus),
        delivered_chunks=st.integers(0, 10**6),
        reported=st.builds(ReportedUsage, anything, anything, anything, anything),
        counted_output_tokens=st.none() | st.integers(0, 10**6),
        is_recovered=st.booleans(),
    )
)
def test_whatever_comes_in_the_bill_is_within_the_hold(evidence: Evidence) -> None:
    verdict = decide(INTENT, evidence)
    rates = Rates(7, 11, 13, 17, 19)
    hold = hold_for(rates, INTENT.input_tokens_max, INTENT.output_tokens_max)
    assert 0 <= rate(verdict.usage, rates, verdict.billed_calls) <= hold
    if verdict.source is UsageSource.NONE:
        assert rate(verdict.usage, rates, verdict.billed_calls) == 0
    assert decide(INTENT, evidence) == verdict


@pytest.mark.parametrize(
    ("earlier", "later", "chosen", "agree"),
    [
        (said(), said(10, 5), said(10, 5), True),
        (said(10, 5), said(10, 9), said(10, 9), True),
        (said(10, 9), said(10, 9), said(10, 9), True),
        (said(10, 9), said(10, 3), said(10, 9), False),
        (said(10, 9), said(0, 12), said(10, 9), False),
        (said(10, 9), said(10, None), said(10, 9), False),
        (said(10, 9), said(10, "12"), said(10, 9), False),
        (said("x", -1), said(10, 2), said(10, 2), True),
    ],
)
def test_of_several_reports_the_last_wins_only_if_it_is_not_lower(
    earlier: ReportedUsage, later: ReportedUsage, chosen: ReportedUsage, agree: bool
) -> None:
    assert latest_report(earlier, later) == (chosen, agree)
