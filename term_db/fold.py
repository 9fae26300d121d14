"""One spelling for all spellings: the fold that dictionary and prompts share, with its offset map.

A text is cut into segments (a character and the combining marks that belong to it); each segment becomes
``NFKC(casefold(NFKC(segment)))``. Every position of the result that lies between two segments leads back
to a position of the text as given; positions inside a segment lead nowhere, so a match never splits
``ﬁ``, ``ß`` or ``½``. The fold also

* maps ``İ`` to ``i`` (and leaves ``ı`` alone): no locale decides whether ``QUICKSORT`` matches;
* drops default-ignorable characters (soft hyphen, zero-width space, …) between letters only, and
  variation selectors after a letter;
* turns a run of white space, NBSP and U+3000 included, into one space, and one that holds a blank line
  into a line feed, which no term contains.

Pure: owns no table of terms and knows nothing of word boundaries (`boundaries`).
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

UNICODE_VERSION = unicodedata.unidata_version
"""Unicode version of the fold; a snapshot folded with another one isn't comparable."""

SEGMENT_CACHE_SIZE = 8192
"""Folded segments remembered; natural text has far fewer different ones that need work."""

SEGMENT_CHARS_MAX = 32
"""Longest segment; further marks start another. No script comes near it (UAX #15 allows 30 marks in a row), and
normalising a run of marks takes time in the square of its length."""

CLUSTER_CHARS_MAX = 8
"""Longest irregular stretch that is remembered; longer ones are seldom met twice."""

_VARIATION_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_IGNORABLES = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)

# A superset of the characters whose own fold isn't exactly one character, that attach to the character
# before them, or that may vanish. Text without any of them folds character by character, so offsets stay
# as they are. Whole scripts rich in marks are taken as one range: being in the set costs time, never
# correctness. tests/term_db/test_fold.py walks all of Unicode to show that none is missing.
_NOT_ONE_TO_ONE = (
    "\x85\xa8\xad\xaf\xb4\xb8\xbc-\xbe\xdf\u0130\u0132\u0133\u013f\u0140\u0149"
    "\u01c4-\u01cc\u01f0-\u01f3\u02d8-\u02dd\u0300-\u036f\u037a\u0384\u0385\u0390\u03b0"
    "\u0483-\u0489\u0587\u0591-\u109f\u115f-\u1175\u11a8-\u11c2\u135d-\u135f\u1680\u1700-\u1cff"
    "\u1dc0-\u1dff\u1e96-\u1e9a\u1e9e\u1f50-\u1f56\u1f80-\u1faf\u1fb2-\u1fff\u200b-\u200f\u2017"
    "\u2025\u2026\u2028-\u202e\u2033-\u2037\u203c\u203e\u2047-\u2049\u2057\u2060-\u206f\u20a8"
    "\u20d0-\u20ff\u2100-\u2109\u2116\u2120-\u2122\u213b\u2150-\u217f\u2189\u222c-\u2230"
    "\u2469-\u24b5\u2a0c\u2a74-\u2a76\u2adc\u2cef-\u2cf1\u2d7f\u2de0-\u2dff\u302a-\u302f"
    "\u3099-\u309c\u309f\u30ff\u3133-\u318e\u3200-\u33ff\ua66f-\ua67d\ua69e\ua69f\ua6f0\ua6f1"
    "\ua800-\ua82c\ua880-\uabff\ufb00-\ufdff\ufe00-\ufe30\ufe49-\ufe4c\ufe70-\ufeff"
    "\uff9e-\uffdc\uffe3\ufff0-\ufff8"
)
_NOT_ONE_TO_ONE_ASTRAL = (
    "\U00010100-\U0001d3ff\U0001da00-\U0001daff\U0001e000-\U0001efff\U0001f100-\U0001f24f"
    "\U000e0000-\U000e0fff"
)
_WHITE_CHARACTERS = frozenset(" \t\n\r\xa0\u202f\u205f\u3000").union(
    map(chr, range(0x2000, 0x200B))
)
_LONE_SPACES = frozenset("\t\n\r\x85\u1680\u2028\u2029")
_WIDE_PUNCTUATION = tuple(zip("，：；？！（）", ",:;?!()", strict=True))
_WHITE = " \t\n\r\xa0\u2000-\u200a\u202f\u205f\u3000"

