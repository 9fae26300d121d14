"""What is compiled of concepts, and which claims conflict."""

import pytest

from term_db.types import CaseRule, Concept, ConceptId, Conflict, Term, TermKind, TermStatus
from term_db.variants import compile_variants, find_conflicts, plural_of


def concept(concept_id, *terms, **fields):
    return Concept(ConceptId(concept_id), "test", tuple(terms), **fields)


def compiled(*concepts):
    return {variant.folded: variant for variant in compile_variants(concepts)}


def test_preferred_form_is_that_of_the_own_language():
    found = compiled(
        concept(
            "q",
            Term("quicksort", "en", TermKind.PREFERRED),
            Term("qsort", "en"),
            Term("快排", "zh"),
        )
    )
    assert found["qsort"].preferred == "quicksort"
    assert found["快排"].preferred is None


def test_traditional_spelling_is_derived_with_its_own_language():
    found = compiled(concept("p", Term("处理", "zh", TermKind.PREFERRED)))
    assert set(found) == {"处理", "處理"}
    assert (found["處理"].lang, found["處理"].preferred) == ("zh-Hant", None)


def test_derived_spelling_takes_the_traditional_preferred_form():
    found = compiled(
        concept(
            "s", Term("软件", "zh"), Term("軟體", "zh-Hant", TermKind.PREFERRED), Term("数据", "zh")
        )
    )
    assert found["數據"].preferred == "軟體"


def test_spaced_and_hyphenated_spellings_are_derived():
    found = compiled(concept("m", Term("merge sort", "en"), Term("depth-first search", "en")))
    assert {"merge sort", "merge-sort", "depth-first search", "depth-first-search"} <= set(found)


def test_plural_is_derived_for_countable_terms_only():
    found = compiled(
        concept(
            "t",
            Term("hash table", "en", TermKind.PREFERRED, countable=True),
            Term("hash map", "en", countable=True),
            Term("hashing", "en"),
        )
    )
    assert found["hash maps"].preferred == "hash tables"
    assert found["hash-maps"].preferred == "hash tables"
    assert "hashings" not in found


def test_plural_stays_when_the_preferred_form_has_none():
    found = compiled(
        concept("t", Term("storage", "en", TermKind.PREFERRED), Term("disk", "en", countable=True))
    )
    assert found["disks"].preferred is None


@pytest.mark.parametrize(
    ("singular", "plural"),
    [
        ("index", "indexes"),
        ("query", "queries"),
        ("key", "keys"),
        ("hash", "hashes"),
        ("map", "maps"),
    ],
)
def test_plural_of(singular, plural):
    assert plural_of(singular) == plural


def test_derived_spelling_never_displaces_a_written_one():
    found = compiled(concept("a", Term("x y", "en")), concept("b", Term("x-y", "en")))
    assert found["x-y"].concept_id == "b"


def test_only_approved_concepts_are_compiled():
    statuses = [TermStatus.PROPOSED, TermStatus.DEPRECATED, TermStatus.REJECTED]
    concepts = [concept(status.value, Term("xy", "en"), status=status) for status in statuses]
    assert compile_variants(concepts) == ()


def test_exact_comes_first_then_kind_then_id():
    variants = compile_variants(
        [
            concept("b", Term("go", "en", TermKind.PREFERRED)),
            concept("a", Term("go", "en")),
            concept("c", Term("Go", "en", case_rule=CaseRule.EXACT)),
        ]
    )
    assert [(variant.concept_id, variant.exact) for variant in variants] == [
        ("c", "Go"),
        ("b", None),
    ]


def test_same_folded_variant_on_two_concepts_conflicts():
    found = find_conflicts(
        [
            concept("a", Term("Quick  Sort", "en"), Term("one", "en")),
            concept("b", Term("ｑｕｉｃｋ sort", "en"), Term("two", "en")),
        ]
    )
    assert found == (Conflict("Quick  Sort", (ConceptId("a"), ConceptId("b"))),)


def test_exact_and_folded_conflict_but_two_exact_spellings_do_not():
    exact = {"case_rule": CaseRule.EXACT}
    folded = concept("a", Term("go", "en"))
    go, shout = concept("b", Term("Go", "en", **exact)), concept("c", Term("GO", "en", **exact))
    assert find_conflicts([go, shout]) == ()
    assert len(find_conflicts([folded, go])) == 1
    assert len(find_conflicts([go, concept("d", Term("Go", "zh", **exact))])) == 1


def test_one_concept_may_repeat_a_variant():
    assert find_conflicts([concept("a", Term("SQL", "en"), Term("SQL", "zh"))]) == ()
