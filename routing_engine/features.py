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

FEATURE_VERSION = "bag-2"

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
_SEEDS = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F], dtype=np.uint32)
_MIX = np.uint32(0x2C1B3C6D)
_ROLL = np.uint32(0x01000193)
_BLANK = np.uint32(0x20)

_SEPARATOR, _LETTER, _IDEOGRAPH = 0, 1, 2


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


def _classes() -> npt.NDArray[np.uint8]:
    """Return the class of every code point: separator, letter (of any alphabet) or ideograph."""
    classes = np.full(0x110000, _LETTER, dtype=np.uint8)
    for point in range(0x80):
        if not (chr(point).isalnum() or chr(point) in "_+#"):
            classes[point] = _SEPARATOR
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


def _weights_by_pattern(size: int) -> Weights:
    """Return the weight of an n-gram by its classes, read as a number of base three; zero is no feature."""
    weights = np.zeros(3**size, dtype=np.float32)
    for number, pattern in enumerate(itertools.product((0, 1, 2), repeat=size)):
        if all(each == _IDEOGRAPH for each in pattern):
            weights[number] = IDEOGRAPHS_WEIGHT[size - 1]
        elif size >= 3 and _IDEOGRAPH not in pattern and all(pattern[1:-1]) and sum(pattern) > 1:
            weights[number] = LETTERS_WEIGHT
    return weights


_CLASS = _classes()
_PATTERN_WEIGHTS = [_weights_by_pattern(size) for size in range(1, NGRAM_MAX + 1)]
_THREE = np.uint8(3)


def _ngrams(window: str) -> tuple[Buckets, Weights]:
    """Return the mixed hashes of every n-gram that is a feature, and their weights."""
    points = np.frombuffer(f" {window} ".encode("utf-32-le", "replace"), dtype=np.uint32)
    classes = _CLASS[points]
    # Every separator hashes like a blank: "sort." and "sort " end the same way.
    points = np.where(classes == _SEPARATOR, _BLANK, points)
    pattern = classes
    rolling = points * _SEEDS[0]
    patterns, hashes = [_PATTERN_WEIGHTS[0][pattern]], [rolling]
    for size in range(2, NGRAM_MAX + 1):
        if len(points) < size:
            break
        pattern = pattern[:-1] * _THREE + classes[size - 1 :]
        rolling = (rolling[:-1] * _ROLL) ^ (points[size - 1 :] * _SEEDS[size - 1])
        patterns.append(_PATTERN_WEIGHTS[size - 1][pattern])
        hashes.append(rolling)
    weights, mixed = np.concatenate(patterns), np.concatenate(hashes)
    is_feature = weights > 0
    weights, mixed = weights[is_feature], mixed[is_feature]
    mixed ^= mixed >> np.uint32(15)
    mixed *= _MIX
    mixed ^= mixed >> np.uint32(13)
    return mixed, weights
