"""An immutable, published state of the dictionary: what a gateway serves.

Owns the compiled form and its bytes: magic, format version, the Unicode version of the fold, tables,
automaton, and a checksum over all of it. Whatever is damaged or foreign is refused as a whole, and every
entry that is stored is proven to be served before a snapshot exists. Pure; files are `snapshot_files`'
matter.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from term_db.errors import CorruptSnapshot
from term_db.fold import UNICODE_VERSION
from term_db.matcher import Matcher, Occurrence
from term_db.types import Concept, ConceptId, DictionaryVersion, TermAction
from term_db.variants import Variant, compile_variants

MAGIC = b"EGTERMS\n"
FORMAT_VERSION = 1
_DIGEST_BYTES = hashlib.sha256().digest_size
_LENGTH_BYTES = 8


class _ConceptRow(msgspec.Struct, frozen=True, array_like=True):
    """What is served of one concept."""

    concept_id: str
    action: str
    expert_hint: str | None


class _Tables(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a snapshot, one item per variant except for `concepts`.

    `exact` and `preferred` are None where the variant has none; `owners` indexes `concepts`.
    """

    concepts: list[_ConceptRow]
    folded: list[str]
    exact: list[str | None]
    owners: list[int]
    langs: list[str]
    preferred: list[str | None]


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The readable head of a snapshot file."""

    format: int
    unicode: str
    version: int
    digest: str
    concept_count: int
    variant_count: int
    tables_bytes: int
    automaton_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A dictionary ready to match. `digest` identifies the content, whatever its version number.

    `concept_count` counts the concepts that are served, `variant_count` the automaton's entries, derived
    spellings included.
    """

    version: DictionaryVersion
    digest: str
    concept_count: int
    variant_count: int
    matcher: Matcher
    _tables: _Tables

    def find(self, text: str) -> list[Occurrence]:
        """The chosen occurrences in `text`; see `Matcher.find`."""
        return self.matcher.find(text)

    def owner_of(self, index: int) -> int:
        """Which concept variant number `index` belongs to, as a number within this snapshot."""
        return self._tables.owners[index]

    def rewrite_of(self, index: int) -> str | None:
        """What variant number `index` is rewritten to; None when its concept isn't rewritten."""
        tables = self._tables
        if tables.concepts[tables.owners[index]].action != _REWRITE:
            return None
        return tables.preferred[index]

    def entry(self, index: int) -> tuple[ConceptId, str, str | None, TermAction, str | None]:
        """Concept id, language, preferred form, action and expert hint of variant number `index`."""
        tables = self._tables
        concept = tables.concepts[tables.owners[index]]
        return (
            ConceptId(concept.concept_id),
            tables.langs[index],
            tables.preferred[index],
            _ACTIONS[concept.action],
            concept.expert_hint,
        )


_REWRITE = TermAction.REWRITE.value
_ACTIONS = {action.value: action for action in TermAction}


def compile_snapshot(concepts: Iterable[Concept], version: DictionaryVersion) -> Snapshot:
    """A snapshot of the approved `concepts`.

    Raises:
        CorruptSnapshot: a variant isn't found by the automaton that was built of it.
    """
    approved = sorted(concepts, key=lambda concept: concept.concept_id)
    tables = _tables(approved, compile_variants(approved))
    digest = hashlib.sha256(msgspec.msgpack.encode(tables)).hexdigest()
    return _snapshot(version, tables, "compilation", digest=digest, automaton=None)


def empty_snapshot() -> Snapshot:
    """Version 0: the dictionary before anything was published."""
    return compile_snapshot((), DictionaryVersion(0))


def serialise(snapshot: Snapshot) -> bytes:
    """The file form of `snapshot`."""
    tables = msgspec.msgpack.encode(snapshot._tables)  # noqa: SLF001 - the codec of this class
    automaton = snapshot.matcher.serialise()
    header = msgspec.json.encode(
        _Header(
            format=FORMAT_VERSION,
            unicode=UNICODE_VERSION,
            version=snapshot.version,
            digest=snapshot.digest,
            concept_count=snapshot.concept_count,
            variant_count=snapshot.variant_count,
            tables_bytes=len(tables),
            automaton_bytes=len(automaton),
        )
    )
    size = len(header).to_bytes(_LENGTH_BYTES, "big")
    content = b"".join((MAGIC, size, header, tables, automaton))
    return content + hashlib.sha256(content).digest()


