"""Features are what artefacts were trained on: the same prompt must give the same numbers for ever."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_engine.features import (
    CONCEPT_WEIGHT,
    CONCEPTS_MAX,
    FEATURE_VERSION,
    WINDOW_HEAD,
    WINDOW_TAIL,
    features_of,
    window_of,
)

BUCKETS = 1 << 15
ENGLISH = "How do I sort a list with quicksort in C++?"
CHINESE = "用Python写一个快速排序，谢谢！"
CONCEPTS = ("algo:sorting:quick",)

PINNED = ("bag-3", 64, "051397fbf20a7e74", 35, "9dc472150479f46f")

words = st.text("abcdefghijklmnopqrstuvwxyz0123456789_+#éß", min_size=1, max_size=12)


def buckets_of(text, concept_ids=(), bucket_count=BUCKETS):
    """The features as a sorted list of (bucket, weight): sums don't depend on their order."""
    buckets, weights = features_of(text, concept_ids, bucket_count=bucket_count)
    assert len(buckets) == len(weights)
    assert (buckets.dtype, weights.dtype) == (np.uint32, np.float32)
    pairs = zip(buckets.tolist(), weights.tolist(), strict=True)
    return sorted((bucket, round(weight, 4)) for bucket, weight in pairs)


def digest_of(features):
    return hashlib.sha256(repr(features).encode()).hexdigest()[:16]


def test_features_of_this_version_are_pinned():
    """Artefacts name their feature version: whoever changes what is pinned here has to raise it."""
    found = (
        FEATURE_VERSION,
        len(buckets_of(ENGLISH)),
        digest_of(buckets_of(ENGLISH)),
        len(buckets_of(CHINESE, CONCEPTS)),
        digest_of(buckets_of(CHINESE, CONCEPTS)),
    )
    assert found == PINNED


def test_another_process_with_another_hash_seed_finds_the_same_features():
    program = (
        "from routing_engine.features import features_of\n"
        f"buckets, weights = features_of({CHINESE!r}, {CONCEPTS!r}, bucket_count={BUCKETS})\n"
        "print(buckets.tobytes().hex(), weights.tobytes().hex())"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    buckets, weights = features_of(CHINESE, CONCEPTS, bucket_count=BUCKETS)
    assert other.stdout.split() == [buckets.tobytes().hex(), weights.tobytes().hex()]


@pytest.mark.parametrize(
    "variant",
    [
        ENGLISH.upper(),
        f"  {ENGLISH}\n",
        ENGLISH.rstrip("?"),
        f"{ENGLISH}??!…",
        ENGLISH.replace(" ", " \t\r\n "),
        ENGLISH.replace(" ", "\0"),
        ENGLISH.replace("C", "Ｃ").replace("?", "？"),
    ],
)
def test_case_spacing_width_and_final_punctuation_are_no_features(variant):
    assert buckets_of(variant) == buckets_of(ENGLISH)


@pytest.mark.parametrize("other", ["How do I sort a list with quicksort in C?", CHINESE, "sort"])
def test_another_prompt_has_other_features(other):
    assert buckets_of(other) != buckets_of(ENGLISH)


@pytest.mark.parametrize("text", ["", " \n\t ", "\0", "\0" * 5_000, "?!…。", "🙂", "—", "(){}"])
def test_a_text_without_letters_has_no_features(text):
    assert buckets_of(text) == []
    assert buckets_of(text, CONCEPTS) == [(bucket_of(CONCEPTS), CONCEPT_WEIGHT)]


def bucket_of(concept_ids):
    ((bucket, _),) = buckets_of("", concept_ids)
    return bucket


def test_a_lone_surrogate_is_survived():
    assert len(buckets_of("sort \ud83d this")) > 5


def test_a_huge_text_is_looked_at_through_its_window_only():
    filler = "lorem ipsum " * 800_000
    text = f"{ENGLISH} {'x' * 500} {filler} {'x' * 500} {CHINESE}"
    assert buckets_of(text) == buckets_of(text.replace(filler, "dolor " * 100))
    assert len(window_of(text)) == WINDOW_HEAD + 1 + WINDOW_TAIL
    assert window_of(text).startswith(ENGLISH.lower())
    assert window_of(text).endswith("用python写一个快速排序,谢谢")


def test_head_and_tail_of_a_long_prompt_both_count():
    text = "head " + "x" * 1_000 + " tail"
    assert buckets_of(text.replace("head", "body")) != buckets_of(text)
    assert buckets_of(text.replace("tail", "body")) != buckets_of(text)


@pytest.mark.parametrize("length", [161, 640, 641, 5_000])
def test_the_window_is_the_first_and_the_last_code_points(length):
    text = "".join(chr(0x4E00 + position) for position in range(length))
    assert window_of(text) == f"{text[:WINDOW_HEAD]} {text[-WINDOW_TAIL:]}"


def test_a_prompt_of_the_windows_length_is_kept_whole():
    text = "ab " * 53 + "c"
    assert len(text) == WINDOW_HEAD + WINDOW_TAIL
    assert window_of(text) == text
    assert window_of(f"{text}d") == f"{text[:WINDOW_HEAD]} {f'{text}d'[-WINDOW_TAIL:]}"


def test_folding_that_lengthens_a_text_stays_within_the_window():
    assert len(window_of("ﷺ" * 10_000)) <= WINDOW_HEAD + 1 + WINDOW_TAIL
    assert len(window_of("ß" * 10_000)) <= WINDOW_HEAD + 1 + WINDOW_TAIL


@given(st.text(max_size=900), st.sampled_from([1 << 8, 1 << 13, BUCKETS]))
def test_any_text_has_bounded_features_of_norm_one(text, bucket_count):
    buckets, weights = features_of(text, bucket_count=bucket_count)
    assert (buckets < bucket_count).all()
    assert len(buckets) <= 5 * (WINDOW_HEAD + WINDOW_TAIL + 3)
    if len(weights):
        assert (weights > 0).all()
        assert float(weights @ weights) == pytest.approx(1.0, abs=1e-5)


@given(words, words, st.sampled_from([" ", ", ", " / ", "; ", "，", "🙂"]))
def test_no_feature_reaches_over_a_words_boundary(left, right, separator):
    together = {bucket for bucket, _ in buckets_of(f"{left}{separator}{right}")}
    apart = {bucket for bucket, _ in (*buckets_of(left), *buckets_of(right))}
    assert together == apart


def test_chinese_has_every_ngram_of_one_to_four_characters():
    assert len(buckets_of("快速排序")) == 4 + 3 + 2 + 1
    parts = {bucket for part in ("快速排", "速排序") for bucket, _ in buckets_of(part)}
    assert parts < {bucket for bucket, _ in buckets_of("快速排序")}


def test_a_smaller_table_sees_the_same_features_in_fewer_buckets():
    small = sorted((bucket & 0xFF, weight) for bucket, weight in buckets_of(ENGLISH))
    assert buckets_of(ENGLISH, bucket_count=0x100) == small


def test_concepts_come_on_top_of_the_text():
    more = buckets_of(ENGLISH, CONCEPTS)
    assert sorted((*buckets_of(ENGLISH), (bucket_of(CONCEPTS), CONCEPT_WEIGHT))) == more


def test_concepts_beyond_the_bound_do_not_count():
    ids = [f"concept:{number}" for number in range(CONCEPTS_MAX + 1)]
    assert buckets_of("", ids) == buckets_of("", ids[:CONCEPTS_MAX])
    assert len(buckets_of("", ids)) == CONCEPTS_MAX
