"""Text features of the first routing stage: hashed n-grams, words and concept ids, without torch. Pure.

A prompt is cut to a window, folded, and turned into bucket numbers with weights; gate and table sum the vectors of
those buckets. `FEATURE_VERSION` is stored in every artefact: change anything here and raise it.

Source: hashed embedding bags, docs/adr/0009; n-grams over code points because Chinese has no spaces.
"""

import re
import unicodedata
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FEATURE_VERSION = "bag-1"

WINDOW_HEAD = 120
WINDOW_TAIL = 40
"""Code points that are looked at: the beginning says what is asked, the end repeats it."""

NGRAM_MAX = 4
CONCEPTS_MAX = 16
"""Concept ids that count; a prompt with more is about everything."""

CONCEPT_WEIGHT = 0.5
WORD_SHARE = 0.5
"""How the unit of weight is divided between words and n-grams when a text has both."""

Buckets = npt.NDArray[np.uint32]
Weights = npt.NDArray[np.float32]

_WORD = re.compile(r"[a-z0-9_+#]+(?:[.\-'][a-z0-9_+#]+)*")
_SPACES = re.compile(r"\s+")
_SEEDS = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F], dtype=np.uint32)
_MIX = np.uint32(0x2C1B3C6D)
_ROLL = np.uint32(0x01000193)


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
    hashes = [_ngram_hashes(window)]
    words = [zlib.crc32(word.encode()) for word in _WORD.findall(window)]
    ngram_count = len(hashes[0])
    concepts = [zlib.crc32(f"concept:{each}".encode()) for each in concept_ids[:CONCEPTS_MAX]]
    if words or concepts:
        hashes.append(np.array(words + concepts, dtype=np.uint32))
    buckets = np.concatenate(hashes) & np.uint32(bucket_count - 1)
    weights = np.empty(len(buckets), dtype=np.float32)
    word_share = WORD_SHARE if words else 0.0
    if ngram_count:
        weights[:ngram_count] = ((1.0 - word_share) / ngram_count) ** 0.5
    if words:
        weights[ngram_count : ngram_count + len(words)] = (word_share / len(words)) ** 0.5
    if concepts:
        weights[ngram_count + len(words) :] = CONCEPT_WEIGHT
    return buckets, weights


def _ngram_hashes(window: str) -> Buckets:
    """Return the mixed hashes of every n-gram of one to `NGRAM_MAX` code points of a folded window."""
    points = np.frombuffer(f" {window} ".encode("utf-32-le", "replace"), dtype=np.uint32)
    rolling = points * _SEEDS[0]
    parts = [rolling]
    for size in range(2, NGRAM_MAX + 1):
        if len(points) < size:
            break
        rolling = (rolling[:-1] * _ROLL) ^ (points[size - 1 :] * _SEEDS[size - 1])
        parts.append(rolling)
    hashes = np.concatenate(parts)
    hashes ^= hashes >> np.uint32(15)
    hashes *= _MIX
    hashes ^= hashes >> np.uint32(13)
    return hashes
