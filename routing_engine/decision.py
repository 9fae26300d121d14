"""The routing decision: gate blended with the fallback table, damped by load, bounded by entitlement. Pure.

A new caller is routed mostly by the table, until the gate takes over by a stated schedule (docs/adr/0008): the
table's share is 0.8 for the first five requests, then 0.4, 0.2, 0.1, then 0.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from routing_engine.types import (
    ExpertId,
    ExpertScore,
    RouteRequest,
    RouteSource,
    RoutingDecision,
)

FIRST_REQUESTS = 5
"""Requests of a new caller that the table decides for the most part."""

TABLE_SHARE_FIRST = 0.8
_LATER_SHARES = (0.4, 0.2, 0.1)
"""The share halves with each request after the first ones, three times; then the gate decides alone."""

HINT_ODDS = 12.0
"""What a matched dictionary concept multiplies its expert's odds by: strong, yet a sure gate overrules it."""

CANDIDATES = 3
LETTERS_MIN = 2
"""Letters, digits and ideographs below which nothing is classified; 合同 has two."""

Scores = Mapping[ExpertId, float]
NO_SCORES: Scores = {}


@dataclass(frozen=True, slots=True)
class Policy:
    """Below these probabilities gate and table count as unsure."""

    gate_abstain_below: float
    table_abstain_below: float


def table_share(caller_request_count: int) -> float:
    """Return the fallback table's share in the blend for a caller who has made that many requests."""
    if caller_request_count < FIRST_REQUESTS:
        return TABLE_SHARE_FIRST
    later = caller_request_count - FIRST_REQUESTS
    return _LATER_SHARES[later] if later < len(_LATER_SHARES) else 0.0


def decide(
    gate: Scores | None,
    table: Scores | None,
    request: RouteRequest,
    *,
    policy: Policy,
    load: Mapping[ExpertId, float],
    default_expert: ExpertId,
    artefact_version: str = "",
) -> RoutingDecision:
    """Return the expert for `request`.

    Args:
        gate: calibrated probabilities of the gate by expert; None when there is no gate.
        table: those of the fallback table; None when there is none.
        load: share of each expert's capacity in use during the last 100 ms, 0 to 1.
    """
    if gate is None and table is None:
        return _default(request, default_expert, "no gate and no table", artefact_version)
    if not has_human_text(request.text):
        return _default(request, default_expert, "no text to go by", artefact_version)
    gate = None if gate is None else _with_hints(gate, request)
    table = None if table is None else _with_hints(table, request)
    share, source, reason = _blend(gate, table, request, policy)
    blended = _weighted(gate, table, share)
    if request.allowed is not None:
        blended = {each: score for each, score in blended.items() if each in request.allowed}
    threshold = (
        policy.table_abstain_below if source is RouteSource.TABLE else policy.gate_abstain_below
    )
    if not blended or max(blended.values()) < threshold:
        best = f"best score {max(blended.values()):.2f}" if blended else "nothing allowed is scored"
        return _default(request, default_expert, f"unsure, {best}", artefact_version, blended)
    # Experts at full load are told apart by their own scores; other ties go to the smaller id, so that a decision
    # can be reproduced.
    damped = sorted(
        (
            -score * (1.0 - min(1.0, max(0.0, load.get(expert_id, 0.0)))) if load else -score,
            -score,
            expert_id,
        )
        for expert_id, score in blended.items()
    )
    candidates = tuple(ExpertScore(name, abs(score)) for score, _, name in damped[:CANDIDATES])
    return RoutingDecision(
        expert_id=candidates[0].expert_id,
        source=source,
        score=candidates[0].score,
        stage=1,
        table_share=share,
        candidates=candidates,
        reason=reason,
        artefact_version=artefact_version,
    )


def has_human_text(text: str) -> bool:
    """Say whether a text holds enough letters to be classified."""
    letters = (character for character in text if character.isalnum())
    return sum(1 for _ in itertools.islice(letters, LETTERS_MIN)) >= LETTERS_MIN


def is_unsure(decision: RoutingDecision, policy: Policy) -> bool:
    """Say whether another opinion is worth asking for; `decision` is one made without load."""
    if decision.source is RouteSource.DEFAULT:
        return True
    return decision.score < policy.gate_abstain_below


def _blend(
    gate: Scores | None, table: Scores | None, request: RouteRequest, policy: Policy
) -> tuple[float, RouteSource, str]:
    """Return the table's share, the source to name, and the reason for people."""
    count = request.caller_request_count
    if gate is None:
        return 1.0, RouteSource.TABLE, "fallback table, there is no gate"
    if table is None:
        return 0.0, RouteSource.GATE, "gate, there is no fallback table"
    share = table_share(count)
    if share > 0.0:
        reason = f"table {share:.0%} + gate {1 - share:.0%}, request {count + 1} of this caller"
        return share, RouteSource.BLEND, reason
    if max(gate.values()) < policy.gate_abstain_below <= max(table.values()):
        return 1.0, RouteSource.TABLE, "fallback table, the gate is unsure"
    return 0.0, RouteSource.GATE, f"gate alone, request {count + 1} of this caller"


def _weighted(gate: Scores | None, table: Scores | None, share: float) -> Scores:
    """Return the weighted mean of gate and table by expert; an expert that one doesn't know has zero there."""
    if gate is None or share == 1.0:
        return table or NO_SCORES
    if table is None or share == 0.0:
        return gate
    blended = {each: score * (1.0 - share) for each, score in gate.items()}
    for each, score in table.items():
        blended[each] = blended.get(each, 0.0) + share * score
    return blended


def _with_hints(scores: Scores, request: RouteRequest) -> Scores:
    """Return probabilities with the odds of experts that matched concepts point at multiplied."""
    hinted = {ExpertId(hint) for hint in request.expert_hints if hint in scores}
    if not hinted:
        return scores
    # Several concepts that disagree share the evidence.
    factor = HINT_ODDS ** (1.0 / len(hinted))
    raised = {
        expert_id: score * factor if expert_id in hinted else score
        for expert_id, score in scores.items()
    }
    # What the scorer gave to experts that aren't configured stays theirs: it is part of the odds.
    total = sum(raised.values()) + max(0.0, 1.0 - sum(scores.values()))
    return {expert_id: score / total for expert_id, score in raised.items()}


def _default(
    request: RouteRequest,
    default_expert: ExpertId,
    why: str,
    artefact_version: str,
    scores: Scores = NO_SCORES,
) -> RoutingDecision:
    """Return the default expert, or the best allowed one where it isn't allowed.

    With nothing at all allowed the default is named; whoever checks entitlement refuses it with its reason.
    """
    expert_id = default_expert
    if request.allowed and default_expert not in request.allowed:
        # The smaller id wins a tie, so that a decision can be reproduced.
        expert_id = min(request.allowed, key=lambda each: (-scores.get(each, 0.0), each))
    return RoutingDecision(
        expert_id=expert_id,
        source=RouteSource.DEFAULT,
        score=0.0,
        reason=f"default expert: {why}",
        artefact_version=artefact_version,
    )
