"""The decision as a pure function: blend, entitlement, load, hints, and the reasons it gives."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_engine.decision import (
    CANDIDATES,
    HINT_ODDS,
    Policy,
    decide,
    has_human_text,
    is_unsure,
    table_share,
)
from routing_engine.types import ExpertId, ExpertScore, RouteRequest, RouteSource, RoutingDecision

A, B, C, D = (ExpertId(name) for name in "abcd")
POLICY = Policy(gate_abstain_below=0.3, table_abstain_below=0.4)
GATE = {A: 0.7, B: 0.2, C: 0.1}
TABLE = {A: 0.1, B: 0.8, C: 0.1}
NEW, ESTABLISHED = 0, 1_000
TEXT = "how does a derailleur work"


def decided(gate=GATE, table=TABLE, request=None, *, policy=POLICY, load=None, **fields):
    return decide(
        gate,
        table,
        request or RouteRequest(TEXT, **fields),
        policy=policy,
        load=load or {},
        default_expert=D,
        artefact_version="v1",
    )


def scores_of(decision):
    return {each.expert_id: pytest.approx(each.score) for each in decision.candidates}


# The schedule of docs/adr/0008.


@pytest.mark.parametrize(
    ("count", "share"),
    [(0, 0.8), (1, 0.8), (4, 0.8), (5, 0.4), (6, 0.2), (7, 0.1), (8, 0.0), (9, 0.0), (10**9, 0.0)],
)
def test_the_tables_share_falls_by_the_stated_schedule(count, share):
    assert table_share(count) == share


def test_a_new_caller_is_routed_by_a_blend_in_favour_of_the_table():
    decision = decided(caller_request_count=NEW)
    assert decision == RoutingDecision(
        expert_id=B,
        source=RouteSource.BLEND,
        score=pytest.approx(0.2 * 0.2 + 0.8 * 0.8),
        stage=1,
        table_share=0.8,
        candidates=(
            ExpertScore(B, pytest.approx(0.68)),
            ExpertScore(A, pytest.approx(0.22)),
            ExpertScore(C, pytest.approx(0.1)),
        ),
        reason="table 80% + gate 20%, request 1 of this caller",
        artefact_version="v1",
    )


@pytest.mark.parametrize(
    ("count", "expert", "source", "share", "reason"),
    [
        (4, B, RouteSource.BLEND, 0.8, "table 80% + gate 20%, request 5 of this caller"),
        (5, A, RouteSource.BLEND, 0.4, "table 40% + gate 60%, request 6 of this caller"),
        (6, A, RouteSource.BLEND, 0.2, "table 20% + gate 80%, request 7 of this caller"),
        (7, A, RouteSource.BLEND, 0.1, "table 10% + gate 90%, request 8 of this caller"),
        (8, A, RouteSource.GATE, 0.0, "gate alone, request 9 of this caller"),
    ],
)
def test_the_gate_takes_over_request_by_request(count, expert, source, share, reason):
    decision = decided(caller_request_count=count)
    assert (decision.expert_id, decision.source) == (expert, source)
    assert (decision.table_share, decision.reason) == (share, reason)
    assert decision.score == pytest.approx(
        (1 - share) * GATE[decision.expert_id] + share * TABLE[decision.expert_id]
    )


def test_without_a_gate_the_table_decides_for_everybody():
    for count in (NEW, ESTABLISHED):
        decision = decided(gate=None, caller_request_count=count)
        assert (decision.expert_id, decision.source, decision.table_share) == (
            B,
            RouteSource.TABLE,
            1.0,
        )
        assert decision.reason == "fallback table, there is no gate"
        assert scores_of(decision) == TABLE


def test_without_a_table_the_gate_decides_for_everybody():
    for count in (NEW, ESTABLISHED):
        decision = decided(table=None, caller_request_count=count)
        assert (decision.expert_id, decision.source, decision.table_share) == (
            A,
            RouteSource.GATE,
            0.0,
        )
        assert decision.reason == "gate, there is no fallback table"
        assert scores_of(decision) == GATE


def test_a_sure_table_stands_in_for_an_unsure_gate():
    unsure = {A: 0.29, B: 0.28, C: 0.28}
    decision = decided(gate=unsure, caller_request_count=ESTABLISHED)
    assert (decision.expert_id, decision.source, decision.table_share) == (
        B,
        RouteSource.TABLE,
        1.0,
    )
    assert decision.reason == "fallback table, the gate is unsure"
    at_its_threshold = decided(gate={A: 0.3, B: 0.29}, caller_request_count=ESTABLISHED)
    assert (at_its_threshold.expert_id, at_its_threshold.source) == (A, RouteSource.GATE)
    both = decided(gate=unsure, table=dict(unsure), caller_request_count=ESTABLISHED)
    assert both.source is RouteSource.DEFAULT


@pytest.mark.parametrize("count", [NEW, ESTABLISHED])
def test_without_gate_and_table_the_default_answers(count):
    assert decided(None, None, caller_request_count=count) == RoutingDecision(
        expert_id=D,
        source=RouteSource.DEFAULT,
        score=0.0,
        reason="default expert: no gate and no table",
        artefact_version="v1",
    )


@pytest.mark.parametrize("text", ["", "  ", "?!", "a", "。。。好", "🙂🙂🙂", "\0" * 100])
def test_a_text_without_letters_is_not_classified(text):
    decision = decided(request=RouteRequest(text))
    assert (decision.expert_id, decision.source, decision.stage) == (D, RouteSource.DEFAULT, 0)
    assert decision.reason == "default expert: no text to go by"
    assert not has_human_text(text)


@pytest.mark.parametrize("text", ["合同", "ok", "C9", "- a - b", "é!ß"])
def test_two_letters_are_text(text):
    assert has_human_text(text)
    assert decided(request=RouteRequest(text)).source is RouteSource.BLEND


def test_an_unsure_blend_goes_to_the_default_and_says_how_unsure():
    even = {A: 0.25, B: 0.24, C: 0.2}
    decision = decided(gate=even, table=even)
    assert (decision.expert_id, decision.score) == (D, 0.0)
    assert decision.reason == "default expert: unsure, best score 0.25"


@pytest.mark.parametrize(
    ("score", "source"), [(0.4, RouteSource.TABLE), (0.39, RouteSource.DEFAULT)]
)
def test_a_score_at_the_tables_threshold_is_enough(score, source):
    assert decided(gate=None, table={A: score, B: 0.1}).source is source


# Entitlement.

ids = st.sampled_from([ExpertId(name) for name in "abcdefgh"])
scores = st.dictionaries(ids, st.floats(0.0, 1.0), min_size=1, max_size=8)
requests = st.builds(
    RouteRequest,
    text=st.sampled_from([TEXT, "", "合同"]),
    expert_hints=st.lists(ids, max_size=3).map(tuple),
    caller_request_count=st.integers(0, 12),
    allowed=st.none() | st.frozensets(ids, min_size=1),
)
loads = st.dictionaries(ids, st.floats(-0.5, 1.5), max_size=8)


@given(st.none() | scores, st.none() | scores, requests, loads)
def test_entitlement_is_never_left(gate, table, request, load):
    decision = decided(gate, table, request, load=load)
    if request.allowed is None:
        assert decision.expert_id in {D, *(gate or {}), *(table or {})}
        return
    assert decision.expert_id in request.allowed
    assert {each.expert_id for each in decision.candidates} <= request.allowed


def test_the_best_allowed_expert_wins():
    decision = decided({A: 0.1, B: 0.5, C: 0.4}, None, allowed=frozenset({A, C}))
    assert (decision.expert_id, decision.source, decision.score) == (C, RouteSource.GATE, 0.4)
    assert scores_of(decision) == {C: 0.4, A: 0.1}


def test_where_the_default_is_not_allowed_the_best_allowed_one_stands_in():
    decision = decided(allowed=frozenset({B, C}), caller_request_count=ESTABLISHED)
    assert (decision.expert_id, decision.source, decision.score) == (B, RouteSource.DEFAULT, 0.0)
    assert decision.reason == "default expert: unsure, best score 0.20"


def test_where_nothing_allowed_is_scored_the_smallest_allowed_id_stands_in():
    decision = decided(allowed=frozenset({ExpertId("z"), ExpertId("y")}))
    assert (decision.expert_id, decision.source) == (ExpertId("y"), RouteSource.DEFAULT)
    assert decision.reason == "default expert: unsure, nothing allowed is scored"


def test_where_the_default_is_allowed_it_is_taken_although_others_are():
    assert decided(None, None, allowed=frozenset({A, D})).expert_id == D


def test_where_nothing_at_all_is_allowed_the_default_is_named_for_the_refusal():
    decision = decided(allowed=frozenset())
    assert (decision.expert_id, decision.source) == (D, RouteSource.DEFAULT)


# Load.


def test_a_busy_experts_request_moves_to_its_mirror():
    gate = {A: 0.5, B: 0.45, C: 0.05}
    quiet = decided(gate, None)
    assert quiet.expert_id == A
    busy = decided(gate, None, load={A: 0.5})
    assert (busy.expert_id, busy.source, busy.score) == (B, RouteSource.GATE, 0.45)
    assert scores_of(busy) == {B: 0.45, A: 0.25, C: 0.05}


def test_a_little_load_does_not_move_a_clear_choice():
    decision = decided(table=None, load={A: 0.5})
    assert (decision.expert_id, decision.score) == (A, pytest.approx(0.35))


def test_load_alone_never_makes_the_router_unsure():
    decision = decided({A: 0.4, B: 0.1}, None, load={A: 0.5, B: 0.5})
    assert (decision.expert_id, decision.source, decision.score) == (
        A,
        RouteSource.GATE,
        pytest.approx(0.2),
    )


@given(st.none() | scores, scores, requests, loads)
def test_load_never_raises_a_score(gate, table, request, load):
    quiet = decided(gate, table, replace(request, text=TEXT))
    busy = decided(gate, table, replace(request, text=TEXT), load=load)
    assert (busy.source is RouteSource.DEFAULT) == (quiet.source is RouteSource.DEFAULT)
    assert busy.score <= quiet.score
    before = {each.expert_id: each.score for each in quiet.candidates}
    lowest = min(before.values(), default=0.0)
    for each in busy.candidates:
        assert 0.0 <= each.score <= before.get(each.expert_id, lowest)


def test_when_every_expert_is_full_the_best_one_answers():
    decision = decided({A: 0.1, B: 0.2, C: 0.7}, None, load={A: 1.0, B: 1.0, C: 1.0})
    assert [each.expert_id for each in decision.candidates] == [C, B, A]
    assert str(decision.score) == "0.0"


@pytest.mark.parametrize("load", [1.0, 1.5, 1e9])
def test_a_load_beyond_capacity_counts_as_full(load):
    decision = decided(table=None, load={A: load})
    assert scores_of(decision) == {B: 0.2, C: 0.1, A: 0.0}


def test_a_negative_load_counts_as_none():
    assert decided(table=None, load={A: -3.0}) == decided(table=None)


# Hints of matched concepts.


@pytest.mark.parametrize(
    "gate",
    [
        {A: 0.2, B: 0.7, C: 0.1},
        {A: 0.2, B: 0.1, C: 0.7},
        {A: 0.4, B: 0.3, C: 0.3},
    ],
    ids=["quicksort", "快速排序", "快排"],
)
@pytest.mark.parametrize("count", [NEW, ESTABLISHED])
def test_three_spellings_of_one_concept_reach_the_same_expert(gate, count):
    decision = decided(gate, gate, expert_hints=(A,), caller_request_count=count)
    assert decision.expert_id == A
    assert decision.score > 0.7


def test_a_hint_multiplies_its_experts_odds():
    decision = decided(table=None, expert_hints=(B,))
    odds = HINT_ODDS * 0.2 / 0.8
    assert scores_of(decision)[B] == odds / (1 + odds)
    assert sum(each.score for each in decision.candidates) == pytest.approx(1.0)


def test_a_hint_does_not_claim_what_belongs_to_experts_that_are_not_configured():
    # The gate gave 0.95 to an expert that the catalog no longer has.
    decision = decided({A: 0.03, B: 0.02}, None, expert_hints=(A,))
    total = HINT_ODDS * 0.03 + 0.02 + 0.95
    assert decision.source is RouteSource.DEFAULT
    assert decision.reason == f"default expert: unsure, best score {HINT_ODDS * 0.03 / total:.2f}"


def test_a_hint_at_an_expert_without_any_score_is_survived():
    # In float32 the softmax of a sharp gate is exactly zero for an expert far behind.
    assert decided({A: 0.0, B: 0.0}, None, expert_hints=(A,)).source is RouteSource.DEFAULT


def test_a_sure_gate_overrules_a_hint():
    assert decided({A: 0.95, B: 0.05}, None, expert_hints=(B,)).expert_id == A


def test_hints_that_disagree_share_the_evidence():
    decision = decided({A: 0.5, B: 0.25, C: 0.25}, None, expert_hints=(A, B))
    by_expert = scores_of(decision)
    factor = HINT_ODDS**0.5
    total = factor * 0.75 + 0.25
    assert by_expert == {A: factor * 0.5 / total, B: factor * 0.25 / total, C: 0.25 / total}


def test_the_same_hint_twice_is_one_hint():
    assert decided(expert_hints=(B, B, B)) == decided(expert_hints=(B,))


def test_a_hint_at_an_expert_that_is_not_scored_changes_nothing():
    assert decided(expert_hints=("unknown", "")) == decided()


def test_a_hint_never_leaves_the_entitlement():
    decision = decided(expert_hints=(B,), allowed=frozenset({A}), caller_request_count=ESTABLISHED)
    assert decision.expert_id == A


# Form.


@given(scores, scores, requests, loads)
def test_candidates_are_the_best_few_in_order_and_the_first_is_the_choice(
    gate, table, request, load
):
    decision = decided(gate, table, replace(request, text=TEXT), load=load)
    if decision.source is RouteSource.DEFAULT:
        assert decision.candidates == ()
        return
    found = [each.score for each in decision.candidates]
    assert found == sorted(found, reverse=True)
    assert 1 <= len(found) <= CANDIDATES
    assert ExpertScore(decision.expert_id, decision.score) == decision.candidates[0]
    assert decision.stage == 1


@given(st.lists(st.floats(0.001, 1.0), min_size=4, max_size=4), requests, loads)
def test_scores_of_one_decision_are_shares_of_one(raw, request, load):
    shares = {ExpertId(name): each / sum(raw) for name, each in zip("abcd", raw, strict=True)}
    decision = decided(shares, shares, request, load=load)
    assert all(0.0 <= each.score <= 1.0 for each in decision.candidates)
    assert sum(each.score for each in decision.candidates) <= 1.0 + 1e-9


def test_ties_go_to_the_smaller_id_in_whatever_order_scores_come():
    for names in itertools.permutations("abcd"):
        gate = {ExpertId(name): 0.25 for name in names}
        decision = decided(gate, None, policy=Policy(0.1, 0.1))
        assert [each.expert_id for each in decision.candidates] == [A, B, C]


def test_arguments_are_left_as_they_were():
    gate, table, load = dict(GATE), dict(TABLE), {A: 0.5}
    decided(gate, table, expert_hints=(B,), load=load)
    assert (gate, table, load) == (GATE, TABLE, {A: 0.5})


def test_an_expert_that_only_one_scorer_knows_has_zero_with_the_other():
    decision = decided({A: 1.0}, {B: 1.0}, caller_request_count=5)
    assert scores_of(decision) == {A: 0.6, B: 0.4}


@pytest.mark.parametrize(
    ("source", "score", "unsure"),
    [
        (RouteSource.GATE, 0.3, False),
        (RouteSource.GATE, 0.29, True),
        (RouteSource.BLEND, 0.29, True),
        (RouteSource.TABLE, 0.5, False),
        (RouteSource.DEFAULT, 0.9, True),
    ],
)
def test_another_opinion_is_asked_for_below_the_gates_threshold(source, score, unsure):
    assert is_unsure(RoutingDecision(A, source, score), POLICY) is unsure
