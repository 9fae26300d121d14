"""Which occurrences are chosen; the same choice as a slow reading of the rules makes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from term_db.boundaries import edges_of, is_bounded
from term_db.fold import fold_term
from term_db.matcher import MATCHES_PER_TEXT_MAX, Matcher, Occurrence

SORTS = ("quicksort", "quick sort", "qsort", "快速排序", "快排")


def matcher_of(terms):
    return Matcher([fold_term(term) for term in terms])


def surfaces(terms, text):
    return [text[start:end] for start, end, _ in matcher_of(terms).find(text)]


@pytest.mark.parametrize(
    ("terms", "text", "found"),
    [
        (SORTS, "先ＱＳＯＲＴ再", ["ＱＳＯＲＴ"]),
        (SORTS, "QUİCKSORT, quıcksort", ["QUİCKSORT"]),
        (SORTS, "İİ 快排", ["快排"]),
        (SORTS, "quick\u200csort and quick\u00a0sort", ["quick\u200csort", "quick\u00a0sort"]),
        (SORTS, "quick\r\nsort", ["quick\r\nsort"]),
        (SORTS, "quick\n\nsort", []),
        (SORTS, "qsort\u0301", []),
        (SORTS, "𠮷快排", ["快排"]),
        (SORTS, "\ud800 qsort", ["qsort"]),
        (SORTS, "", []),
        (("fi", "fish"), "ﬁsh ﬁ", ["ﬁsh", "ﬁ"]),
        (("f", "if"), "ﬁ if", ["if"]),
        (("mass", "mas"), "Maß", ["Maß"]),
        (("ガード",), "ｶﾞｰﾄﾞ", ["ｶﾞｰﾄﾞ"]),
        (("café",), "cafe\u0301s cafe\u0301", ["cafe\u0301"]),
        (("快排", "快速排序", "快速排序法"), "快速排序法与快排", ["快速排序法", "快排"]),
        (("知识产权", "国家知识产权局"), "国家知识产权", ["知识产权"]),
        (("人工智能", "智能芯片", "芯片设计"), "人工智能芯片设计", ["人工智能", "芯片设计"]),
        (("java", "javascript"), "javascript java javabean", ["javascript", "java"]),
        (("北京", "欢迎", "你好"), "北京欢迎你好", ["北京", "欢迎", "你好"]),
        (("人民日报",), "人民日报1报", ["人民日报"]),
        (("an", "canal", "e can oilfield"), "one canal", ["canal"]),
        (("abcde", "cd", "bcdx"), "ab cd", ["cd"]),
        (("sort", "quick sort tree"), "quick sort trees", ["sort"]),
        ((".net", "asp.net"), ".NET, ASP.NET, example.net", [".NET", "ASP.NET"]),
        (("qsort",), "`qsort` qsort", ["qsort"]),
        (("qsort", "use qsort now"), "use `qsort` now", []),
    ],
)
def test_found_surfaces(terms, text, found):
    assert surfaces(terms, text) == found


def test_exact_case_entry_wins_only_in_its_own_case():
    matcher = Matcher(["go", "go"], ["Go", None])
    assert matcher.find("Go go GO") == [
        Occurrence(0, 2, 0),
        Occurrence(3, 5, 1),
        Occurrence(6, 8, 1),
    ]


def test_exact_case_looks_through_width():
    assert Matcher(["go"], ["Go"]).find("Ｇｏ ｇｏ") == [Occurrence(0, 2, 0)]


def test_earlier_entry_wins_among_equals():
    assert Matcher(["快排", "快排"]).find("快排") == [Occurrence(0, 2, 0)]


def test_no_patterns_find_nothing():
    matcher = Matcher([])
    assert matcher.find("anything") == []
    assert matcher.serialise() == b""
    assert len(matcher) == 0


def test_serialised_automaton_finds_the_same():
    patterns = [fold_term(term) for term in SORTS]
    first = Matcher(patterns)
    second = Matcher(patterns, automaton=first.serialise())
    text = "qsort 与快速排序, quick sort"
    assert second.find(text) == first.find(text) != []
    assert all(second.serves(entry) for entry in range(len(second)))


def test_matches_per_text_are_bounded():
    found = matcher_of(["快排"]).find("快排" * (MATCHES_PER_TEXT_MAX + 5))
    assert len(found) == MATCHES_PER_TEXT_MAX


def oracle(terms, text):
    """Left to right: the longest term that stands as a word, by trying every one."""
    found, position = [], 0
    while position < len(text):
        fitting = [
            term
            for term in terms
            if text.startswith(term, position)
            and is_bounded(text, position, position + len(term), edges_of(term))
        ]
        if fitting:
            longest = max(fitting, key=len)
            found.append((position, position + len(longest), terms.index(longest)))
            position += len(longest)
        else:
            position += 1
    return found


WORDS = st.text("ab快排 +", min_size=1, max_size=5).filter(
    lambda word: word == word.strip() and "  " not in word and word != "+"
)


@given(st.lists(WORDS, min_size=1, max_size=8, unique=True), st.text("ab快排+.", max_size=30))
def test_choice_is_that_of_the_slow_reading(terms, text):
    assert matcher_of(terms).find(text) == oracle(terms, text)
