"""Word boundaries around folded terms."""

import pytest

from term_db.boundaries import edges_of, is_bounded, is_word


@pytest.mark.parametrize(
    ("text", "term", "expected"),
    [
        ("use qsort here", "qsort", True),
        ("请用qsort排序", "qsort", True),
        ("my_qsort", "qsort", False),
        ("qsort2", "qsort", False),
        ("javascript", "java", False),
        ("java", "java", True),
        ("(java)", "java", True),
        ("java.util.list", "java", False),
        ("i like java. it runs", "java", True),
        ("java.", "java", True),
        ("version 2.java", "java", True),
        ("asp.net", "net", False),
        ("尽快排序吧", "快排", True),
        ("快排1", "快排", True),
        ("快排\u0301", "快排", False),
        ("c++", "c", False),
        ("c#", "c", False),
        ("c + d", "c", True),
        ("c+1", "c", True),
        ("c++17", "c++", True),
        ("cc++", "c++", False),
        ("example.net", ".net", False),
        ("用.net写", ".net", True),
        (".net", ".net", True),
        ("кодjava", "java", False),
        ("abc java#1", "java", True),
    ],
)
def test_term_stands_alone(text, term, expected):
    start = text.index(term)
    assert is_bounded(text, start, start + len(term), edges_of(term)) is expected


@pytest.mark.parametrize("character", list("aZ9_éяअ\u0301"))
def test_letters_digits_and_marks_continue_a_word(character):
    assert is_word(character)


@pytest.mark.parametrize("character", list("中かカ한 ，+#.-"))
def test_cjk_and_punctuation_do_not(character):
    assert not is_word(character)
