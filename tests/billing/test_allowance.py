"""Allowances: order of use, the split event, windows, several packages; against a slow oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.allowance import (
    NOTHING_COVERED,
    Allowance,
    CoveredPart,
    CoveredRun,
    UsageItem,
    Window,
    after_draw,
    cover,
    cover_whole,
)

ALWAYS = (Window(0),)


def item(place, expert, micropoints):
    return UsageItem((place, f"e{place}", 0), expert, micropoints)


def allowance(name, experts, remaining, windows=ALWAYS):
    return Allowance(name, frozenset(experts), remaining, windows)


def test_item_that_exhausts_the_allowance_is_split_exactly():
    items = [item(1, "a", 7), item(2, "b", 5), item(3, "a", 9)]
    found = cover(items, [allowance("p", "ab", 10)])
    assert found.runs == (CoveredRun("a", items[0].position, items[0].position),)
    assert found.parts == (CoveredPart("b", items[1].position, 3),)
    assert (found.by_expert, found.by_package) == ({"a": 7, "b": 3}, {"p": 10})


def test_experts_outside_the_package_are_not_covered():
    assert cover([item(1, "x", 7)], [allowance("p", "ab", 10)]).by_expert == {}


def test_reading_stops_with_the_item_that_exhausts_everything():
    def items():
        yield item(1, "a", 10)
        raise AssertionError("read too far")

    assert cover(items(), [allowance("p", "a", 10)]).by_package == {"p": 10}
    assert cover(items(), [allowance("p", "a", 0)]) == NOTHING_COVERED


def test_usage_outside_the_windows_is_not_covered():
    windows = (Window(2, 4), Window(6))
    items = [item(place, "a", 1) for place in range(1, 8)]
    found = cover(items, [allowance("p", "a", 100, windows)])
    assert found.runs == (
        CoveredRun("a", items[1].position, items[2].position),
        CoveredRun("a", items[5].position, items[6].position),
    )
    assert found.by_package == {"p": 4}


def test_item_may_draw_from_two_packages():
    items = [item(1, "a", 10)]
    found = cover(items, [allowance("p", "a", 4), allowance("q", "a", 9)])
    assert found.runs == (CoveredRun("a", items[0].position, items[0].position),)
    assert found.by_package == {"p": 4, "q": 6}


def test_draws_are_taken_off_what_is_left():
    allowances = [allowance("p", "a", 4), allowance("q", "b", 9)]
    left = after_draw(allowances, cover([item(1, "a", 3)], allowances))
    assert [one.remaining for one in left] == [1, 9]


@pytest.mark.parametrize(
    ("allowances", "expected"),
    [
        ([allowance("p", "ab", 12)], {"a": 5, "b": 7}),
        ([allowance("p", "ab", 11)], None),
        ([allowance("p", "a", 5), allowance("q", "b", 7)], {"a": 5, "b": 7}),
        ([allowance("p", "ab", 99), allowance("q", "b", 99)], None),
        ([allowance("p", "ab", 99), allowance("q", "b", 0)], {"a": 5, "b": 7}),
        ([allowance("p", "a", 99, (Window(10, 20),))], {"a": 5}),
        ([allowance("p", "a", 99, (Window(11),))], None),
        ([allowance("p", "a", 99, (Window(10, 19),))], None),
        ([allowance("p", "x", 99)], {}),
    ],
)
def test_sums_decide_only_when_order_can_not_matter(allowances, expected):
    found = cover_whole({"a": 5, "b": 7, "c": 1}, allowances, Window(10, 20))
    assert (None if found is None else found.by_expert) == expected


ITEMS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=20)
WINDOWS = st.tuples(st.integers(0, 12), st.none() | st.integers(12, 25)).map(
    lambda ends: (Window(*ends),)
)
ALLOWANCES = st.lists(
    st.tuples(st.frozensets(st.sampled_from("abc"), min_size=1), st.integers(0, 40), WINDOWS),
    max_size=3,
)


@given(ITEMS, ALLOWANCES)
def test_cover_equals_point_by_point_drawing(raw_items, raw_allowances):
    items = [item(place, *raw) for place, raw in enumerate(raw_items)]
    allowances = [allowance(f"p{index}", *raw) for index, raw in enumerate(raw_allowances)]
    left = {one.package_id: one.remaining for one in allowances}
    drawn = {one.position: 0 for one in items}
    for one in items:
        for _ in range(one.micropoints):
            for source in allowances:
                window = source.windows[0]
                runs = window.start_us <= one.position[0] < (window.end_us or 10**9)
                if one.expert_id in source.experts and runs and left[source.package_id]:
                    left[source.package_id] -= 1
                    drawn[one.position] += 1
                    break
    found = cover(items, allowances)
    covered = {part.position: part.micropoints for part in found.parts}
    for run in found.runs:
        for one in items:
            if one.expert_id == run.expert_id and run.first <= one.position <= run.last:
                covered[one.position] = one.micropoints
    assert {place: amount for place, amount in covered.items() if amount} == {
        place: amount for place, amount in drawn.items() if amount
    }
    assert sum(found.by_package.values()) == sum(found.by_expert.values()) == sum(drawn.values())


@given(ITEMS, ALLOWANCES)
def test_shortcut_agrees_with_the_full_pass(raw_items, raw_allowances):
    items = [item(place, *raw) for place, raw in enumerate(raw_items)]
    allowances = [allowance(f"p{index}", *raw) for index, raw in enumerate(raw_allowances)]
    sums = {}
    for one in items:
        sums[one.expert_id] = sums.get(one.expert_id, 0) + one.micropoints
    short = cover_whole(sums, allowances, Window(0, 20))
    if short is not None:
        full = cover(items, allowances)
        assert (short.by_expert, short.by_package) == (full.by_expert, full.by_package)
