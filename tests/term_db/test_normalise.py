"""Normalised prompts: what is rewritten, and that a second pass changes nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from term_db.normalise import normalise
from term_db.snapshot import compile_snapshot
from term_db.types import (
    Concept,
    ConceptId,
    DictionaryVersion,
    NormalisedText,
    Span,
    Term,
    TermAction,
    TermKind,
    TermMatch,
)


def concept(concept_id, preferred, *others, action=TermAction.REWRITE, hint=None):
    """`preferred` maps languages to forms; others are 'lang:text'."""
    terms = [Term(text, lang, TermKind.PREFERRED) for lang, text in preferred.items()]
    terms += [Term(other.split(":", 1)[1], other.split(":", 1)[0]) for other in others]
    return Concept(ConceptId(concept_id), "test", tuple(terms), action=action, expert_hint=hint)


SNAPSHOT = compile_snapshot(
    [
        concept(
            "quick",
            {"en": "quicksort", "zh": "快速排序"},
            "en:qsort",
            "en:quick sort",
            "zh:快排",
            "zh:快速排序法",
            hint="python-algorithm",
        ),
        concept("cpp", {"en": "C++"}, "en:cpp", "en:c plus plus"),
        concept("leak", {"zh": "内存泄漏"}, "zh:内存泄露", "en:memory leak"),
        concept(
            "fever", {"zh": "发热"}, "zh:发烧", action=TermAction.TAG, hint="internal-medicine"
        ),
        concept("shield", {}, "zh:尽快排", action=TermAction.OFF),
        concept("card", {"en": "credit card"}, "en:cc card", "en:card tree"),
        concept("sorter", {"en": "sorter"}, "en:quicksort machine"),
    ],
    DictionaryVersion(1),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("用qsort排序", "用quicksort排序"),
        ("先快排，再qsort", "先快速排序，再quicksort"),
        ("快速排序法", "快速排序"),
        ("ｑｕｉｃｋ\u3000ｓｏｒｔ!", "quicksort!"),
        ("Quick\nSort", "quicksort"),
        ("Quicksort", "quicksort"),
        ("quicksort", "quicksort"),
        ("write cpp17 in cpp", "write cpp17 in C++"),
        ("a memory leak", "a memory leak"),
        ("内存泄露了", "内存泄漏了"),
        ("孩子发烧", "孩子发烧"),
        ("尽快排查", "尽快排查"),
        ("a cc card", "a credit card"),
        ("`qsort` and qsort", "`qsort` and quicksort"),
        ("請用快速排序", "請用快速排序"),
        # Rewritten, these would join what follows to a longer term; so they stay.
        ("快排法", "快排法"),
        ("a qsort machine, a qsort", "a qsort machine, a quicksort"),
        ("cc card tree", "credit card tree"),
        ("", ""),
    ],
)
def test_prompt_becomes(text, expected):
    result = normalise(SNAPSHOT, text)
    assert result.text == expected
    assert normalise(SNAPSHOT, expected).text == expected


def test_matches_carry_spans_of_the_original_and_hints():
    assert normalise(SNAPSHOT, "İ 快排，发烧") == NormalisedText(
        "İ 快速排序，发烧",
        (
            TermMatch(
                Span(2, 4),
                "快排",
                ConceptId("quick"),
                "zh",
                "快速排序",
                TermAction.REWRITE,
                "python-algorithm",
            ),
            TermMatch(
                Span(5, 7),
                "发烧",
                ConceptId("fever"),
                "zh",
                "发热",
                TermAction.TAG,
                "internal-medicine",
            ),
        ),
        1,
    )


def test_language_without_preferred_form_keeps_its_own():
    (match,) = normalise(SNAPSHOT, "memory leak").matches
    assert (match.preferred, match.lang) == ("memory leak", "en")


def test_rewrite_that_does_not_hold_is_reported_as_tag():
    result = normalise(SNAPSHOT, "快排法")
    assert [match.action for match in result.matches] == [TermAction.TAG]
    assert result.rewritten_count == 0


def test_tag_mode_rewrites_nothing_but_finds_all():
    result = normalise(SNAPSHOT, "qsort", mode=TermAction.TAG)
    assert (result.text, result.rewritten_count) == ("qsort", 0)
    assert [(match.preferred, match.action) for match in result.matches] == [
        ("quicksort", TermAction.TAG)
    ]


def test_off_mode_does_not_match():
    assert normalise(SNAPSHOT, "qsort", mode=TermAction.OFF) == NormalisedText("qsort", (), 0)


def test_shield_is_never_reported():
    assert normalise(SNAPSHOT, "尽快排").matches == ()


PIECES = [
    *(
        "qsort",
        "quick sort",
        "quicksort",
        "快排",
        "快速排序",
        "法",
        "machine",
        "cpp",
        "C++",
        "c plus plus",
    ),
    *(
        "cc card",
        "card",
        "tree",
        "credit",
        "尽",
        "查",
        "发烧",
        "内存泄露",
        "sorter",
        "ｑｓｏｒｔ",
        "\u00ad",
    ),
    *(
        " ",
        "  ",
        "\n",
        "`",
        "，",
        ".",
        "+",
        "a",
        "1",
        "_",
        "```",
        '"',
        ":",
        "{",
        "<",
        ">",
        "@",
        "://",
        "İ",
    ),
]


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_second_pass_changes_nothing(text):
    first = normalise(SNAPSHOT, text)
    second = normalise(SNAPSHOT, first.text)
    assert (second.text, second.rewritten_count) == (first.text, 0)
    assert [match.concept_id for match in second.matches] == [
        match.concept_id for match in first.matches
    ]


# Dictionaries made of few letters, where forms overlap, extend and contain each other.
FORMS = st.text("ab快排 ", min_size=2, max_size=4).filter(lambda form: form == form.strip())


@settings(max_examples=400)
@given(
    st.lists(FORMS, min_size=2, max_size=9, unique_by=lambda form: " ".join(form.split())),
    st.lists(st.sampled_from(["ab", "快", "排", " ", "a", "b", "快排", "ba"]), max_size=12).map(
        "".join
    ),
)
def test_second_pass_changes_nothing_whatever_the_dictionary(forms, text):
    concepts = [
        concept(
            str(index),
            {"zh": forms[index]},
            *(f"zh:{form}" for form in forms[index + 1 : index + 3]),
        )
        for index in range(0, len(forms), 3)
    ]
    snapshot = compile_snapshot(concepts, DictionaryVersion(1))
    once = normalise(snapshot, text).text
    assert normalise(snapshot, once).text == once