# Several looks, because `re` answers quickly for few ranges or for one plane (a bitmap), slowly for a list
# across planes. Chinese and English prose passes the first, most texts the second, those with emoji the third.
_COMMON = re.compile(
    "[\x00-\x7f\u2010-\u2016\u2018-\u2024\u3000-\u3029\u3041-\u3098\u30a0-\u30fe\u3400-\u9fff"
    "\uff01-\uff60]*"
)
_HARD = re.compile(f"[{_NOT_ONE_TO_ONE}]")
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
_HARD_ASTRAL = re.compile(f"[{_NOT_ONE_TO_ONE_ASTRAL}]")


def _irregular(hard: str) -> re.Pattern[str]:
    """Finds runs of white space and of `hard` characters; starts with one class, which `re` skips to fast."""
    return re.compile(f"[{_WHITE}{hard}](?:(?<=[{_WHITE}])[{_WHITE}]+|(?<=[{hard}])[{hard}]*)")


_IRREGULAR = _irregular(_NOT_ONE_TO_ONE)
_IRREGULAR_ASTRAL = _irregular(_NOT_ONE_TO_ONE + _NOT_ONE_TO_ONE_ASTRAL)
_VARIATION_SELECTOR = re.compile(f"[{_VARIATION_SELECTORS}]")
_INVISIBLE = re.compile(f"[{_IGNORABLES}{_VARIATION_SELECTORS}]")
_INVISIBLE_RUN = re.compile(f"[{_IGNORABLES}{_VARIATION_SELECTORS}]+")
_ANY_WHITE_RUN = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """Where folded positions come from: the stretches that didn't fold character by character.

    The four tuples run in parallel, one entry per stretch, ascending: folded start and end, original
    start and end. Between stretches positions move in step.
    """

    folded_starts: tuple[int, ...]
    folded_ends: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    def start_of(self, index: int) -> int | None:
        """The original position where a match that starts at folded `index` starts; None inside a segment."""
        stretch = bisect_right(self.folded_starts, index) - 1
        if stretch < 0:
            return index
        if index >= self.folded_ends[stretch]:
            return self.ends[stretch] + index - self.folded_ends[stretch]
        return self.starts[stretch] if index == self.folded_starts[stretch] else None

    def end_of(self, index: int) -> int | None:
        """The original position where a match that ends before folded `index` ends; None inside a segment."""
        stretch = bisect_left(self.folded_starts, index) - 1
        if stretch < 0:
            return index
        if index < self.folded_ends[stretch]:
            return None
        return self.ends[stretch] + index - self.folded_ends[stretch]


class FoldedText(NamedTuple):
    """A folded text; `offsets` is None when every position is its own origin."""

    text: str
    offsets: OffsetMap | None = None


def fold(text: str) -> FoldedText:
    """The folded form of `text` and the way back to its positions (code points)."""
    if text.isascii():
        folded = _plain_white(text.lower())
    elif _COMMON.fullmatch(text) is not None or (
        _HARD.search(text) is None
        and (_ASTRAL.search(text) is None or _HARD_ASTRAL.search(text) is None)
    ):
        folded = _fold_bulk(text)
    else:
        return _fold_irregular(text)
    return _fold_irregular(text) if "  " in folded else FoldedText(folded)


def fold_term(term: str) -> str:
    """The folded form of a dictionary entry: what the matcher looks for."""
    return fold(term.strip()).text


