"""Dictionary files: read with exact lines, written without loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from term_db.interchange import (
    COLUMNS,
    PROBLEMS_MAX,
    TableFormat,
    format_concepts,
    parse,
    parse_jsonl,
    parse_table,
)
from term_db.types import CaseRule, Concept, ConceptId, Term, TermAction, TermKind, TermStatus

HEADER = ",".join(COLUMNS) + "\n"


def problems(text, table_format=TableFormat.CSV):
    return [str(problem) for problem in parse(text, table_format, source="f").problems]


def test_rows_of_one_concept_come_together():
    parsed = parse_table(
        "\ufeff"
        + HEADER
        + 'q,programming,en,quicksort,preferred,fold,tag,python-algorithm,"fast, sort",\r\n'
        "q,,zh,快排,,EXACT,,,,short\n\nr,law,en,contract,,,,,,\n",
        source="f",
        delimiter=",",
    )
    assert parsed.problems == ()
    assert parsed.concepts == (
        Concept(
            ConceptId("q"),
            "programming",
            (
                Term("quicksort", "en", TermKind.PREFERRED),
                Term("快排", "zh", case_rule=CaseRule.EXACT, note="short"),
            ),
            "fast, sort",
            "python-algorithm",
            TermAction.TAG,
        ),
        Concept(ConceptId("r"), "law", (Term("contract", "en"),)),
    )
    assert parsed.lines == {("q", "quicksort"): 2, ("q", "快排"): 3, ("r", "contract"): 5}


def test_columns_may_stand_in_any_order_and_optional_ones_be_absent():
    parsed = parse_table(
        "term\tlang\tconcept_id\tdomain\nab\ten\tx\td\n", source="f", delimiter="\t"
    )
    assert [concept.concept_id for concept in parsed.concepts] == ["x"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("x,d,en,,,,,,,", "f:2: the term is empty"),
        (
            "x,d,en,a,,,,,,",
            "f:2: the term 'a' has one character: give it exact case or leave it out",
        ),
        (
            "x,d,en,a\u202eb,,,,,,",
            "f:2: the term holds the control character U+202E, which nobody sees",
        ),
        ("x,d,en,++,,,,,,", "f:2: the term '++' has no letter or digit"),
        (
            "x,d,english!,ab,,,,,,",
            "f:2: the language 'english!' isn't a tag such as en, zh or zh-Hant",
        ),
        (
            "x,d,en,ab,best,,,,,",
            "f:2: kind must be one of preferred, admitted, deprecated, hidden, not 'best'",
        ),
        ("x,d,en,ab,,upper,,,,", "f:2: case must be one of fold, exact, not 'upper'"),
        ("x,d,en,ab,,,drop,,,", "f:2: action must be one of rewrite, tag, off, not 'drop'"),
        (
            "x,d,en,ab,,,,The Expert,,",
            "f:2: the expert hint 'The Expert' isn't an expert id (lower-case letters, digits, hyphens)",
        ),
        ("x y,d,en,ab,,,,,,", "f:2: the concept id 'x y' has a space, quote or bracket"),
        (",d,en,ab,,,,,,", "f:2: the concept id is empty"),
        ("x,,en,ab,,,,,,", "f:2: concept 'x' has no domain"),
        ("x,d,en,ab,,,,,,,more", "f:2: has 11 fields, the header 10"),
        ("x,d,en,ab,,,,,,\nx,e,en,cd,,,,,,", "f:3: concept 'x' has domain 'd' on an earlier line"),
        ("x,d,en,ab,,,,,,\nx,,en,ab,,,,,,", "f:3: 'ab' stands in concept 'x' twice"),
        (
            "x,d,en,ab,preferred,,,,,\nx,,en,cd,preferred,,,,,",
            "f:3: concept 'x' has the preferred en term 'ab' already",
        ),
        ('x,d,en,"ab,,,,,,', "f:2: not readable as a table: unexpected end of data"),
    ],
)
def test_problem_names_its_line(row, reason):
    assert problems(HEADER + row + "\n") == [reason]


def test_line_of_a_row_after_a_multi_line_field_is_exact():
    text = HEADER + 'x,d,en,ab,,,,,"one\ntwo\nthree",\ny,d,en,c,,,,,,\n'
    assert problems(text)[0].startswith("f:5: the term 'c'")


def test_all_problems_are_reported_up_to_the_bound():
    assert len(problems(HEADER + "x,d,en,,,,,,,\n" * 7)) == 7
    assert len(problems(HEADER + "x,d,en,,,,,,,\n" * 500)) == PROBLEMS_MAX


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "f:1: the file is empty: it needs a header"),
        ("a,b\n", f"f:1: the header lacks concept_id, lang, term; it must be {', '.join(COLUMNS)}"),
        ("concept_id,lang,term,colour\n", "f:1: the header has the unknown column 'colour'"),
        ("concept_id,lang,term,term\n", "f:1: the header names a column twice"),
    ],
)
def test_header_is_checked(text, reason):
    assert problems(text) == [reason]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "a concept must be an object"),
        ('{"concept_id": "x", "domain": "d"}', "the concept lacks the field 'terms'"),
        ('{"concept_id": "x", "domain": "d", "terms": [], "colour": 1}', "no field 'colour'"),
        ('{"concept_id": "x", "domain": "d", "terms": []}', "concept 'x' has no term"),
        ('{"concept_id": "x", "domain": "d", "terms": {}}', "terms must be a list"),
        ('{"concept_id": 1, "domain": "d", "terms": []}', "concept_id must be a string"),
        (
            '{"concept_id": "x", "domain": "d", "terms": [{"text": " ab", "lang": "en"}]}',
            "begins or ends with white space",
        ),
        (
            '{"concept_id": "x", "domain": "d", "terms": [{"text": "ab", "lang": "en", "countable": 1}]}',
            "countable must be true or false",
        ),
    ],
)
def test_json_line_is_checked(line, reason):
    (problem,) = parse_jsonl("\n" + line, source="f").problems
    assert problem.line == 2
    assert reason in str(problem)


def test_concept_twice_in_json_lines_is_a_problem():
    line = '{"concept_id": "x", "domain": "d", "terms": [{"text": "ab", "lang": "en"}]}\n'
    assert problems(line * 2, TableFormat.JSONL) == ["f:2: concept 'x' stands in the file twice"]


WORDS = st.text("ab快é,\"'#", min_size=2, max_size=6).filter(
    lambda word: any(map(str.isalnum, word))
)
TERMS = st.builds(
    Term,
    text=WORDS,
    lang=st.sampled_from(["en", "zh", "zh-Hant"]),
    kind=st.sampled_from([TermKind.ADMITTED, TermKind.DEPRECATED, TermKind.HIDDEN]),
    case_rule=st.sampled_from(CaseRule),
    countable=st.booleans(),
    note=WORDS | st.just(""),
)
CONCEPTS = st.builds(
    Concept,
    concept_id=st.text("abc:-", min_size=1, max_size=8).map(ConceptId),
    domain=st.sampled_from(["programming", "law"]),
    terms=st.lists(TERMS, min_size=1, max_size=4, unique_by=lambda term: term.text).map(tuple),
    definition=WORDS | st.just("") | st.just("two\nlines"),
    expert_hint=st.none() | st.just("contract-law"),
    action=st.sampled_from(TermAction),
    status=st.sampled_from(TermStatus),
)


@pytest.mark.parametrize("table_format", TableFormat)
@given(concepts=st.lists(CONCEPTS, max_size=4, unique_by=lambda concept: concept.concept_id))
def test_every_field_survives_the_file(table_format, concepts):
    text = format_concepts(concepts, table_format)
    parsed = parse(text, table_format, source="f")
    assert parsed.problems == ()
    assert parsed.concepts == tuple(concepts)
