"""How busy each expert was during the last 100 ms. Pure: time is passed in."""

import math

from routing_engine.types import ExpertId

WINDOW_NS = 100_000_000
"""The window of DESIGN's load balancer: 100 ms."""

CAPACITY_DEFAULT = 64
"""Requests at once that count as full load of an expert."""


class LoadWindow:
    """Average number of requests in flight per expert over a sliding window, as a share of its capacity.

    The average is exponential with the window as its time constant: no list of events, two numbers per expert.
    """

    __slots__ = ("_capacity", "_state")

    def __init__(self, capacity: int = CAPACITY_DEFAULT) -> None:
        self._capacity = capacity
        self._state: dict[ExpertId, tuple[int, float, int]] = {}

    def started(self, expert_id: ExpertId, now_ns: int) -> None:
        """Count one more request in flight."""
        self._change(expert_id, now_ns, 1)

    def ended(self, expert_id: ExpertId, now_ns: int) -> None:
        """Count one request less in flight."""
        self._change(expert_id, now_ns, -1)

    def loads(self, now_ns: int) -> dict[ExpertId, float]:
        """Return the load of each expert that has had requests, 0 to 1."""
        return {
            expert_id: min(1.0, _averaged(state, now_ns) / self._capacity)
            for expert_id, state in self._state.items()
        }

    def _change(self, expert_id: ExpertId, now_ns: int, step: int) -> None:
        state = self._state.get(expert_id, (0, 0.0, now_ns))
        self._state[expert_id] = (max(0, state[0] + step), _averaged(state, now_ns), now_ns)


def _averaged(state: tuple[int, float, int], now_ns: int) -> float:
    """Return the exponential average after the in-flight count stayed constant until `now_ns`."""
    in_flight, average, at_ns = state
    kept = math.exp(-(now_ns - at_ns) / WINDOW_NS)
    return average * kept + in_flight * (1.0 - kept)
