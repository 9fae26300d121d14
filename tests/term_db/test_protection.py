"""Spans that normalisation must not touch."""

import time

import pytest

from term_db.protection import ProtectedSpans, protected_spans
from term_db.types import Span


@pytest.mark.parametrize(
    ("text", "protected"),
    [
        ('plain: text, with (nothing) "quoted" 1 < 2', []),
        ("use `a b` now", ["`a b`"]),
        ("use ``a ` b`` now", ["``a ` b``"]),
        ("a lone ` tick", []),
        ("a ` b\n\nc ` d", []),
        ("x\n```py\ncode\n```\ny", ["```py\ncode\n```"]),
        ("x\n```py\ncode `q`", ["```py\ncode `q`"]),
        ("~~~\ncode\n~~~\ny", ["~~~\ncode\n~~~"]),
        ("````\n```\ncode\n````\ny", ["````\n```\ncode\n````"]),
        ("look: ```x = 1``` and", ["```x = 1```"]),
        ("look: ```x = 1", ["```x = 1"]),
        ("见 https://x.example/a?q=快排 快排", ["https://x.example/a?q=快排"]),
        ("见https://x.example/a，快排", ["https://x.example/a"]),
        ("[t](https://x.example/a_(b))快排", ["https://x.example/a_(b)"]),
        ("see www.x.example/qsort now", ["www.x.example/qsort"]),
        ("awww.that is", []),
        ("://nothing", []),
        ("write to me.too@x.example please", ["me.too@x.example"]),
        ("@name and a @ b", []),
        ('{"qsort": "use qsort", "b" : 1}', ['"qsort"', '"b"']),
        ('he said "qsort": fine', []),
        ("</term> text <b class='x'>bold</b>", ["</term>", "<b class='x'>", "</b>"]),
        ("a < b and c > d", []),
        ("<!-- a > b --> c", ["<!-- a > b -->"]),
        ("hi {{ user.name }} there", ["{{ user.name }}"]),
        ("[[algo:x|quick]] and [a]", ["[[algo:x|quick]]"]),
        ("[[1, 2], [3, 4]]", []),
        ('<a href="https://x.example/`q`">', ['<a href="https://x.example/`q`">']),
    ],
)
def test_protected_parts(text, protected):
    assert [text[span.start : span.end] for span in protected_spans(text)] == protected


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 2, False),
        (0, 3, True),
        (3, 4, True),
        (5, 6, False),
        (4, 9, True),
        (8, 9, True),
        (9, 12, False),
    ],
)
def test_touching_a_span_shares_a_character(start, end, expected):
    assert ProtectedSpans((Span(2, 5), Span(8, 9))).touches(start, end) is expected


@pytest.mark.parametrize(
    "unit",
    [
        "`",
        "``",
        "<a",
        '{"',
        '"a":',
        ",",
        "@",
        "a@",
        "://",
        "a://",
        "[[",
        "{{",
        "www.",
        "```\n",
        "~~~\n> ",
    ],
)
def test_time_grows_with_the_length_only(unit):
    text = unit * (200_000 // len(unit))
    start = time.process_time()
    protected_spans(text)
    assert time.process_time() - start < 5


@pytest.mark.timeout(60)
def test_signs_without_their_other_half_take_time_in_proportion():
    for sign in ("<!--", "@", "a@", "://", "```\n", "{{", "[[", "<a ", '{"a'):
        protected_spans(sign * (400_000 // len(sign)))
