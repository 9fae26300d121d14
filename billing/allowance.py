"""Which micro-points of which usage a package's monthly allowance pays, exactly.

Owns the rule: usage draws in order of its position (instant, event id, line index), each item from the
allowances that include its expert and run at its instant, in the order the allowances are given; the item
that exhausts them is split. Pure, one pass, memory bounded by the number of experts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from billing.types import MicroPoints, PackageId
from routing_engine.types import ExpertId

Position = tuple[int, str, int]
"""Place of a usage line in its order: microseconds since 1970, event id, line index."""


@dataclass(frozen=True, slots=True)
class Window:
    """When a subscription runs, in microseconds since 1970: `[start_us, end_us)`; None has no end."""

    start_us: int
    end_us: int | None = None


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of a package's allowance in one nominal month, and for what it may be used."""

    package_id: PackageId
    experts: frozenset[ExpertId]
    remaining: MicroPoints
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class UsageItem:
    """One rated usage line at its position."""

    position: Position
    expert_id: ExpertId
    micropoints: MicroPoints


@dataclass(frozen=True, slots=True)
class CoveredRun:
    """Usage of an expert from `first` to `last`, both included, is covered whole; None has no bound."""

    expert_id: ExpertId
    first: Position | None
    last: Position | None


@dataclass(frozen=True, slots=True)
class CoveredPart:
    """One usage line is covered in part."""

    expert_id: ExpertId
    position: Position
    micropoints: MicroPoints


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is covered: whole runs, split lines, and the sums by expert and by package (which are equal)."""

    runs: tuple[CoveredRun, ...]
    parts: tuple[CoveredPart, ...]
    by_expert: Mapping[ExpertId, MicroPoints]
    by_package: Mapping[PackageId, MicroPoints]


NOTHING_COVERED = Coverage((), (), {}, {})


def cover(items: Iterable[UsageItem], allowances: Sequence[Allowance]) -> Coverage:
    """Return what `allowances` pay of `items`, which come in order of position.

    Reads no further than to the item that exhausts the last allowance. Items that cost nothing need no
    cover and are not part of any run's ends.
    """
    left = [int(allowance.remaining) for allowance in allowances]
    total_left = sum(left)
    if not total_left:
        return NOTHING_COVERED
    usable = _usable_by_expert(allowances)
    open_runs: dict[ExpertId, tuple[Position, Position]] = {}
    runs: list[CoveredRun] = []
    parts: list[CoveredPart] = []
    by_expert: dict[ExpertId, int] = {}
    for item in items:
        if not item.micropoints:
            continue
        drawn = 0
        for index in usable.get(item.expert_id, ()):
            if left[index] and _is_running(allowances[index].windows, item.position[0]):
                part = min(left[index], item.micropoints - drawn)
                left[index] -= part
                drawn += part
        if drawn:
            by_expert[item.expert_id] = by_expert.get(item.expert_id, 0) + drawn
            total_left -= drawn
        run = open_runs.get(item.expert_id)
        if drawn == item.micropoints:
            open_runs[item.expert_id] = (run[0] if run else item.position, item.position)
        else:
            if run:
                runs.append(CoveredRun(item.expert_id, *open_runs.pop(item.expert_id)))
            if drawn:
                parts.append(CoveredPart(item.expert_id, item.position, MicroPoints(drawn)))
        if not total_left:
            break
    runs += [CoveredRun(expert_id, *ends) for expert_id, ends in open_runs.items()]
    return Coverage(
        tuple(sorted(runs, key=lambda run: (run.expert_id, run.first or (0, "", 0)))),
        tuple(parts),
        {expert_id: MicroPoints(sum_) for expert_id, sum_ in by_expert.items()},
        _drawn(allowances, left),
    )


def cover_whole(
    sums: Mapping[ExpertId, MicroPoints], allowances: Sequence[Allowance], span: Window
) -> Coverage | None:
    """Return the coverage when the sums alone decide it, else None: then `cover` has to look at each item.

    They do when no expert is in two allowances that have anything left, and each of those runs all through
    `span` and is not exhausted by it.
    """
    usable = [allowance for allowance in allowances if allowance.remaining]
    seen: set[ExpertId] = set()
    by_expert: dict[ExpertId, MicroPoints] = {}
    by_package: dict[PackageId, MicroPoints] = {}
    for allowance in usable:
        included = {expert_id for expert_id in allowance.experts if sums.get(expert_id)}
        if included & seen or not any(_holds(window, span) for window in allowance.windows):
            return None
        seen |= included
        drawn = sum(sums[expert_id] for expert_id in included)
        if drawn > allowance.remaining:
            return None
        by_expert |= {expert_id: sums[expert_id] for expert_id in included}
        if drawn:
            by_package[allowance.package_id] = MicroPoints(drawn)
    runs = tuple(CoveredRun(expert_id, None, None) for expert_id in sorted(by_expert))
    return Coverage(runs, (), by_expert, by_package)


def after_draw(allowances: Sequence[Allowance], coverage: Coverage) -> tuple[Allowance, ...]:
    """Return the allowances with what `coverage` drew taken off."""
    return tuple(
        Allowance(
            allowance.package_id,
            allowance.experts,
            MicroPoints(
                allowance.remaining - coverage.by_package.get(allowance.package_id, MicroPoints(0))
            ),
            allowance.windows,
        )
        for allowance in allowances
    )


def _usable_by_expert(allowances: Sequence[Allowance]) -> dict[ExpertId, list[int]]:
    usable: dict[ExpertId, list[int]] = {}
    for index, allowance in enumerate(allowances):
        for expert_id in allowance.experts:
            usable.setdefault(expert_id, []).append(index)
    return usable


def _is_running(windows: Iterable[Window], instant_us: int) -> bool:
    return any(
        window.start_us <= instant_us and (window.end_us is None or instant_us < window.end_us)
        for window in windows
    )


def _holds(window: Window, span: Window) -> bool:
    ends_after = window.end_us is None or (span.end_us is not None and span.end_us <= window.end_us)
    return window.start_us <= span.start_us and ends_after


def _drawn(allowances: Sequence[Allowance], left: Sequence[int]) -> dict[PackageId, MicroPoints]:
    return {
        allowance.package_id: MicroPoints(allowance.remaining - rest)
        for allowance, rest in zip(allowances, left, strict=True)
        if allowance.remaining != rest
    }
