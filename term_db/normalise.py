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

from collections.abc import Mapping, Sequence, Set

from term_db.matcher import Occurrence
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
    found = snapshot.find(text)
    if not found:
        return NormalisedText(text, (), 0)
    forms = {}
    if mode is TermAction.REWRITE:
        forms = {
            index: form
            for index, (start, end, entry) in enumerate(found)
            if (form := snapshot.rewrite_of(entry)) is not None and text[start:end] != form
        }
    if not forms:
        return NormalisedText(text, _matches(snapshot, text, found, mode, frozenset()), 0)
    result, kept = _stable_rewrite(snapshot, text, found, forms)
    given_up = forms.keys() - kept.keys()
    return NormalisedText(result, _matches(snapshot, text, found, mode, given_up), len(kept))


def _matches(
    snapshot: Snapshot,
    text: str,
    found: Sequence[Occurrence],
    mode: TermAction,
    given_up: Set[int],
) -> tuple[TermMatch, ...]:
    matches = []
    for index, (start, end, entry) in enumerate(found):
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
                TermAction.TAG if mode is TermAction.TAG or index in given_up else action,
                expert_hint,
            )
        )
    return tuple(matches)


def _stable_rewrite(
    snapshot: Snapshot, text: str, found: Sequence[Occurrence], forms: dict[int, str]
) -> tuple[str, dict[int, str]]:
    """The text with as many of `forms` (index of the occurrence → new form) as hold, and those."""
    kept = dict(forms)
    for _ in range(ROUNDS_MAX):
        candidate, spans = _rewritten(text, found, kept)
        unstable = _unstable(snapshot, found, spans, snapshot.find(candidate), kept)
        if not unstable:
            return candidate, kept
        kept = {index: form for index, form in kept.items() if index not in unstable}
        if not kept:
            break
    return text, {}


def _rewritten(
    text: str, found: Sequence[Occurrence], kept: Mapping[int, str]
) -> tuple[str, list[tuple[int, int]]]:
    """The text with the `kept` forms in place, and where every occurrence stands in it."""
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    position = shift = 0
    for index, (start, end, _) in enumerate(found):
        form = kept.get(index)
        if form is None:
            spans.append((start + shift, end + shift))
            continue
        parts.append(text[position:start])
        parts.append(form)
        position = end
        spans.append((start + shift, start + shift + len(form)))
        shift += len(form) - (end - start)
    parts.append(text[position:])
    return "".join(parts), spans


def _unstable(
    snapshot: Snapshot,
    found: Sequence[Occurrence],
    spans: Sequence[tuple[int, int]],
    again: Sequence[Occurrence],
    kept: Mapping[int, str],
) -> Set[int]:
    """The kept rewrites to give up: those at a difference between what must and what was found again.

    Empty when the two agree; all of them when a difference lies at no rewrite.
    """
    expected = {}
    for index, ((_, _, entry), span) in enumerate(zip(found, spans, strict=True)):
        expected[span] = (snapshot.owner_of(entry), kept.get(index))
    actual = {}
    for start, end, entry in again:
        span = (start, end)
        form = snapshot.rewrite_of(entry) if expected.get(span, (0, None))[1] is not None else None
        actual[span] = (snapshot.owner_of(entry), form)
    if expected == actual:
        return frozenset()
    differences = [span for span, _ in expected.items() ^ actual.items()]
    touched = {
        index
        for index in kept
        if any(start <= spans[index][1] and spans[index][0] <= end for start, end in differences)
    }
    return touched or kept.keys()
