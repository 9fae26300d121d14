"""The fold: what it makes of each kind of character, and that its offsets lead back."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from term_db import fold as fold_module
from term_db.fold import FoldedText, OffsetMap, exact_form, fold, fold_term

NATURAL = st.text(
    st.sampled_from(
        list(
            "aZ ıİßﬁ½é\u0301\u0307ｱｶﾞ快髮，…\u3000\u00a0\n\t\r\u00ad\u200b\u200d\ufeff\ufe0f👍🏽한\u1100\u1161²"
        )
    ),
    max_size=24,
)


def reference_segment(segment):
    composed = unicodedata.normalize("NFKC", segment).replace("İ", "i")
    return unicodedata.normalize("NFKC", composed.casefold())


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("QuickSort", "quicksort"),
        ("ｑｕｉｃｋ\u3000ｓｏｒｔ", "quick sort"),
        ("a\u00a0b", "a b"),
        ("a \r\n b", "a b"),
        ("a\n\nb", "a\nb"),
        ("a\tb\nc", "a b c"),
        ("Straße", "strasse"),
        ("ﬁle", "file"),
        ("İstanbul I\u0307", "istanbul i"),
        ("ı", "ı"),
        ("cafe\u0301", "café"),
        ("ｶﾞｰﾄﾞ", "ガード"),
        ("quick\u00adsort", "quicksort"),
        ("快速\u200b排序", "快速排序"),
        ("quick \u200bsort", "quick \u200bsort"),
        ("快\ufe00排", "快排"),
        ("\ufeff快排", "\ufeff快排"),
        ("👨\u200d💻", "👨\u200d💻"),
        ("\u1112\u1161\u11ab", "한"),
        ("𝐪𝐬𝐨𝐫𝐭", "qsort"),
        ("x²", "x2"),
        ("好，好……", "好,好......"),
        ("", ""),
    ],
)
def test_text_folds_to(text, folded):
    assert fold(text).text == folded


@pytest.mark.parametrize(
    ("text", "folded_span", "span"),
    [
        ("İİ快排", (2, 4), (2, 4)),
        ("用ｑｓｏｒｔ", (1, 6), (1, 6)),
        ("the ﬁle", (4, 8), (4, 7)),
        ("a\u00adb c", (0, 2), (0, 3)),
        ("x  y", (2, 3), (3, 4)),
        ("ｶﾞﾗ", (0, 2), (0, 3)),
        ("½ quick", (4, 9), (2, 7)),
    ],
)
def test_folded_positions_lead_back(text, folded_span, span):
    offsets = fold(text).offsets or OffsetMap((), (), (), ())
    assert (offsets.start_of(folded_span[0]), offsets.end_of(folded_span[1])) == span


@pytest.mark.parametrize(("text", "inside"), [("ﬁsh", 1), ("Maß", 3), ("t\u0301", 1), ("½", 1)])
def test_positions_inside_a_segment_lead_nowhere(text, inside):
    offsets = fold(text).offsets
    assert offsets is not None
    assert offsets.start_of(inside) is None
    assert offsets.end_of(inside) is None


def test_plain_text_needs_no_offsets():
    for text in ("plain ascii text", "中文，也是。", "Ünïcödé", "emoji 👍 too"):
        assert fold(text).offsets is None


def test_no_character_outside_the_table_changes_length_or_attaches():
    known = re.compile(f"[{fold_module._NOT_ONE_TO_ONE}{fold_module._NOT_ONE_TO_ONE_ASTRAL}]")
    missed = []
    for code in range(0x80, 0x110000):
        character = chr(code)
        if 0xD800 <= code < 0xE000 or known.match(character):
            continue
        folded = reference_segment(character)
        bulk = unicodedata.normalize("NFKC", character).casefold()
        if len(folded) != 1 or folded != bulk or fold_module.attaches(character):
            missed.append(hex(code))
    assert missed == []


def test_common_characters_are_outside_the_table():
    known = re.compile(f"[{fold_module._NOT_ONE_TO_ONE}]")
    common = [chr(code) for code in range(0x10000) if fold_module._COMMON.fullmatch(chr(code))]
    assert len(common) > 27_000
    assert [character for character in common if known.match(character)] == []


@given(NATURAL)
def test_fast_and_careful_folds_agree(text):
    assert fold(text) == fold_module._fold_irregular(text)


@given(NATURAL)
def test_folding_twice_changes_nothing(text):
    once = fold_term(text)
    assert fold_term(once) == fold_term(fold_term(once))


@given(NATURAL)
def test_every_boundary_that_leads_back_folds_to_the_same_prefix(text):
    folded = fold(text)
    offsets = folded.offsets or OffsetMap((), (), (), ())
    for index in range(len(folded.text) + 1):
        start, end = offsets.start_of(index), offsets.end_of(index)
        assert start is None or 0 <= start <= len(text)
        assert end is None or 0 <= end <= len(text)
        if start is not None and end is not None:
            assert end <= start


def test_lone_surrogates_pass_through():
    assert fold("a\ud800B") == FoldedText("a\ud800b")


@pytest.mark.parametrize(
    ("text", "form"),
    [("Go", "Go"), ("Ｇｏ", "Go"), ("G\u00ado", "Go"), ("A  B", "A B"), ("cafe\u0301", "café")],
)
def test_exact_form_keeps_case_only(text, form):
    assert exact_form(text) == form


@pytest.mark.timeout(60)
def test_long_runs_of_invisible_characters_and_of_marks_take_time_in_proportion():
    assert fold("a" + "\u200d" * 200_000 + "b").text == "ab"
    assert fold("\u200d" * 200_000).text == "\u200d" * 200_000
    marks = fold("e" + "\u0301\u0316" * 100_000).text
    assert marks.startswith("é")
    assert len(marks) == 200_000
