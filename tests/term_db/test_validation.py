"""What a usable concept is."""

import pytest

from term_db.types import CaseRule, Concept, ConceptId, Term, TermKind
from term_db.validation import TERM_CHARS_MAX, TERMS_PER_CONCEPT_MAX, check_concept, check_term


@pytest.mark.parametrize(
    "text", ["C++", ".NET", "快排", "C", "naïve Bayes", "P&L", "x" * TERM_CHARS_MAX]
)
def test_usable_terms(text):
    check_term(Term(text, "en", case_rule=CaseRule.EXACT))


@pytest.mark.parametrize(
    "text", ["", " ", "a", "a\x00b", "a\u200bb", "`ab`", "[[a]]", "x" * (TERM_CHARS_MAX + 1)]
)
def test_unusable_terms(text):
    with pytest.raises(ValueError, match="term"):
        check_term(Term(text, "en"))


def concept(*terms, concept_id="x", domain="d"):
    return Concept(ConceptId(concept_id), domain, terms)


@pytest.mark.parametrize(
    "unusable",
    [
        concept(),
        concept(Term("ab", "en"), concept_id=""),
        concept(Term("ab", "en"), domain=""),
        concept(Term("ab", "en"), concept_id="a|b"),
        concept(Term("ab", "en"), Term("ａｂ", "en")),
        concept(Term("ab", "en", TermKind.PREFERRED), Term("cd", "en", TermKind.PREFERRED)),
        concept(*(Term(f"t{number}", "en") for number in range(TERMS_PER_CONCEPT_MAX + 1))),
    ],
)
def test_unusable_concepts(unusable):
    with pytest.raises(ValueError, match=r"concept|domain"):
        check_concept(unusable)


def test_one_preferred_term_per_language_is_usable():
    check_concept(
        concept(Term("ab", "en", TermKind.PREFERRED), Term("甲乙", "zh", TermKind.PREFERRED))
    )
