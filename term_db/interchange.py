"""Dictionaries as files: CSV and TSV for people, JSON Lines without loss. Parses and formats text only.

One row of a table is one term; ``domain``, ``action``, ``expert_hint``, ``definition`` and ``status``
belong to the concept and are given on any of its rows, blank elsewhere. Each problem names its line; all
problems of a file are reported together. Whether variants collide between concepts is decided by
`variants.find_conflicts`; files and transactions are others' matter.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

import msgspec

from term_db.errors import InvalidTerm
from term_db.types import (
    CaseRule,
    Concept,
    ConceptId,
    Term,
    TermAction,
    TermKind,
    TermStatus,
)
from term_db.validation import check_concept, check_concept_fields, check_term

_E = TypeVar("_E", bound=StrEnum)

COLUMNS = (
    "concept_id",
    "domain",
    "lang",
    "term",
    "kind",
    "case",
    "action",
    "expert_hint",
    "definition",
    "note",
)
"""Header of a table, in this order when written; read in any order."""

OPTIONAL_COLUMNS = ("status", "countable")
"""Columns that are read when present, and written when some row needs them."""

PROBLEMS_MAX = 100
"""Problems reported per file; a file of the wrong kind would have one per line."""

FIELD_CHARS_MAX = 1 << 16
"""Longest field of a table, which is far beyond any definition."""


class TableFormat(StrEnum):
    """The file formats that are read and written."""

    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True)
class ParsedDictionary:
    """What a file holds: concepts in order of appearance, the line of each term, and what is wrong.

    `lines` maps (concept id, term text) to the line; `problems` is empty when the file can be used.
    """

    concepts: tuple[Concept, ...]
    lines: Mapping[tuple[ConceptId, str], int]
    problems: tuple[InvalidTerm, ...]


@dataclass(slots=True)
class _Draft:
    """A concept while its rows are read."""

    line: int
    fields: dict[str, str] = field(default_factory=dict)
    terms: list[Term] = field(default_factory=list)


def parse(text: str, table_format: TableFormat, *, source: str) -> ParsedDictionary:
    """The dictionary in `text`; `source` names it in problems."""
    if table_format is TableFormat.JSONL:
        return parse_jsonl(text, source=source)
    return parse_table(
        text, source=source, delimiter="\t" if table_format is TableFormat.TSV else ","
    )


def format_concepts(concepts: Iterable[Concept], table_format: TableFormat) -> str:
    """The file form of `concepts`."""
    if table_format is TableFormat.JSONL:
        return format_jsonl(concepts)
    return format_table(concepts, delimiter="\t" if table_format is TableFormat.TSV else ",")


def parse_table(text: str, *, source: str, delimiter: str) -> ParsedDictionary:
    """Reads CSV (RFC 4180) or, with a tab as `delimiter`, TSV; a byte order mark is skipped."""
    problems: list[InvalidTerm] = []
    drafts: dict[str, _Draft] = {}
    lines: dict[tuple[ConceptId, str], int] = {}
    csv.field_size_limit(FIELD_CHARS_MAX)
    reader = csv.reader(
        io.StringIO(text.removeprefix("\ufeff"), newline=""), delimiter=delimiter, strict=True
    )
    columns: list[str] | None = None
    last_line = 0
    try:
        for row in reader:
            line, last_line = last_line + 1, reader.line_num
            if not any(cell.strip() for cell in row):
                continue
            if columns is None:
                columns = _columns(row, source, line)
                continue
            try:
                _read_row(_cells(row, columns), drafts, lines, line)
            except ValueError as exc:
                problems.append(InvalidTerm(str(exc), source=source, line=line))
                if len(problems) == PROBLEMS_MAX:
                    break
    except csv.Error as exc:
        problems.append(
            InvalidTerm(f"not readable as a table: {exc}", source=source, line=reader.line_num)
        )
    except InvalidTerm as exc:
        return ParsedDictionary((), {}, (exc,))
    if columns is None and not problems:
        problems.append(InvalidTerm("the file is empty: it needs a header", source=source, line=1))
    concepts = []
    for concept_id, draft in drafts.items():
        try:
            concepts.append(_concept(concept_id, draft))
        except ValueError as exc:
            problems.append(InvalidTerm(str(exc), source=source, line=draft.line))
    problems.sort(key=lambda problem: problem.line)
    return ParsedDictionary(tuple(concepts), lines, tuple(problems[:PROBLEMS_MAX]))


def format_table(concepts: Iterable[Concept], *, delimiter: str) -> str:
    """Writes one row per term; `status` and `countable` columns appear when they carry anything."""
    rows = [(concept, term) for concept in concepts for term in concept.terms]
    columns = list(COLUMNS)
    if any(concept.status is not TermStatus.APPROVED for concept, _ in rows):
        columns.append("status")
    if any(term.countable for _, term in rows):
        columns.append("countable")
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    for concept, term in rows:
        values = {
            "concept_id": concept.concept_id,
            "domain": concept.domain,
            "lang": term.lang,
            "term": term.text,
            "kind": term.kind.value,
            "case": term.case_rule.value,
            "action": concept.action.value,
            "expert_hint": concept.expert_hint or "",
            "definition": concept.definition,
            "note": term.note,
            "status": concept.status.value,
            "countable": "yes" if term.countable else "",
        }
        writer.writerow([values[column] for column in columns])
    return out.getvalue()


def parse_jsonl(text: str, *, source: str) -> ParsedDictionary:
    """Reads one concept per line, as `format_jsonl` writes it; blank lines are skipped."""
    problems: list[InvalidTerm] = []
    concepts: dict[ConceptId, Concept] = {}
    lines: dict[tuple[ConceptId, str], int] = {}
    for line, content in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not content.strip():
            continue
        try:
            concept = concept_from_json(content)
            if concept.concept_id in concepts:
                raise ValueError(f"concept {concept.concept_id!r} stands in the file twice")
        except ValueError as exc:
            problems.append(InvalidTerm(str(exc), source=source, line=line))
            if len(problems) == PROBLEMS_MAX:
                break
            continue
        concepts[concept.concept_id] = concept
        lines.update({(concept.concept_id, term.text): line for term in concept.terms})
    return ParsedDictionary(tuple(concepts.values()), lines, tuple(problems))


def format_jsonl(concepts: Iterable[Concept]) -> str:
    """Writes one concept per line with every field."""
    return "".join(f"{concept_to_json(concept)}\n" for concept in concepts)


def concept_to_json(concept: Concept) -> str:
    """One line of JSON that `concept_from_json` turns back into an equal concept."""
    return msgspec.json.encode(concept).decode()


def concept_from_json(content: str) -> Concept:
    """The concept in a line of JSON.

    Raises:
        ValueError: it isn't JSON, has unknown or missing fields, or isn't a valid concept.
    """
    try:
        data = json.loads(content)
    except json.JSONDecodeError as exc:
        raise ValueError(f"not JSON: {exc}") from exc
    fields = _members(data, "concept", {"concept_id", "domain", "terms"}, _CONCEPT_MEMBERS)
    if not isinstance(fields["terms"], list):
        raise ValueError("terms must be a list")
    terms = tuple(_term_from_json(item) for item in fields["terms"])
    hint = fields.get("expert_hint")
    concept = Concept(
        concept_id=ConceptId(_text(fields, "concept_id")),
        domain=_text(fields, "domain"),
        terms=terms,
        definition=_text(fields, "definition"),
        expert_hint=None if hint is None else _text(fields, "expert_hint"),
        action=_choice(TermAction, _text(fields, "action"), "action", TermAction.REWRITE),
        status=_choice(TermStatus, _text(fields, "status"), "status", TermStatus.APPROVED),
    )
    check_concept(concept)
    return concept


_CONCEPT_MEMBERS = frozenset(Concept.__dataclass_fields__)
_TERM_MEMBERS = frozenset(Term.__dataclass_fields__)


def _term_from_json(data: object) -> Term:
    fields = _members(data, "term", {"text", "lang"}, _TERM_MEMBERS)
    countable = fields.get("countable", False)
    if not isinstance(countable, bool):
        raise ValueError("countable must be true or false")
    return Term(
        text=_text(fields, "text"),
        lang=_text(fields, "lang"),
        kind=_choice(TermKind, _text(fields, "kind"), "kind", TermKind.ADMITTED),
        case_rule=_choice(CaseRule, _text(fields, "case_rule"), "case_rule", CaseRule.FOLD),
        countable=countable,
        note=_text(fields, "note"),
    )


def _members(
    data: object, what: str, required: set[str], known: frozenset[str]
) -> dict[str, object]:
    if not isinstance(data, dict):
        raise ValueError(f"a {what} must be an object")
    unknown = sorted(str(name) for name in data.keys() - known)
    missing = sorted(required - data.keys())
    if unknown:
        raise ValueError(f"a {what} has no field {unknown[0]!r}")
    if missing:
        raise ValueError(f"the {what} lacks the field {missing[0]!r}")
    return data


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string")
    return value


def _choice(kind: type[_E], text: str, name: str, default: _E) -> _E:
    """The member that `text` names; `default` when it is blank."""
    if not text:
        return default
    try:
        return kind(text.lower())
    except ValueError:
        names = ", ".join(member.value for member in kind)
        raise ValueError(f"{name} must be one of {names}, not {text!r}") from None


def _columns(row: Sequence[str], source: str, line: int) -> list[str]:
    columns = [cell.strip().lower() for cell in row]
    known = {*COLUMNS, *OPTIONAL_COLUMNS}
    unknown = [column for column in columns if column not in known]
    missing = [column for column in ("concept_id", "lang", "term") if column not in columns]
    if missing:
        raise InvalidTerm(
            f"the header lacks {', '.join(missing)}; it must be {', '.join(COLUMNS)}",
            source=source,
            line=line,
        )
    if unknown:
        raise InvalidTerm(
            f"the header has the unknown column {unknown[0]!r}", source=source, line=line
        )
    if len(set(columns)) != len(columns):
        raise InvalidTerm("the header names a column twice", source=source, line=line)
    return columns


def _cells(row: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    if len(row) > len(columns):
        raise ValueError(f"has {len(row)} fields, the header {len(columns)}")
    return dict(zip(columns, (cell.strip() for cell in row), strict=False))


def _read_row(
    cells: Mapping[str, str],
    drafts: dict[str, _Draft],
    lines: dict[tuple[ConceptId, str], int],
    line: int,
) -> None:
    """Adds one row to the drafts. Raises ValueError when it can't be used."""
    concept_id = cells.get("concept_id", "")
    term = Term(
        text=cells.get("term", ""),
        lang=cells.get("lang", ""),
        kind=_choice(TermKind, cells.get("kind", ""), "kind", TermKind.ADMITTED),
        case_rule=_choice(CaseRule, cells.get("case", ""), "case", CaseRule.FOLD),
        countable=_yes(cells.get("countable", "")),
        note=cells.get("note", ""),
    )
    check_term(term)
    shared = {
        name: cells[name]
        for name in ("domain", "action", "expert_hint", "definition", "status")
        if cells.get(name)
    }
    check_concept_fields(concept_id, shared.get("domain", "-"), shared.get("expert_hint"))
    _choice(TermAction, shared.get("action", ""), "action", TermAction.REWRITE)
    _choice(TermStatus, shared.get("status", ""), "status", TermStatus.APPROVED)
    draft = drafts.setdefault(concept_id, _Draft(line))
    for name, value in shared.items():
        known = draft.fields.setdefault(name, value)
        if known != value:
            raise ValueError(f"concept {concept_id!r} has {name} {known!r} on an earlier line")
    for other in draft.terms:
        if (other.text, other.lang) == (term.text, term.lang):
            raise ValueError(f"{term.text!r} stands in concept {concept_id!r} twice")
        if other.lang == term.lang and other.kind is term.kind is TermKind.PREFERRED:
            raise ValueError(
                f"concept {concept_id!r} has the preferred {term.lang} term {other.text!r} already"
            )
    draft.terms.append(term)
    lines[ConceptId(concept_id), term.text] = line


def _concept(concept_id: str, draft: _Draft) -> Concept:
    fields = draft.fields
    concept = Concept(
        concept_id=ConceptId(concept_id),
        domain=fields.get("domain", ""),
        terms=tuple(draft.terms),
        definition=fields.get("definition", ""),
        expert_hint=fields.get("expert_hint"),
        action=TermAction(fields.get("action", TermAction.REWRITE)),
        status=TermStatus(fields.get("status", TermStatus.APPROVED)),
    )
    check_concept(concept)
    return concept


def _yes(text: str) -> bool:
    value = text.lower()
    if value in {"yes", "true", "1"}:
        return True
    if value in {"", "no", "false", "0"}:
        return False
    raise ValueError(f"countable must be yes or no, not {text!r}")
