"""Load is what an expert held of the engine's places, averaged over the last 100 ms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_engine.engine.load_window import LoadWindow


def test_an_expert_that_held_half_the_places_for_half_the_window_has_a_quarter_load() -> None:
    window = LoadWindow(4)
    window.change("a", 2, 10.0)
    assert window.loads(10.05) == {"a": pytest.approx(0.25)}
    assert window.loads(10.1) == {"a": pytest.approx(0.5)}
    window.change("a", -2, 10.2)
    assert window.loads(10.25) == {"a": pytest.approx(0.25)}
    assert window.loads(10.3) == {}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 0.05)), max_size=60))
def test_load_stays_between_none_and_all(changes: list[tuple[str, float]]) -> None:
    window, held, now_s = LoadWindow(2), {"a": 0, "b": 0}, 0.0
    for expert_id, pause_s in changes:
        now_s += pause_s
        delta = -1 if held[expert_id] else 1
        held[expert_id] += delta
        window.change(expert_id, delta, now_s)
        assert all(0 <= load <= 1 for load in window.loads(now_s).values())
    assert set(window.loads(now_s + 0.2)) == {name for name, count in held.items() if count}
