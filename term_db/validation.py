"""What a usable term and concept are. Pure; raises `ValueError` with the reason, callers add the place."""

import re
import unicodedata

from term_db.fold import exact_form, fold_term
from term_db.types import CaseRule, Concept, Term, TermKind

TERM_CHARS_MAX = 200
"""Longest term, in code points; bounds what a match can span."""

TERMS_PER_CONCEPT_MAX = 1000
"""Most terms of one concept."""

TEXT_CHARS_MAX = 4000
"""Longest definition or note."""

ID_CHARS_MAX = 200
"""Longest concept id."""

TERM_CHARS_MIN = 2
"""A shorter term must be exact-case: as a folded one it would match everywhere."""

_CONCEPT_ID = re.compile(r"[^\s|\[\]{}<>`\"]+")
_LANG = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{2,8})*")
_EXPERT_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


def check_term(term: Term) -> None:
    """Refuses a term that is empty, too short or long, carries control characters, or can't match.

    Raises:
        ValueError: with the reason.
    """
    text = term.text
    if not text or text.isspace():
        raise ValueError("the term is empty")
    if text != text.strip():
        raise ValueError(f"the term {text!r} begins or ends with white space")
    _check_text(text, "term", TERM_CHARS_MAX)
    if not _LANG.fullmatch(term.lang):
        raise ValueError(f"the language {term.lang!r} isn't a tag such as en, zh or zh-Hant")
    if "`" in text or "\n" in text or "[[" in text or "{{" in text:
        raise ValueError(f"the term {text!r} holds markup, which is never matched in prompts")
    folded = fold_term(text)
    if len(folded) < TERM_CHARS_MIN and term.case_rule is not CaseRule.EXACT:
        raise ValueError(f"the term {text!r} has one character: give it exact case or leave it out")
    if not any(character.isalnum() for character in folded):
        raise ValueError(f"the term {text!r} has no letter or digit")
    _check_text(term.note, "note", TEXT_CHARS_MAX, are_lines_allowed=True)


def check_concept(concept: Concept) -> None:
    """Refuses a concept with unusable fields or terms, or with two preferred terms in a language.

    Raises:
        ValueError: with the reason.
    """
    check_concept_fields(concept.concept_id, concept.domain, concept.expert_hint)
    _check_text(concept.definition, "definition", TEXT_CHARS_MAX, are_lines_allowed=True)
    if not concept.terms:
        raise ValueError(f"concept {concept.concept_id!r} has no term")
    if len(concept.terms) > TERMS_PER_CONCEPT_MAX:
        raise ValueError(f"concept {concept.concept_id!r} has over {TERMS_PER_CONCEPT_MAX} terms")
    preferred: dict[str, str] = {}
    labels: dict[tuple[str, str, str], TermKind] = {}
    for term in concept.terms:
        check_term(term)
        if term.kind is TermKind.PREFERRED:
            known = preferred.setdefault(term.lang, term.text)
            if known != term.text:
                raise ValueError(
                    f"concept {concept.concept_id!r} has two preferred {term.lang} terms:"
                    f" {known!r} and {term.text!r}"
                )
        label = (exact_form(term.text), term.lang, term.case_rule.value)
        if label in labels:
            raise ValueError(f"{term.text!r} stands in concept {concept.concept_id!r} twice")
        labels[label] = term.kind


def check_concept_fields(concept_id: str, domain: str, expert_hint: str | None) -> None:
    """Refuses an unusable concept id, domain or expert hint.

    Raises:
        ValueError: with the reason.
    """
    if not concept_id:
        raise ValueError("the concept id is empty")
    _check_text(concept_id, "concept id", ID_CHARS_MAX)
    if not _CONCEPT_ID.fullmatch(concept_id):
        raise ValueError(f"the concept id {concept_id!r} has a space, quote or bracket")
    if not domain:
        raise ValueError(f"concept {concept_id!r} has no domain")
    _check_text(domain, "domain", ID_CHARS_MAX)
    if expert_hint is not None and not _EXPERT_ID.fullmatch(expert_hint):
        raise ValueError(
            f"the expert hint {expert_hint!r} isn't an expert id (lower-case letters, digits, hyphens)"
        )


def _check_text(text: str, what: str, chars_max: int, *, are_lines_allowed: bool = False) -> None:
    if len(text) > chars_max:
        raise ValueError(f"the {what} has {len(text)} characters, over the limit of {chars_max}")
    if text.isprintable():
        return  # the usual case; what is searched for below is never printable
    for character in text:
        # Control characters, surrogates, line separators, and all that is invisible or turns the writing
        # direction: none may hide in a dictionary entry.
        if character == "\n" and are_lines_allowed:
            continue
        if unicodedata.category(character) in {"Cc", "Cs", "Cf", "Zl", "Zp"}:
            raise ValueError(
                f"the {what} holds the control character U+{ord(character):04X}, which nobody sees"
            )
