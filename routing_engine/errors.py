"""Errors of routing.

RoutingError
├── UnknownExpert        an id that is not registered; carries near matches
├── ArtefactError        a gate or table file is missing, damaged, or made for other labels or features
├── EngineUnavailable    the engine did not answer in time, or not with a decision
└── TrainingDataError    a labelled prompt file is unusable; names file and line
"""


class RoutingError(Exception):
    """Base of everything `routing_engine` raises on purpose."""


class UnknownExpert(RoutingError):
    """No registered expert has this id; `near` holds registered ids that look like it."""

    def __init__(self, expert_id: str, near: tuple[str, ...] = ()) -> None:
        self.expert_id, self.near = expert_id, near
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        super().__init__(f"no registered expert has the id {expert_id!r}{hint}")


class ArtefactError(RoutingError):
    """A routing artefact can't be used; `path` names it."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


class EngineUnavailable(RoutingError):
    """The engine gave no usable answer; routing goes on with the first stage."""


class TrainingDataError(RoutingError):
    """A labelled prompt can't be used; `path` and `line` say where it stands."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        self.path, self.line, self.reason = path, line, reason
        super().__init__(f"{path}:{line}: {reason}")