def deserialise(data: bytes, *, source: str) -> Snapshot:
    """The snapshot whose file form is `data`; `source` names it in errors.

    Raises:
        CorruptSnapshot: the checksum, a count, the format or the Unicode version isn't as it must be.
    """
    if not data.startswith(MAGIC):
        raise CorruptSnapshot(source, "isn't a dictionary snapshot")
    content = memoryview(data)[:-_DIGEST_BYTES]
    if hashlib.sha256(content).digest() != data[-_DIGEST_BYTES:]:
        raise CorruptSnapshot(source, "is truncated or damaged: its checksum doesn't match")
    header_start = len(MAGIC) + _LENGTH_BYTES
    header_end = header_start + int.from_bytes(content[len(MAGIC) : header_start], "big")
    try:
        header = msgspec.json.decode(content[header_start:header_end], type=_Header)
        if header.format != FORMAT_VERSION:
            raise CorruptSnapshot(source, f"has the unknown format {header.format}")
        if header.unicode != UNICODE_VERSION:
            raise CorruptSnapshot(
                source,
                f"was folded with Unicode {header.unicode}, this process has {UNICODE_VERSION}:"
                " publish the dictionary again with this version of Python",
            )
        tables_end = header_end + header.tables_bytes
        encoded = content[header_end:tables_end]
        if hashlib.sha256(encoded).hexdigest() != header.digest:
            raise CorruptSnapshot(source, "has tables that its digest doesn't fit")
        tables = msgspec.msgpack.decode(encoded, type=_Tables)
    except msgspec.MsgspecError as exc:
        raise CorruptSnapshot(source, f"has an unreadable table: {exc}") from exc
    automaton = bytes(content[tables_end:])
    version = DictionaryVersion(header.version)
    snapshot = _snapshot(version, tables, source, digest=header.digest, automaton=automaton)
    expected = (header.concept_count, header.variant_count, header.automaton_bytes)
    if expected != (snapshot.concept_count, snapshot.variant_count, len(automaton)):
        raise CorruptSnapshot(source, "serves another number of terms than it stores")
    return snapshot


def _tables(concepts: Sequence[Concept], variants: Sequence[Variant]) -> _Tables:
    served = {variant.concept_id for variant in variants}
    rows = [
        _ConceptRow(concept.concept_id, concept.action.value, concept.expert_hint)
        for concept in concepts
        if concept.concept_id in served
    ]
    index_of = {row.concept_id: index for index, row in enumerate(rows)}
    return _Tables(
        concepts=rows,
        folded=[variant.folded for variant in variants],
        exact=[variant.exact for variant in variants],
        owners=[index_of[variant.concept_id] for variant in variants],
        langs=[variant.lang for variant in variants],
        preferred=[variant.preferred for variant in variants],
    )


def _snapshot(
    version: DictionaryVersion,
    tables: _Tables,
    source: str,
    *,
    digest: str,
    automaton: bytes | None,
) -> Snapshot:
    count = len(tables.folded)
    columns = (tables.exact, tables.owners, tables.langs, tables.preferred)
    if any(len(column) != count for column in columns):
        raise CorruptSnapshot(source, "has columns of different lengths")
    if tables.owners and not 0 <= min(tables.owners) <= max(tables.owners) < len(tables.concepts):
        raise CorruptSnapshot(source, "has a term without a concept")
    if any(concept.action not in _ACTIONS for concept in tables.concepts):
        raise CorruptSnapshot(source, "has a concept with an unknown action")
    try:
        matcher = Matcher(tables.folded, tables.exact, automaton)
    except ValueError as exc:
        raise CorruptSnapshot(source, f"has an unreadable automaton: {exc}") from exc
    if automaton is None:
        # Proven once, when the snapshot is made; afterwards the checksum stands for it.
        for index, folded in enumerate(tables.folded):
            if not matcher.serves(index):
                raise CorruptSnapshot(source, f"doesn't serve its variant {folded!r}")
    return Snapshot(
        version=version,
        digest=digest,
        concept_count=len(tables.concepts),
        variant_count=count,
        matcher=matcher,
        _tables=tables,
    )
