"""Text features of the first routing stage: hashed n-grams, words and concept ids, without torch. Pure.

A prompt is cut to a window, folded, and turned into bucket numbers with weights; gate and table sum the vectors of
those buckets. `FEATURE_VERSION` is stored in every artefact: change anything here and raise it.

Chinese has no spaces, so its n-grams of one to four code points stand for words. Elsewhere words count as a whole,
and n-grams of three and four code points, which never reach over a word's boundary, catch inflected forms.
"""

import itertools
import re
import unicodedata
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FEATURE_VERSION = "bag-3"

WINDOW_HEAD = 120
WINDOW_TAIL = 40
"""Code points that are looked at: the beginning says what is asked, the end repeats it."""

NGRAM_MAX = 4
CONCEPTS_MAX = 16
"""Concept ids that count; a prompt with more is about everything."""

CONCEPT_WEIGHT = 0.5
WORD_WEIGHT = 1.0
LETTERS_WEIGHT = 0.5
IDEOGRAPHS_WEIGHT = (0.5, 1.0, 0.8, 0.6)
"""Of Chinese n-grams by length: most words have two characters, one says little."""

Buckets = npt.NDArray[np.uint32]
Weights = npt.NDArray[np.float32]

_WORD = re.compile(r"[a-z0-9_+#\u00df-\u024f]+(?:[.\-'][a-z0-9_+#\u00df-\u024f]+)*")
_SPACES = re.compile(r"\s+")
_MIX = np.uint32(0x2C1B3C6D)
_BLANK = np.uint32(0x20)
_HIGH, _LOW = np.uint32(15), np.uint32(13)

_SEPARATOR, _LETTER, _IDEOGRAPH, _END = 0, 1, 2, 3
"""Classes of code points; `_END` is what stands behind the window."""


def window_of(text: str) -> str:
    """Return the part of a prompt that is looked at, folded: NFKC, case-folded, single spaces, no NUL."""
    if len(text) > 4 * (WINDOW_HEAD + WINDOW_TAIL):
        # Folding is linear; what can't reach the window needn't be folded.
        text = text[: 2 * WINDOW_HEAD] + " " + text[-2 * WINDOW_TAIL :]
    folded = text.replace("\0", " ")
    if not folded.isascii():
        folded = unicodedata.normalize("NFKC", folded)
    folded = _SPACES.sub(" ", folded.casefold()).strip()
    # Punctuation at the end must not move a route.
    folded = folded.rstrip(" ?!.。？！…~")
    if len(folded) > WINDOW_HEAD + WINDOW_TAIL:
        folded = folded[:WINDOW_HEAD] + " " + folded[-WINDOW_TAIL:]
    return folded


def features_of(
    text: str, concept_ids: Sequence[str] = (), *, bucket_count: int
) -> tuple[Buckets, Weights]:
    """Return the buckets of a prompt and their weights.

    Args:
        text: the prompt as the caller wrote it.
        concept_ids: dictionary concepts found in it.
        bucket_count: a power of two.

    Returns:
        Two arrays of the same length N: buckets (uint32, below `bucket_count`) and weights (float32). The weights
        of a text's own features have a Euclidean norm of one; concepts come on top.
    """
    window = window_of(text)
    words = [zlib.crc32(word.encode()) for word in _WORD.findall(window)]
    concepts = [zlib.crc32(f"concept:{each}".encode()) for each in concept_ids[:CONCEPTS_MAX]]
    hashes, weights = _ngrams(window)
    if words:
        hashes = np.concatenate((hashes, np.array(words, dtype=np.uint32)))
        weights = np.concatenate((weights, np.full(len(words), WORD_WEIGHT, dtype=np.float32)))
    if len(weights):
        weights = weights / np.float32(float(weights @ weights) ** 0.5)
    if concepts:
        hashes = np.concatenate((hashes, np.array(concepts, dtype=np.uint32)))
        extra = np.full(len(concepts), CONCEPT_WEIGHT, dtype=np.float32)
        weights = np.concatenate((weights, extra))
    return hashes & np.uint32(bucket_count - 1), weights


