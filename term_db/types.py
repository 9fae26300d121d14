"""The nouns of the term dictionary: concepts, their terms (variants), spans and matches.

Owns the vocabulary that `term_db` decides about. Holds no behaviour beyond validity and no I/O.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType

ConceptId = NewType("ConceptId", str)
"""Identity of a concept, e.g. ``algo:sorting:quick``."""

DictionaryVersion = NewType("DictionaryVersion", int)
"""Number of a published snapshot; grows by one per publication, never reused."""


class TermStatus(StrEnum):
    """Life-cycle state of a concept."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    DEPRECATED = "deprecated"
    REJECTED = "rejected"


class TermKind(StrEnum):
    """Administrative status of one term of a concept (TBX `administrativeStatus`, SKOS labels)."""

    PREFERRED = "preferred"
    ADMITTED = "admitted"
    DEPRECATED = "deprecated"
    HIDDEN = "hidden"


class TermAction(StrEnum):
    """What happens to a matched term: replaced by its preferred form, only tagged, or ignored."""

    REWRITE = "rewrite"
    TAG = "tag"
    OFF = "off"


class CaseRule(StrEnum):
    """Whether letter case matters when a term is matched."""

    FOLD = "fold"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Term:
    """One written form of a concept in one language."""

    text: str
    lang: str
    kind: TermKind = TermKind.ADMITTED
    case_rule: CaseRule = CaseRule.FOLD
    countable: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Concept:
    """A meaning with its terms; `expert_hint` is a routing hint, `domain` a subject field."""

    concept_id: ConceptId
    domain: str
    terms: tuple[Term, ...]
    definition: str = ""
    expert_hint: str | None = None
    action: TermAction = TermAction.REWRITE
    status: TermStatus = TermStatus.APPROVED


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Half-open range of code points ``[start, end)`` in a text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TermMatch:
    """One dictionary term found in a text.

    `span` is in code points of the text as given; `surface` is that slice; `preferred` is the preferred
    form of the concept in the language the variant was written in (the surface's own form when the
    concept has none); `action` is what normalisation may do with it.
    """

    span: Span
    surface: str
    concept_id: ConceptId
    lang: str
    preferred: str
    action: TermAction
    expert_hint: str | None = None


@dataclass(frozen=True, slots=True)
class NormalisedText:
    """A text after normalisation: the text to send, and every match in the *original* text."""

    text: str
    matches: tuple[TermMatch, ...]
    rewritten_count: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """One variant that several concepts claim; `variant` is one of its written forms."""

    variant: str
    concept_ids: tuple[ConceptId, ...]


class Change(StrEnum):
    """What one edit did to a concept."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One edit of one concept: when, by whom, and the concept before and after it."""

    changed_at: datetime
    actor: str
    concept_id: ConceptId
    change: Change
    before: Concept | None
    after: Concept | None


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did, or with a dry run would do, to the concepts of the dictionary."""

    added: tuple[ConceptId, ...]
    changed: tuple[ConceptId, ...]
    removed: tuple[ConceptId, ...]
    unchanged_count: int


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A published snapshot; `is_current` marks the one in force. `digest` identifies its content."""

    version: DictionaryVersion
    published_at: datetime
    digest: str
    concept_count: int
    variant_count: int
    is_current: bool


@dataclass(frozen=True, slots=True)
class DictionaryStats:
    """Sizes of the source of truth and of the version in force (0: none was published)."""

    concept_count: int
    term_count: int
    terms_by_lang: tuple[tuple[str, int], ...]
    concepts_by_domain: tuple[tuple[str, int], ...]
    version: DictionaryVersion
    served_concept_count: int
    served_variant_count: int
