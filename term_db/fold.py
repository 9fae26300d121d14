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
from dataclasses import dataclass
from functools import lru_cache

UNICODE_VERSION = unicodedata.unidata_version
"""Unicode version of the fold; a snapshot folded with another one isn't comparable."""

SEGMENT_CACHE_SIZE = 8192
"""Folded segments remembered; natural text has far fewer different ones that need work."""

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
    "\uff9e-\uffdc\uffe3\ufff0-\ufff8\U00010100-\U0001d3ff\U0001da00-\U0001daff"
    "\U0001e000-\U0001efff\U0001f100-\U0001f24f\U000e0000-\U000e0fff"
)
_LONE_SPACES = frozenset("\t\n\r\x85\u1680\u2028\u2029")
_WHITE = " \t\n\r\xa0\u2000-\u200a\u202f\u205f\u3000"

_HARD = re.compile(f"[{_NOT_ONE_TO_ONE}]")
_IRREGULAR = re.compile(f"[{_WHITE}]{{2,}}|[^{_NOT_ONE_TO_ONE}]?[{_NOT_ONE_TO_ONE}]+")
_WHITE_RUN = re.compile(f"[{_WHITE}]{{2,}}")
_IGNORABLE = re.compile(f"[{_IGNORABLES}]")
_VARIATION_SELECTOR = re.compile(f"[{_VARIATION_SELECTORS}]")
_INVISIBLE = re.compile(f"[{_IGNORABLES}{_VARIATION_SELECTORS}]")
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


@dataclass(frozen=True, slots=True)
class FoldedText:
    """A folded text; `offsets` is None when every position is its own origin."""

    text: str
    offsets: OffsetMap | None = None


def fold(text: str) -> FoldedText:
    """The folded form of `text` and the way back to its positions (code points)."""
    if text.isascii():
        folded = _plain_white(text.lower())
    elif _HARD.search(text) is None:
        folded = _plain_white(unicodedata.normalize("NFKC", text).casefold())
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


def _plain_white(folded: str) -> str:
    return folded.replace("\n", " ").replace("\t", " ").replace("\r", " ")


def _fold_irregular(text: str) -> FoldedText:
    """The fold of a text that has stretches which change length; regular stretches go in bulk."""
    parts: list[str] = []
    folded_starts: list[int] = []
    folded_ends: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    done = 0
    length = 0
    for found in _IRREGULAR.finditer(text):
        start, end = found.span()
        if start > done:
            bulk = _plain_white(unicodedata.normalize("NFKC", text[done:start]).casefold())
            parts.append(bulk)
            length += len(bulk)
        done = end
        for piece, width in _fold_cluster(text, start, end):
            parts.append(piece)
            if len(piece) != 1 or width != 1:
                folded_starts.append(length)
                folded_ends.append(length + len(piece))
                starts.append(start)
                ends.append(start + width)
            length += len(piece)
            start += width
    if done < len(text):
        parts.append(_plain_white(unicodedata.normalize("NFKC", text[done:]).casefold()))
    folded = "".join(parts)
    if not starts:
        return FoldedText(folded)
    offsets = OffsetMap(tuple(folded_starts), tuple(folded_ends), tuple(starts), tuple(ends))
    return FoldedText(folded, offsets)


def _fold_cluster(text: str, start: int, end: int) -> list[tuple[str, int]]:
    """The segments of ``text[start:end]`` as (folded segment, number of original characters)."""
    if _WHITE_RUN.fullmatch(text, start, end):
        has_blank_line = text.count("\n", start, end) > 1
        return [("\n" if has_blank_line else " ", end - start)]
    pieces: list[tuple[str, int]] = []
    segment, width = "", 0
    for index in range(start, end):
        character = text[index]
        if _VARIATION_SELECTOR.match(character) and segment and _is_letter(segment[-1]):
            width += 1
        elif _IGNORABLE.match(character):
            if width:
                pieces.append((_fold_segment(segment), width))
            segment, width = "", 0
            is_dropped = _joins_letters(text, index)
            pieces.append(("" if is_dropped else character, 1))
        elif width and attaches(character):
            segment, width = segment + character, width + 1
        else:
            if width:
                pieces.append((_fold_segment(segment), width))
            segment, width = character, 1
    if width:
        pieces.append((_fold_segment(segment), width))
    return pieces


def _joins_letters(text: str, index: int) -> bool:
    """Whether the ignorable at `index` stands, with its like, between two letters."""
    before = index - 1
    while before >= 0 and _INVISIBLE.match(text[before]):
        before -= 1
    after = index + 1
    while after < len(text) and _INVISIBLE.match(text[after]):
        after += 1
    return (
        before >= 0 and after < len(text) and _is_letter(text[before]) and _is_letter(text[after])
    )


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