def _classes() -> npt.NDArray[np.uint32]:
    """Return the class of every code point: separator, letter (of any alphabet) or ideograph."""
    classes = np.full(0x110000, _LETTER, dtype=np.uint32)
    for point in range(0x80):
        if not (chr(point).isalnum() or chr(point) in "_+#"):
            classes[point] = _SEPARATOR
    classes[0] = _END  # never in a window, only behind it
    classes[0x80:0xC0] = _SEPARATOR
    classes[0x2000:0x2C00] = _SEPARATOR  # punctuation, arrows, symbols
    classes[0x2E80:0xAC00] = _IDEOGRAPH  # radicals, kana, CJK
    classes[0x3000:0x3040] = _SEPARATOR
    classes[0xF900:0xFB00] = _IDEOGRAPH
    classes[0xFE30:0xFE50] = _SEPARATOR
    classes[0xFF00:0xFFF0] = _SEPARATOR  # what folding leaves there
    classes[0x1F000:0x20000] = _SEPARATOR  # emoji
    classes[0x20000:0x32000] = _IDEOGRAPH
    return classes


def _pattern_weights() -> Weights:
    """Return the weight of an n-gram by its classes, read as a number of base four; zero is no feature.

    The patterns of one code point come first, then those of two, and so on.
    """
    weights = []
    for size in range(1, NGRAM_MAX + 1):
        for pattern in itertools.product((_SEPARATOR, _LETTER, _IDEOGRAPH, _END), repeat=size):
            if all(each == _IDEOGRAPH for each in pattern):
                weights.append(IDEOGRAPHS_WEIGHT[size - 1])
            elif size >= 3 and max(pattern) == _LETTER and all(pattern[1:-1]) and sum(pattern) > 1:
                weights.append(LETTERS_WEIGHT)
            else:
                weights.append(0.0)
    return np.array(weights, dtype=np.float32)


_CLASS = _classes()
_PATTERN_WEIGHTS = _pattern_weights()
_STARTS = np.array([0, 4, 4 + 16, 4 + 16 + 64], dtype=np.uint32)
"""Where the patterns of each size begin in `_PATTERN_WEIGHTS`."""

_POWERS = np.array([[1, 4, 16, 64], [0, 1, 4, 16], [0, 0, 1, 4], [0, 0, 0, 1]], dtype=np.uint32)
_HASHES = np.array(
    [
        [0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F],
        [0, 0x165667B1, 0xD3A2646D, 0xFD7046C5],
        [0, 0, 0xB55A4F09, 0x7FEB352D],
        [0, 0, 0, 0x846CA68B],
    ],
    dtype=np.uint32,
)
"""Column s hashes n-grams of s + 1 code points, row j the j-th of them; linear, mixed afterwards."""

_LONGEST = WINDOW_HEAD + WINDOW_TAIL + 3
_FOLLOWING = np.arange(_LONGEST)[:, None] + np.arange(NGRAM_MAX)
"""Row i holds the positions of the n-gram that begins at i."""


def _ngrams(window: str) -> tuple[Buckets, Weights]:
    """Return the mixed hashes of every n-gram that is a feature, and their weights.

    All sizes are computed at once: for a short prompt it is the number of calls that costs.
    """
    padded = f" {window} \0\0\0".encode("utf-32-le", "replace")
    points = np.frombuffer(padded, dtype=np.uint32)
    classes = _CLASS[points]
    # Every separator hashes like a blank: "sort." and "sort " end the same way.
    points = np.where(classes == _SEPARATOR, _BLANK, points)
    following = _FOLLOWING[: len(points) - NGRAM_MAX + 1]
    weights = _PATTERN_WEIGHTS[classes[following] @ _POWERS + _STARTS]
    is_feature = weights > 0
    mixed = (points[following] @ _HASHES)[is_feature]
    mixed ^= mixed >> _HIGH
    mixed *= _MIX
    mixed ^= mixed >> _LOW
    return mixed, weights[is_feature]
