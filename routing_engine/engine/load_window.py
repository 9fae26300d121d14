"""The load of each expert over the last 100 milliseconds.

Load is the share of the engine's places that an expert's requests held, averaged over the window:
0 for an idle expert, 1 for one that holds them all. Pure: the clock is passed in.
"""

from collections import deque

LOAD_WINDOW_S = 0.1
"""DESIGN: scores are damped by the last 100 ms of load."""

_CHANGES_MAX = 4096
"""Changes remembered per window; at more than 40 per millisecond the oldest are merged."""


class LoadWindow:
    """How much of `places` each expert has held lately."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._held: dict[str, int] = {}
        self._changes: deque[tuple[float, str, int]] = deque(maxlen=_CHANGES_MAX)

    def change(self, expert_id: str, delta: int, now_s: float) -> None:
        """Record that an expert's requests in flight grew or shrank by `delta` at `now_s`."""
        self._forget(now_s)
        held = self._held.get(expert_id, 0) + delta
        if held:
            self._held[expert_id] = held
        else:
            self._held.pop(expert_id, None)
        self._changes.append((now_s, expert_id, delta))

    def loads(self, now_s: float) -> dict[str, float]:
        """Return the load, 0 to 1, of each expert that was not idle in the window."""
        self._forget(now_s)
        place_seconds = {expert_id: held * LOAD_WINDOW_S for expert_id, held in self._held.items()}
        start_s = now_s - LOAD_WINDOW_S
        for at_s, expert_id, delta in self._changes:
            # `held` is what holds now: take back the change for the time before it happened.
            before = place_seconds.get(expert_id, 0.0)
            place_seconds[expert_id] = before - delta * (at_s - start_s)
        whole = self._places * LOAD_WINDOW_S
        return {
            expert_id: min(1.0, max(0.0, seconds / whole))
            for expert_id, seconds in place_seconds.items()
        }

    def _forget(self, now_s: float) -> None:
        while self._changes and self._changes[0][0] <= now_s - LOAD_WINDOW_S:
            self._changes.popleft()
