"""Where a word may begin and end: the test that keeps ``java`` out of ``javascript``.

Chinese, Japanese and Korean characters never bound a word; letters, digits, marks and ``_`` of all other
scripts do. The test is made only on an edge where the term itself has a word character. Pure; works on
folded text.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

CHARACTER_CACHE_SIZE = 8192
"""Characters whose kind is remembered."""

_ASCII_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_UNBOUNDED = re.compile(
    "[\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3040-\u30ff\u3100-\u318f"
    "\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\uff66-\uffdc\U0001aff0-\U0001b16f\U00020000-\U0003ffff]"
)


@dataclass(frozen=True, slots=True)
class Edges:
    """What has to be tested around a term, decided once when the dictionary is built.

    `left` and `right`: the term begins or ends with a word character. `is_dotted`: it begins with a dot
    (``.NET``). `is_single`: its last word is one letter (``C``), so that ``C++`` and ``C#`` aren't it.
    """

    left: bool
    right: bool
    is_dotted: bool
    is_single: bool


def edges_of(folded_term: str) -> Edges:
    """The edges of a folded term, which must not be empty."""
    return Edges(
        left=is_word(folded_term[0]),
        right=is_word(folded_term[-1]),
        is_dotted=folded_term[0] == "." and len(folded_term) > 1,
        is_single=is_word(folded_term[-1]) and not is_word(folded_term[-2:-1] or " "),
    )


def is_word(character: str) -> bool:
    """Whether `character` continues a word: a letter, digit, mark or ``_`` outside the CJK scripts."""
    return character in _ASCII_WORD if character < "\x80" else _is_foreign_word(character)


@lru_cache(maxsize=CHARACTER_CACHE_SIZE)
def _is_foreign_word(character: str) -> bool:
    is_wordlike = character.isalnum() or unicodedata.category(character)[0] == "M"
    return is_wordlike and _UNBOUNDED.match(character) is None


def is_bounded(folded: str, start: int, end: int, edges: Edges) -> bool:
    """Whether the term at ``folded[start:end]`` stands as a word of its own.

    Besides letters on either side this refuses a part of a dotted name (``java`` in ``java.util``,
    ``.NET`` in ``example.net``), the letter of ``C++`` or ``C#``, and a bare combining mark that belongs
    to the last character.
    """
    if start:
        before = folded[start - 1]
        if edges.left:
            if is_word(before):
                return False
            if before == "." and start > 1 and _is_name_letter(folded[start - 2]):
                return False
        elif edges.is_dotted and is_word(before):
            return False
    if end == len(folded):
        return True
    after = folded[end]
    if not edges.right:
        return after < "\x80" or unicodedata.category(after)[0] != "M"
    if is_word(after):
        return False
    if after == "." and end + 1 < len(folded) and _is_name_letter(folded[end + 1]):
        return False
    return not (edges.is_single and (after == "#" or folded.startswith("++", end)))


def _is_name_letter(character: str) -> bool:
    return character in _ASCII_WORD and not character.isdigit()
