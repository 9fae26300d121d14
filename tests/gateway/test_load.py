"""Load is an average over 100 ms of what is in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.load import WINDOW_NS, LoadWindow
from routing_engine.types import ExpertId

A = ExpertId("a")


def test_an_expert_without_requests_has_no_load():
    assert LoadWindow().loads(0) == {}


def test_load_rises_to_its_share_of_capacity_and_falls_back():
    window = LoadWindow(capacity=4)
    for _ in range(2):
        window.started(A, 0)
    assert window.loads(0)[A] == 0
    assert window.loads(10 * WINDOW_NS)[A] == pytest.approx(0.5, abs=1e-3)
    for _ in range(2):
        window.ended(A, 10 * WINDOW_NS)
    assert window.loads(20 * WINDOW_NS)[A] == pytest.approx(0.0, abs=1e-3)


def test_more_than_full_is_full():
    window = LoadWindow(capacity=1)
    for _ in range(5):
        window.started(A, 0)
    assert window.loads(10 * WINDOW_NS)[A] == 1.0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, WINDOW_NS)), max_size=40))
def test_load_is_always_a_share(steps):
    window, now = LoadWindow(capacity=3), 0
    for starts, later in steps:
        now += later
        (window.started if starts else window.ended)(A, now)
        assert all(0.0 <= load <= 1.0 for load in window.loads(now).values())
