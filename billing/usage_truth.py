"""Which token counts are billed: the backend's when they are believable, else our own, never too many.

Owns the policy of what is true. Pure. Takes what the backend reported (anything at all: it is not
trusted), what our kernel accepted for the client, and how the request ended. Guarantees, whatever comes
in: counts are integers from zero to the intent's bounds, parts never exceed their wholes, and a request
whose backend never answered costs nothing.

The client pays for what was delivered: when a stream breaks off, the content chunks it got are its
output tokens, even if the backend says it made more.
"""

from dataclasses import dataclass

from billing.types import Usage, UsageIntent, UsageSource, UsageStatus

FLAG_INVALID = "usage_invalid"
"""The backend reported a figure that is no integer of zero or more."""

FLAG_OUT_OF_BOUNDS = "usage_out_of_bounds"
"""The backend reported more than was possible."""

FLAG_DISPUTED = "usage_disputed"
"""The backend reported no output for an answer that had content."""

FLAG_MISSING = "usage_missing"
"""The backend completed without reporting usage."""

FLAG_NOT_MONOTONE = "usage_not_monotone"
"""A later report was lower than an earlier one."""

FLAG_PARTS_CLAMPED = "usage_parts_clamped"
"""Cached or reasoning tokens were no part of their whole and were cut to it."""

FLAG_COUNT_CLAMPED = "count_clamped"
"""Our own count was above the bound of the intent and was cut to it."""

FLAG_RECOVERED = "recovered"
"""The process died during the request; the outcome was written at the next start."""

FLAG_EXPERT_UNKNOWN = "expert_unknown"
"""It isn't known whether the backend worked; reconcile with its log by event id."""


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """The backend's figures as they came off the wire: possibly not even numbers."""

    input_tokens: object = None
    output_tokens: object = None
    cached_input_tokens: object = None
    reasoning_tokens: object = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a request that ended.

    `delivered_chunks` counts content chunks our kernel accepted for the client;
    `counted_output_tokens` is our own count of the answer's tokens where we have a better one.
    """

    status: UsageStatus
    delivered_chunks: int = 0
    reported: ReportedUsage = ReportedUsage()
    counted_output_tokens: int | None = None
    is_recovered: bool = False


@dataclass(frozen=True, slots=True)
class BilledUsage:
    """The verdict: what is billed, on whose word, and what was odd; `reported_*` is None if unusable."""

    usage: Usage
    source: UsageSource
    flags: tuple[str, ...]
    billed_calls: int
    reported_input_tokens: int | None = None
    reported_output_tokens: int | None = None


def decide(intent: UsageIntent, evidence: Evidence) -> BilledUsage:
    """Return what the request of `intent` is billed, given how it ended."""
    flags: list[str] = [FLAG_RECOVERED] if evidence.is_recovered else []
    reported = evidence.reported
    input_reported = _believed(reported.input_tokens, intent.input_tokens_max, flags)
    output_reported = _believed(reported.output_tokens, intent.output_tokens_max, flags)
    if not _was_answered(evidence, input_reported):
        if evidence.is_recovered:
            flags.append(FLAG_EXPERT_UNKNOWN)
        return BilledUsage(
            Usage(0, 0), UsageSource.NONE, _once(flags), 0, input_reported, output_reported
        )
    input_tokens = input_reported
    if input_tokens is None:
        input_tokens = _clamped(intent.input_tokens_estimate, intent.input_tokens_max, flags)
    is_complete = evidence.status is UsageStatus.COMPLETED or evidence.is_recovered
    output_is_backends = is_complete and output_reported is not None
    if output_is_backends and output_reported == 0 and evidence.delivered_chunks > 0:
        flags.append(FLAG_DISPUTED)
        output_is_backends = False
    if is_complete and reported == ReportedUsage():
        flags.append(FLAG_MISSING)
    if output_is_backends and output_reported is not None:
        output_tokens = output_reported
    else:
        output_tokens = _clamped(_own_count(evidence), intent.output_tokens_max, flags)
    cached = reasoning = 0
    if input_reported is not None:
        cached = _part(reported.cached_input_tokens, input_tokens, flags)
    if output_is_backends:
        reasoning = _part(reported.reasoning_tokens, output_tokens, flags)
    if evidence.is_recovered:
        source = UsageSource.RECOVERED
    elif output_is_backends and input_reported is not None:
        source = UsageSource.BACKEND
    else:
        source = UsageSource.COUNTED
    usage = Usage(input_tokens, output_tokens, cached, reasoning)
    return BilledUsage(usage, source, _once(flags), 1, input_reported, output_reported)


def latest_report(earlier: ReportedUsage, later: ReportedUsage) -> tuple[ReportedUsage, bool]:
    """Return the report to go by when a backend reports several times, and whether they agree.

    The last one wins if it is not below the earlier one, else the earlier one stays; reports are never
    summed. The flag to record when they disagree is `FLAG_NOT_MONOTONE`.
    """
    for name in ("input_tokens", "output_tokens"):
        before, after = getattr(earlier, name), getattr(later, name)
        if _is_count(before) and not (_is_count(after) and after >= before):
            return earlier, False
    return later, True


def _was_answered(evidence: Evidence, input_reported: int | None) -> bool:
    """Say whether the backend did something the client pays for.

    A completed answer is one, however short, and so is any delivered content. Before the first content
    byte a failure is free; a client that left then pays what the backend had already reported.
    """
    if evidence.delivered_chunks > 0 or evidence.status is UsageStatus.COMPLETED:
        return True
    if evidence.is_recovered or evidence.status is UsageStatus.CLIENT_CANCELLED:
        return input_reported is not None
    return False


def _own_count(evidence: Evidence) -> int:
    """Return our count of the output: of the whole answer when it ended well, else what was delivered."""
    if evidence.counted_output_tokens is not None and evidence.status is UsageStatus.COMPLETED:
        return evidence.counted_output_tokens
    return evidence.delivered_chunks


def _is_count(value: object) -> bool:
    # A bool is an int to Python and not to us.
    return type(value) is int and value >= 0


def _believed(value: object, bound: int, flags: list[str]) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 0:
        flags.append(FLAG_INVALID)
        return None
    if value > bound:
        flags.append(FLAG_OUT_OF_BOUNDS)
        return None
    return value


def _part(value: object, whole: int, flags: list[str]) -> int:
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        flags.append(FLAG_INVALID)
        return 0
    if value > whole:
        flags.append(FLAG_PARTS_CLAMPED)
    return min(value, whole)


def _clamped(count: int, bound: int, flags: list[str]) -> int:
    if not 0 <= count <= bound:
        flags.append(FLAG_COUNT_CLAMPED)
    return min(max(count, 0), bound)


def _once(flags: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(flags))
