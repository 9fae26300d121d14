"""What is compiled of a concept: its terms and the spellings derived from them.

Derived are, for terms that fold case: the hyphenated form of a spaced English term and the reverse, the
plural of an English term marked countable, and the traditional characters of a simplified Chinese term.
A derived spelling never displaces a written one. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from term_db.chinese_script import TRADITIONAL_TO_SIMPLIFIED
from term_db.fold import exact_form, fold_term
from term_db.types import CaseRule, Concept, ConceptId, Conflict, Term, TermKind, TermStatus

TRADITIONAL_FORMS_MAX = 16
"""Traditional spellings derived from one term; ambiguous characters multiply."""

_KIND_ORDER = {kind: order for order, kind in enumerate(TermKind)}
_DERIVED_ORDER = len(_KIND_ORDER)
_SIBILANT = re.compile(r"(?:s|x|z|ch|sh)$")
_CONSONANT_Y = re.compile(r"(?<=[^aeiou\W])y$")


@dataclass(frozen=True, slots=True)
class Variant:
    """One entry of the automaton; `preferred` is None when the surface's own form stands."""

    folded: str
    exact: str | None
    order: int
    concept_id: ConceptId
    lang: str
    preferred: str | None


def compile_variants(
    concepts: Iterable[Concept],
    *,
    traditional_to_simplified: Mapping[str, str] = TRADITIONAL_TO_SIMPLIFIED,
) -> tuple[Variant, ...]:
    """The variants of the approved `concepts` in the matcher's order of preference.

    Exact-case variants come first, then preferred, admitted, deprecated, hidden and derived ones, then
    the concept id decides.
    """
    approved = [concept for concept in concepts if concept.status is TermStatus.APPROVED]
    written = [variant for concept in approved for variant in _written(concept)]
    claimed = {variant.folded for variant in written}
    to_traditional = _inverted(traditional_to_simplified)
    derived = [
        variant
        for concept in sorted(approved, key=lambda concept: concept.concept_id)
        for variant in _derived(concept, to_traditional)
        if variant.folded not in claimed
    ]
    kept: dict[tuple[str, str | None], Variant] = {}
    for variant in sorted([*written, *derived], key=_preference):
        kept.setdefault((variant.folded, variant.exact), variant)
    return tuple(kept.values())


def find_conflicts(concepts: Iterable[Concept]) -> tuple[Conflict, ...]:
    """Variants claimed by more than one of `concepts`, in order of the folded variant.

    Two exact-case terms that differ in letter case don't conflict: one surface is never both.
    """
    claims: dict[str, list[tuple[str | None, ConceptId, str]]] = {}
    for concept in concepts:
        for term in concept.terms:
            exact = exact_form(term.text) if term.case_rule is CaseRule.EXACT else None
            claims.setdefault(fold_term(term.text), []).append(
                (exact, concept.concept_id, term.text)
            )
    found = []
    for folded in sorted(claims):
        rivals = _rivals(claims[folded])
        if rivals:
            found.append(Conflict(claims[folded][0][2], tuple(sorted(rivals))))
    return tuple(found)


def _rivals(claims: Sequence[tuple[str | None, ConceptId, str]]) -> set[ConceptId]:
    everyone = {concept_id for _, concept_id, _ in claims}
    if len(everyone) == 1:
        return set()
    if any(exact is None for exact, _, _ in claims):
        return everyone
    by_form: dict[str | None, set[ConceptId]] = {}
    for exact, concept_id, _ in claims:
        by_form.setdefault(exact, set()).add(concept_id)
    return {rival for owners in by_form.values() if len(owners) > 1 for rival in owners}


def preferred_forms(concept: Concept) -> dict[str, Term]:
    """The preferred term of each language that has one."""
    return {term.lang: term for term in concept.terms if term.kind is TermKind.PREFERRED}


def plural_of(text: str) -> str:
    """The regular English plural of a countable term (its last word)."""
    if _SIBILANT.search(text):
        return f"{text}es"
    if _CONSONANT_Y.search(text):
        return f"{text[:-1]}ies"
    return f"{text}s"


def _preference(variant: Variant) -> tuple[bool, int, str]:
    return variant.exact is None, variant.order, variant.concept_id


def _written(concept: Concept) -> Iterator[Variant]:
    preferred = preferred_forms(concept)
    for term in concept.terms:
        own = preferred.get(term.lang)
        yield Variant(
            folded=fold_term(term.text),
            exact=exact_form(term.text) if term.case_rule is CaseRule.EXACT else None,
            order=_KIND_ORDER[term.kind],
            concept_id=concept.concept_id,
            lang=term.lang,
            preferred=None if own is None else own.text,
        )


def _derived(concept: Concept, to_traditional: Mapping[str, str]) -> Iterator[Variant]:
    preferred = preferred_forms(concept)
    for term in concept.terms:
        if term.case_rule is CaseRule.EXACT:
            continue
        for text, lang, form in _spellings(term, preferred, to_traditional):
            yield Variant(fold_term(text), None, _DERIVED_ORDER, concept.concept_id, lang, form)


def _spellings(
    term: Term, preferred: Mapping[str, Term], to_traditional: Mapping[str, str]
) -> Iterator[tuple[str, str, str | None]]:
    """(text, language, preferred form) of what is derived from `term`."""
    own = preferred.get(term.lang)
    own_text = None if own is None else own.text
    primary = term.lang.split("-")[0].lower()
    if primary == "en":
        respelt = _respelt(term.text)
        if respelt is not None:
            yield respelt, term.lang, own_text
        if term.countable:
            # A plural becomes the plural of the preferred form, or stays: never a singular.
            plural = plural_of(own.text) if own is not None and own.countable else None
            yield plural_of(term.text), term.lang, plural
            if respelt is not None:
                yield plural_of(respelt), term.lang, plural
    elif term.lang.lower() in {"zh", "zh-cn", "zh-hans", "zh-sg"}:
        traditional = preferred.get("zh-Hant")
        form = None if traditional is None else traditional.text
        for text in _traditional_forms(term.text, to_traditional):
            yield text, "zh-Hant", form


def _respelt(text: str) -> str | None:
    if " " in text:
        return text.replace(" ", "-")
    return text.replace("-", " ") if "-" in text.strip("-") else None


def _inverted(traditional_to_simplified: Mapping[str, str]) -> dict[str, str]:
    inverted: dict[str, str] = {}
    for traditional, simplified in traditional_to_simplified.items():
        inverted[simplified] = inverted.get(simplified, "") + traditional
    return inverted


def _traditional_forms(text: str, to_traditional: Mapping[str, str]) -> Iterator[str]:
    choices = [to_traditional.get(character, character) for character in text]
    for form in islice(product(*choices), TRADITIONAL_FORMS_MAX):
        traditional = "".join(form)
        if traditional != text:
            yield traditional
