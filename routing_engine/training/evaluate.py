"""How well artefacts route labelled prompts: accuracy by language and expert, calibration, stability.

Runs the same `Router` as the gateway does, so that what is measured is what is served.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from routing_engine.client import NO_ARTEFACTS, Router
from routing_engine.errors import ArtefactError
from routing_engine.training.dataset import LabelledPrompt
from routing_engine.types import Expert, ExpertId, RouteRequest

ECE_BINS = 10
DEFAULT_LABEL = "general"
ESTABLISHED = 1_000
"""Requests after which a caller is routed by the gate alone."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures on one set of rows; accuracies and rates are shares from 0 to 1.

    `accuracy` holds ``<scorer>`` and ``<scorer>_<lang>`` for gate, table and blend; `by_expert` the blend's by
    label; `confusion` the most frequent wrong pairs (label, routed, count).
    """

    rows: int
    accuracy: dict[str, float]
    by_expert: dict[str, float]
    confusion: list[tuple[str, str, int]]
    ece: float
    flip_surface: float


def evaluate(
    rows: Sequence[LabelledPrompt],
    directory: Path,
    progress: Callable[[Sequence[LabelledPrompt]], Iterable[LabelledPrompt]] = lambda rows: rows,
) -> Evaluation:
    """Return how the artefacts in `directory` route `rows`.

    Args:
        progress: wraps the rows, so that going through them shows how far it is.

    Raises:
        ArtefactError: an artefact can't be used, or there is none.
    """
    labels = sorted({row.label for row in rows})
    experts = [
        Expert(ExpertId(label), number, "", label, ()) for number, label in enumerate(labels)
    ]
    # An abstention is a choice too: it counts as the default expert, as it would be served.
    default = DEFAULT_LABEL if DEFAULT_LABEL in labels else labels[0]
    router = Router.load(directory, experts, ExpertId(default))
    if router.artefact_version == NO_ARTEFACTS:
        raise ArtefactError(str(directory), "has no artefacts; run `expertgate engine train`")
    counts: dict[str, list[bool]] = {}
    by_expert: dict[str, list[bool]] = {}
    confused: dict[tuple[str, str], int] = {}
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(ECE_BINS)]
    flips: list[bool] = []
    for row in progress(rows):
        request = RouteRequest(row.text, row.concept_ids, caller_request_count=ESTABLISHED)
        gate, table = router.scores(request)
        for name, scores in (("gate", gate), ("table", table)):
            if scores:
                _count(counts, name, row, max(scores, key=scores.__getitem__))
        blend = router.decide(replace(request, caller_request_count=0))
        _count(counts, "blend", row, blend.expert_id)
        by_expert.setdefault(row.label, []).append(blend.expert_id == row.label)
        if blend.expert_id != row.label:
            pair = (row.label, blend.expert_id)
            confused[pair] = confused.get(pair, 0) + 1
        if gate:
            best = max(gate, key=gate.__getitem__)
            top = gate[best]
            bins[min(ECE_BINS - 1, int(top * ECE_BINS))].append((top, best == row.label))
            flips.append(_flips(router, request, best))
    return Evaluation(
        rows=len(rows),
        accuracy={name: _share(values) for name, values in sorted(counts.items())},
        by_expert={name: _share(values) for name, values in sorted(by_expert.items())},
        confusion=sorted(((*pair, count) for pair, count in confused.items()), key=lambda c: -c[2])[
            :10
        ],
        ece=_ece(bins),
        flip_surface=_share(flips),
    )


def _count(counts: dict[str, list[bool]], name: str, row: LabelledPrompt, routed: str) -> None:
    for key in (name, f"{name}_{row.lang}"):
        counts.setdefault(key, []).append(routed == row.label)


def _flips(router: Router, request: RouteRequest, best: ExpertId) -> bool:
    """Say whether case, punctuation or spacing alone moves the gate's choice."""
    for text in (
        f"{request.text}?",
        f"  {request.text} ",
        request.text.upper(),
        request.text.rstrip("?？。.!！"),
    ):
        scores, _ = router.scores(replace(request, text=text))
        if scores and max(scores, key=scores.__getitem__) != best:
            return True
    return False


def _ece(bins: list[list[tuple[float, bool]]]) -> float:
    """Return the expected calibration error: the mean gap between score and accuracy, weighted by rows."""
    total = sum(len(each) for each in bins)
    gaps = (
        abs(sum(score for score, _ in each) - sum(right for _, right in each))
        for each in bins
        if each
    )
    return sum(gaps) / total if total else 0.0


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 0.0