def exact_form(text: str) -> str:
    """The form in which exact-case terms are compared: width and composition folded, letter case kept."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text
    return _ANY_WHITE_RUN.sub(" ", unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)))


def _fold_bulk(text: str) -> str:
    """The fold of a text that folds character by character.

    Normalising is what costs, and in Chinese prose it is needed for the punctuation only. With that
    out of the way most texts pass the quick check.
    """
    if not unicodedata.is_normalized("NFKC", text):
        for wide, narrow in _WIDE_PUNCTUATION:
            text = text.replace(wide, narrow)
        if not unicodedata.is_normalized("NFKC", text):
            text = unicodedata.normalize("NFKC", text)
    return _plain_white(text.casefold())


def _plain_white(folded: str) -> str:
    return folded.replace("\n", " ").replace("\t", " ").replace("\r", " ")


def _fold_irregular(text: str) -> FoldedText:
    """The fold of a text that has stretches which change length; regular stretches go in bulk."""
    parts: list[str] = []
    folded_starts: list[int] = []
    folded_ends: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    done = length = 0
    irregular = _IRREGULAR if _ASTRAL.search(text) is None else _IRREGULAR_ASTRAL
    for found in irregular.finditer(text):
        start, end = found.span()
        if text[start] in _WHITE_CHARACTERS:
            is_paragraph_break = text.count("\n", start, end) > 1
            pieces: Sequence[tuple[str, int]] = (
                ("\n" if is_paragraph_break else " ", end - start),
            )
        else:
            if start > done:
                start -= 1  # the character that marks attach to
            is_before_letter = end < len(text) and text[end].isalnum()
            fold_cluster = (
                _fold_cluster if end - start > CLUSTER_CHARS_MAX else _fold_cluster_cached
            )
            pieces = fold_cluster(text[start:end], is_before_letter)
        if start > done:
            bulk = _fold_bulk(text[done:start])
            parts.append(bulk)
            length += len(bulk)
        done = end
        for piece, width in pieces:
            parts.append(piece)
            if len(piece) != 1 or width != 1:
                folded_starts.append(length)
                folded_ends.append(length + len(piece))
                starts.append(start)
                ends.append(start + width)
            length += len(piece)
            start += width
    if done < len(text):
        parts.append(_fold_bulk(text[done:]))
    folded = "".join(parts)
    if not starts:
        return FoldedText(folded)
    offsets = OffsetMap(tuple(folded_starts), tuple(folded_ends), tuple(starts), tuple(ends))
    return FoldedText(folded, offsets)


def _fold_cluster(cluster: str, is_before_letter: bool) -> tuple[tuple[str, int], ...]:
    """The segments of `cluster` as (folded segment, number of original characters).

    `is_before_letter` says what follows the cluster: an ignorable at its end vanishes before a letter.
    """
    pieces: list[tuple[str, int]] = []
    segment, width = "", 0
    run_end, is_dropped, is_after_letter = 0, False, False
    for index, character in enumerate(cluster):
        if _INVISIBLE.match(character):
            if index >= run_end:
                # Once for each run of ignorables: a look from each of its members would be quadratic.
                run_end = _invisible_run_end(cluster, index)
                is_dropped = is_after_letter and (
                    _is_letter(cluster[run_end]) if run_end < len(cluster) else is_before_letter
                )
            if _VARIATION_SELECTOR.match(character) and segment and _is_letter(segment[-1]):
                width += 1
                continue
            if width:
                pieces.append((_fold_segment(segment), width))
            segment, width = "", 0
            pieces.append(("" if is_dropped else character, 1))
            continue
        is_after_letter = _is_letter(character)
        if width and len(segment) < SEGMENT_CHARS_MAX and attaches(character):
            segment, width = segment + character, width + 1
        else:
            if width:
                pieces.append((_fold_segment(segment), width))
            segment, width = character, 1
    if width:
        pieces.append((_fold_segment(segment), width))
    return tuple(pieces)


_fold_cluster_cached = lru_cache(maxsize=SEGMENT_CACHE_SIZE)(_fold_cluster)


def _invisible_run_end(cluster: str, index: int) -> int:
    found = _INVISIBLE_RUN.match(cluster, index)
    return found.end() if found else index


def _is_letter(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character)[0] == "M"


@lru_cache(maxsize=SEGMENT_CACHE_SIZE)
def attaches(character: str) -> bool:
    """Whether `character` belongs to the segment of the character before it."""
    first = unicodedata.normalize("NFKC", character)[0]
    if "\u1161" <= first <= "\u1175" or "\u11a8" <= first <= "\u11c2":
        return True  # a Hangul vowel or final composes with the syllable before it
    return unicodedata.category(first)[0] == "M" or unicodedata.combining(first) != 0


@lru_cache(maxsize=SEGMENT_CACHE_SIZE)
def _fold_segment(segment: str) -> str:
    composed = unicodedata.normalize("NFKC", segment).replace("İ", "i")
    folded = unicodedata.normalize("NFKC", composed.casefold())
    return " " if folded in _LONE_SPACES else folded
