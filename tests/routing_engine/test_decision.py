"""The decision: blend schedule, abstention, entitlement, hints, load. Pure, so tables say it all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_engine.decision import Policy, decide, has_human_text, is_unsure, table_share
from routing_engine.types import ExpertId, ExpertScore, RouteRequest, RouteSource, RoutingDecision

A, B, C, GENERAL = (ExpertId(name) for name in ("a", "b", "c", "general"))
POLICY = Policy(gate_abstain_below=0.5, table_abstain_below=0.4)
SURE = {A: 0.9, B: 0.1, C: 0.0}
ELSEWHERE = {A: 0.05, B: 0.9, C: 0.05}
FLAT = {A: 0.34, B: 0.33, C: 0.33}
OLD = 100


def choose(gate, table, *, count=OLD, load=None, **request) -> RoutingDecision:
    return decide(
        gate,
        table,
        RouteRequest(request.pop("text", "some words"), caller_request_count=count, **request),
        policy=POLICY,
        load=load or {},
        default_expert=GENERAL,
        artefact_version="v1",
    )


@pytest.mark.parametrize(
    ("count", "share"),
    [(0, 0.8), (1, 0.8), (4, 0.8), (5, 0.4), (6, 0.2), (7, 0.1), (8, 0.0), (10**9, 0.0)],
)
def test_the_tables_share_is_eighty_per_cent_then_halves_then_ends(count, share):
    assert table_share(count) == share


def test_a_new_caller_is_routed_by_the_blend():
    decision = choose(SURE, ELSEWHERE, count=0)
    assert decision.source is RouteSource.BLEND
    assert decision.expert_id == B
    assert decision.score == pytest.approx(0.8 * 0.9 + 0.2 * 0.1)
    assert decision.table_share == 0.8
    assert "80%" in decision.reason
    assert decision.artefact_version == "v1"


def test_an_old_caller_is_routed_by_the_gate_alone():
    decision = choose(SURE, ELSEWHERE)
    assert (decision.source, decision.expert_id) == (RouteSource.GATE, A)
    assert (decision.score, decision.table_share, decision.stage) == (0.9, 0.0, 1)
    assert decision.candidates == (
        ExpertScore(A, 0.9),
        ExpertScore(B, 0.1),
        ExpertScore(C, 0.0),
    )


def test_an_unsure_gate_leaves_it_to_a_sure_table():
    decision = choose(FLAT, ELSEWHERE)
    assert (decision.source, decision.expert_id) == (RouteSource.TABLE, B)


def test_without_a_gate_the_table_decides():
    decision = choose(None, SURE)
    assert (decision.source, decision.expert_id) == (RouteSource.TABLE, A)


@pytest.mark.parametrize(
    ("gate", "table"), [(FLAT, FLAT), (None, FLAT), (None, None), (FLAT, None)]
)
def test_when_nothing_is_sure_the_default_is_taken(gate, table):
    decision = choose(gate, table)
    assert (decision.source, decision.expert_id) == (RouteSource.DEFAULT, GENERAL)
    assert decision.score == 0.0


@pytest.mark.parametrize("text", ["", " ", "?", "。！", "x", "🙂🙂🙂"])
def test_a_text_without_words_is_not_classified(text):
    assert not has_human_text(text)
    assert choose(SURE, SURE, text=text).source is RouteSource.DEFAULT


@pytest.mark.parametrize("text", ["hi", "合同", "C4"])
def test_two_letters_are_a_text(text):
    assert has_human_text(text)


def test_the_choice_never_leaves_what_is_allowed():
    decision = choose(ELSEWHERE, ELSEWHERE, allowed=frozenset({A, GENERAL}))
    assert decision.expert_id == GENERAL
    assert decision.source is RouteSource.DEFAULT


def test_the_best_allowed_expert_stands_in_for_a_default_that_is_not_allowed():
    flat = {A: 0.1, B: 0.2, C: 0.3}
    assert choose(flat, flat, allowed=frozenset({A, B})).expert_id == B
    assert choose(None, None, allowed=frozenset({C, B})).expert_id == B


def test_a_busy_expert_loses_to_an_idle_one_that_is_nearly_as_good():
    scores = {A: 0.52, B: 0.48, C: 0.0}
    assert choose(scores, None).expert_id == A
    busy = choose(scores, None, load={A: 0.5})
    assert busy.expert_id == B
    assert busy.candidates[1] == ExpertScore(A, 0.26)


def test_load_beyond_its_range_is_clamped():
    decision = choose(SURE, None, load={A: 7.0, B: -3.0})
    assert decision.candidates[0] == ExpertScore(B, 0.1)
    assert all(0.0 <= each.score <= 1.0 for each in decision.candidates)


def test_equal_scores_go_to_the_smaller_id():
    assert choose({C: 0.5, B: 0.5}, None).expert_id == B


def test_three_spellings_of_one_concept_reach_its_expert():
    for scores in ({A: 0.3, B: 0.4, C: 0.3}, {A: 0.2, B: 0.5, C: 0.3}, FLAT):
        assert choose(scores, scores, expert_hints=("a",)).expert_id == A
    # A sure gate overrules a hint, and a hint at nobody changes nothing.
    assert choose({A: 0.01, B: 0.98, C: 0.01}, None, expert_hints=("a",)).expert_id == B
    assert choose(SURE, None, expert_hints=("nobody",)) == choose(SURE, None)


def test_a_default_is_unsure_and_so_is_a_low_score():
    assert is_unsure(choose(None, None), POLICY)
    assert is_unsure(RoutingDecision(A, RouteSource.TABLE, 0.45), POLICY)
    assert not is_unsure(choose(SURE, None), POLICY)


@given(
    st.lists(st.floats(0.001, 1.0), min_size=4, max_size=4),
    st.sets(st.sampled_from([A, B, C, GENERAL]), min_size=1),
    st.integers(0, 12),
    st.dictionaries(st.sampled_from([A, B, C]), st.floats(0.0, 1.0)),
)
def test_whatever_the_scores_the_choice_is_allowed_and_its_scores_are_shares(
    raw, allowed, count, load
):
    scores = {each: raw[n] / sum(raw) for n, each in enumerate((A, B, C, GENERAL))}
    decision = choose(scores, scores, count=count, load=load, allowed=frozenset(allowed))
    assert decision.expert_id in allowed
    assert sum(each.score for each in decision.candidates) <= 1.0 + 1e-9
