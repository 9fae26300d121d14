"""Finds dictionary terms in a text: one pass of an automaton, then the choice among what it reports.

The automaton reports every occurrence of every variant; this module keeps, from left to right, the best
one that is a word of its own, has the right letter case and touches no protected span. When the longest
candidate fails a test the next shorter one at the same place is tried. Candidates at one place are
ordered by length, then by their place in the entry list (exact-case first, then priority, then concept
id): a total order. Pure; wraps the `daachorse` package, which no other module imports.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from daachorse import CharwiseDoubleArrayAhoCorasick

from term_db.boundaries import Edges, edges_of, is_bounded
from term_db.fold import OffsetMap, exact_form, fold
from term_db.protection import ProtectedSpans, protected_spans

MATCHES_PER_TEXT_MAX = 4096
"""Matches kept per text; what follows the last one stays as it is. Bounds work and memory per prompt."""

_UNPROTECTED = ProtectedSpans(())
_SURROGATE = re.compile("[\ud800-\udfff]")


class Occurrence(NamedTuple):
    """Entry number `entry` was found at ``[start, end)``, in code points of the original text."""

    start: int
    end: int
    entry: int


class Matcher:
    """An immutable automaton over folded patterns; the position of a pattern is its entry number.

    Patterns that fold alike are tried in their order, so the caller's order is the priority. Safe to
    share between threads.

    Args:
        folded: the folded form of each entry, none of them empty.
        exact: for each entry the form it must have before folding, None where case doesn't matter.
        automaton: a serialised automaton of the same patterns; built when it isn't given.

    Raises:
        ValueError: `automaton` isn't a serialised automaton.
    """

    __slots__ = ("_automaton", "_edges", "_exact", "_folded")

    def __init__(
        self,
        folded: Sequence[str],
        exact: Sequence[str | None] | None = None,
        automaton: bytes | None = None,
    ) -> None:
        self._folded = folded
        self._exact = [None] * len(folded) if exact is None else exact
        self._edges: list[Edges | None] = [None] * len(folded)
        self._automaton: CharwiseDoubleArrayAhoCorasick | None = None
        if not folded:
            return
        if automaton is None:
            self._automaton = CharwiseDoubleArrayAhoCorasick(list(folded))
        else:
            self._automaton = CharwiseDoubleArrayAhoCorasick.deserialize(automaton)

    def __len__(self) -> int:
        return len(self._folded)

    def serialise(self) -> bytes:
        """The automaton as bytes; empty when there are no patterns."""
        return b"" if self._automaton is None else bytes(self._automaton.serialize())

    def serves(self, entry: int) -> bool:
        """Whether the automaton reports pattern number `entry` on its own folded form."""
        folded = self._folded[entry]
        whole = (0, len(folded), entry)
        return self._automaton is not None and whole in self._automaton.find_overlapping(folded)

    def find(self, text: str) -> list[Occurrence]:
        """The chosen occurrences in `text`, ascending and disjoint, at most `MATCHES_PER_TEXT_MAX`."""
        if self._automaton is None:
            return []
        folded = fold(text)
        try:
            hits = self._automaton.find_overlapping(folded.text)
        except UnicodeEncodeError:  # a lone surrogate; one code point either way, so offsets stay
            hits = self._automaton.find_overlapping(_SURROGATE.sub("\ufffd", folded.text))
        if not hits:
            return []
        # From left to right, the longest first, then in the order of the entries.
        ordered = sorted([(start, -end, entry) for start, end, entry in hits])
        return self._resolve(text, folded.text, folded.offsets, ordered)

    def _resolve(
        self, text: str, folded: str, offsets: OffsetMap | None, hits: list[tuple[int, int, int]]
    ) -> list[Occurrence]:
        protected: ProtectedSpans | None = None
        found: list[Occurrence] = []
        position = 0
        for start, negative_end, entry in hits:
            if start < position:
                continue
            end = -negative_end
            edges = self._edges[entry]
            if edges is None:  # decided on first use: most entries of a large dictionary never are
                edges = self._edges[entry] = edges_of(self._folded[entry])
            if not is_bounded(folded, start, end, edges):
                continue
            first, last = start, end
            if offsets is not None:
                origin, limit = offsets.start_of(start), offsets.end_of(end)
                if origin is None or limit is None:
                    continue
                first, last = origin, limit
            exact = self._exact[entry]
            if exact is not None and exact_form(text[first:last]) != exact:
                continue
            if protected is None:
                spans = protected_spans(text)
                protected = ProtectedSpans(spans) if spans else _UNPROTECTED
            if protected is not _UNPROTECTED and protected.touches(first, last):
                continue
            found.append(Occurrence(first, last, entry))
            if len(found) == MATCHES_PER_TEXT_MAX:
                break
            position = end
        return found
