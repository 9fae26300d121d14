"""From a prompt to its normalised form: which matches are rewritten, and to what.

A variant becomes the preferred form of the language it was written in when its concept says ``rewrite``.
Normalising a second time changes nothing, and that is ensured, not hoped for: a rewrite is kept only when
the rewritten text, matched again, shows the same concepts at the same places. 快排法 is such a case: as
快速排序法 it would be a longer term. Rewrites that don't hold stay as they were and are reported as
``tag``. Pure.

Why twice changes nothing: the result's matches are the shifted matches of the input, so the second run
starts with the rewrites that the first one gave up, tries the same texts in the same order, and gives
them up again.
"""

from collections.abc import Sequence
from dataclasses import replace

from term_db.snapshot import Snapshot
from term_db.types import NormalisedText, Span, TermAction, TermMatch

ROUNDS_MAX = 8
"""Times that unstable rewrites are taken back one by one before all of them are."""


def normalise(
    snapshot: Snapshot, text: str, *, mode: TermAction = TermAction.REWRITE
) -> NormalisedText:
    """`text` with variants replaced by preferred forms, and every match in the original text.

    Args:
        snapshot: the dictionary in force.
        text: any text; code, URLs and other protected spans stay as they are.
        mode: REWRITE does what each concept says; TAG rewrites nothing; OFF doesn't even match.
    """
    if mode is TermAction.OFF:
        return NormalisedText(text, (), 0)
    matches = _matches(snapshot, text, mode)
    rewrites = [
        index
        for index, match in enumerate(matches)
        if match.action is TermAction.REWRITE and match.surface != match.preferred
    ]
    if not rewrites:
        return NormalisedText(text, tuple(matches), 0)
    kept = set(rewrites)
    for _ in range(ROUNDS_MAX):
        candidate, spans = _rewritten(text, matches, kept)
        found = _matches(snapshot, candidate, mode)
        unstable = _unstable(matches, spans, found, kept)
        if not unstable:
            break
        kept -= unstable
        if not kept:
            candidate = text
            break
    else:
        kept.clear()
        candidate = text
    for index in rewrites:
        if index not in kept:
            matches[index] = replace(matches[index], action=TermAction.TAG)
    return NormalisedText(candidate, tuple(matches), len(kept))


def _matches(snapshot: Snapshot, text: str, mode: TermAction) -> list[TermMatch]:
    matches = []
    for start, end, entry in snapshot.find(text):
        concept_id, lang, preferred, action, expert_hint = snapshot.entry(entry)
        if action is TermAction.OFF:
            continue  # such a concept only shields its spelling from shorter terms inside it
        surface = text[start:end]
        matches.append(
            TermMatch(
                Span(start, end),
                surface,
                concept_id,
                lang,
                surface if preferred is None else preferred,
                TermAction.TAG if mode is TermAction.TAG else action,
                expert_hint,
            )
        )
    return matches


def _rewritten(
    text: str, matches: Sequence[TermMatch], kept: set[int]
) -> tuple[str, list[tuple[int, int]]]:
    """The text with the `kept` matches rewritten, and where every match stands in it."""
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    position = length = 0
    for index, match in enumerate(matches):
        start, end = match.span.start, match.span.end
        parts.append(text[position:start])
        length += start - position
        form = match.preferred if index in kept else match.surface
        parts.append(form)
        spans.append((length, length + len(form)))
        length += len(form)
        position = end
    parts.append(text[position:])
    return "".join(parts), spans


def _unstable(
    matches: Sequence[TermMatch],
    spans: Sequence[tuple[int, int]],
    found: Sequence[TermMatch],
    kept: set[int],
) -> set[int]:
    """The kept rewrites to give up: those at a difference between expected and found matches.

    Empty when the two agree; all of them when a difference lies at no rewrite.
    """
    expected = {
        (*span, match.concept_id, match.preferred if index in kept else None)
        for index, (span, match) in enumerate(zip(spans, matches, strict=True))
    }
    rewritten = {spans[index] for index in kept}
    actual = {
        (
            match.span.start,
            match.span.end,
            match.concept_id,
            match.preferred if (match.span.start, match.span.end) in rewritten else None,
        )
        for match in found
    }
    differences = expected ^ actual
    if not differences:
        return set()
    touched = {
        index
        for index in kept
        if any(
            start <= spans[index][1] and spans[index][0] <= end for start, end, *_ in differences
        )
    }
    return touched or set(kept)
