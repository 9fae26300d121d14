"""The dictionary's source of truth: concepts, terms, their history and the published versions, in SQLite.

The only module that knows `sqlite3`, and never on the path of a request: gateways read snapshots.
Every edit is validated, is one transaction, and leaves a history entry. One `TermStore` belongs to one
thread; any number of processes may have the same file open.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from term_db.errors import (
    CorruptSnapshot,
    InvalidTerm,
    StoreUnavailable,
    TermConflict,
    UnknownConcept,
    UnknownVersion,
)
from term_db.fold import fold_term
from term_db.interchange import concept_from_json, concept_to_json
from term_db.snapshot import Snapshot, compile_snapshot, empty_snapshot
from term_db.snapshot_files import (
    put_in_force,
    read_snapshot,
    stored_versions,
    version_in_force,
    write_snapshot,
)
from term_db.types import (
    CaseRule,
    Change,
    Concept,
    ConceptId,
    Conflict,
    DictionaryStats,
    DictionaryVersion,
    HistoryEntry,
    ImportReport,
    PublishedVersion,
    Term,
    TermAction,
    TermKind,
    TermStatus,
)
from term_db.validation import check_concept
from term_db.variants import find_conflicts

BUSY_TIMEOUT_S = 10.0
"""How long an edit waits for another process's edit."""

LIST_COUNT_MAX = 1000
"""Most concepts or history entries that one listing returns."""

_SINGLE_READS_MAX = 64
"""Concepts of one edit that are read one by one; above it one pass over all is quicker."""

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE concepts (
    concept_id TEXT PRIMARY KEY,
    domain TEXT NOT NULL,
    definition TEXT NOT NULL,
    expert_hint TEXT,
    action TEXT NOT NULL CHECK (action IN ('rewrite', 'tag', 'off')),
    status TEXT NOT NULL CHECK (status IN ('proposed', 'approved', 'deprecated', 'rejected'))
) STRICT, WITHOUT ROWID;
CREATE TABLE terms (
    concept_id TEXT NOT NULL REFERENCES concepts (concept_id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    text TEXT NOT NULL CHECK (text <> ''),
    lang TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('preferred', 'admitted', 'deprecated', 'hidden')),
    case_rule TEXT NOT NULL CHECK (case_rule IN ('fold', 'exact')),
    countable INTEGER NOT NULL CHECK (countable IN (0, 1)),
    note TEXT NOT NULL,
    folded TEXT NOT NULL CHECK (folded <> ''),
    PRIMARY KEY (concept_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX terms_by_folded ON terms (folded);
CREATE UNIQUE INDEX one_preferred_per_lang ON terms (concept_id, lang) WHERE kind = 'preferred';
CREATE TABLE history (
    history_id INTEGER PRIMARY KEY,
    changed_at TEXT NOT NULL,
    actor TEXT NOT NULL,
    concept_id TEXT NOT NULL,
    change TEXT NOT NULL CHECK (change IN ('added', 'changed', 'removed')),
    before TEXT,
    after TEXT
) STRICT;
CREATE INDEX history_by_concept ON history (concept_id, history_id);
CREATE TABLE versions (
    version INTEGER PRIMARY KEY CHECK (version > 0),
    published_at TEXT NOT NULL,
    actor TEXT NOT NULL,
    digest TEXT NOT NULL,
    concept_count INTEGER NOT NULL,
    variant_count INTEGER NOT NULL
) STRICT;
CREATE TABLE activations (
    activation_id INTEGER PRIMARY KEY,
    activated_at TEXT NOT NULL,
    actor TEXT NOT NULL,
    version INTEGER NOT NULL REFERENCES versions (version)
) STRICT;
"""

_CONCEPT_FIELDS = "concept_id, domain, definition, expert_hint, action, status"
_TERM_FIELDS = "concept_id, text, lang, kind, case_rule, countable, note"


def _utc_now() -> datetime:
    return datetime.now(UTC)


class TermStore:
    """The dictionary in the SQLite file `path`, made when missing; snapshots go to `snapshots_dir`.

    Args:
        path: the database file.
        snapshots_dir: where published versions are; ``snapshots`` beside the file by default.
        clock: returns the present, UTC.

    Raises:
        StoreUnavailable: the file can't be opened, isn't a database, or is of a later schema.
    """

    def __init__(
        self,
        path: Path,
        snapshots_dir: Path | None = None,
        *,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._path = path
        self.snapshots_dir = path.parent / "snapshots" if snapshots_dir is None else snapshots_dir
        self._clock = clock
        with self._translated():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the database; the store can't be used afterwards."""
        self._db.close()

    # Concepts

    def upsert(self, concept: Concept, *, actor: str = "") -> Change | None:
        """Adds `concept` or puts it in the place of the one with its id; None when nothing changes.

        Raises:
            InvalidTerm: the concept isn't usable.
            TermConflict: it is approved and claims a variant of another approved concept.
        """
        report = self.import_concepts((concept,), actor=actor)
        if report.added:
            return Change.ADDED
        return Change.CHANGED if report.changed else None

    def add_term(
        self, concept_id: ConceptId, term: Term, *, actor: str = "", domain: str | None = None
    ) -> Concept:
        """Adds `term` to a concept, which is made when `domain` is given; the concept as it is then.

        Raises:
            UnknownConcept: there is no such concept and no `domain` for a new one.
            InvalidTerm, TermConflict: as `upsert`.
        """
        with self._transaction():
            try:
                known = self.get(concept_id)
                concept = replace(known, terms=(*known.terms, term))
            except UnknownConcept:
                if domain is None:
                    raise
                concept = Concept(concept_id, domain, (term,))
            self._import((concept,), replace_all=False, actor=actor)
        return concept

    def remove(self, concept_id: ConceptId, *, actor: str = "") -> None:
        """Removes a concept and its terms; its history stays.

        Raises:
            UnknownConcept: there is no such concept.
        """
        with self._transaction():
            self._record(Change.REMOVED, self.get(concept_id), None, actor)
            self._delete(concept_id)

    def import_concepts(
        self,
        concepts: Sequence[Concept],
        *,
        replace_all: bool = False,
        dry_run: bool = False,
        actor: str = "",
    ) -> ImportReport:
        """Puts `concepts` into the dictionary, all of them or none.

        Args:
            concepts: each replaces the concept with its id, terms included.
            replace_all: concepts that aren't among them are removed.
            dry_run: everything is checked and counted, nothing is kept.
            actor: who did it, for the history.

        Raises:
            InvalidTerm: a concept isn't usable.
            TermConflict: two approved concepts would claim one variant; carries the first such variant.
        """
        with self._transaction(keep=not dry_run):
            return self._import(concepts, replace_all=replace_all, actor=actor)

    def get(self, concept_id: ConceptId) -> Concept:
        """The concept with this id.

        Raises:
            UnknownConcept: there is none.
        """
        found = self._read("WHERE concept_id = ?", (concept_id,))
        if not found:
            raise UnknownConcept(concept_id)
        return found[0]

    def all_concepts(self) -> tuple[Concept, ...]:
        """Every concept, whatever its status, by id."""
        with self._translated():
            return tuple(self._read_all())

    def list_concepts(
        self, *, domain: str | None = None, text: str | None = None, limit: int = LIST_COUNT_MAX
    ) -> tuple[Concept, ...]:
        """Concepts by id, at most `limit`; of one domain, or with `text` in the id or a term (folded)."""
        conditions, values = [], []
        if domain is not None:
            conditions.append("domain = ?")
            values.append(domain)
        if text is not None:
            conditions.append(
                "(instr(concept_id, ?) OR concept_id IN"
                " (SELECT concept_id FROM terms WHERE instr(folded, ?)))"
            )
            values.extend((text, fold_term(text)))
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        bound = str(max(0, min(limit, LIST_COUNT_MAX)))
        return tuple(self._read(f"{where} ORDER BY concept_id LIMIT ?", (*values, bound)))

    def conflicts(self) -> tuple[Conflict, ...]:
        """Variants that several approved or proposed concepts claim, whichever was first."""
        return self._find_conflicts((TermStatus.APPROVED, TermStatus.PROPOSED))

    def history(
        self, concept_id: ConceptId | None = None, *, limit: int = LIST_COUNT_MAX
    ) -> tuple[HistoryEntry, ...]:
        """Edits, newest first, at most `limit`; of one concept when an id is given."""
        where = "" if concept_id is None else "WHERE concept_id = ?"
        values: tuple[object, ...] = () if concept_id is None else (concept_id,)
        bound = max(0, min(limit, LIST_COUNT_MAX))
        rows = self._query(
            "SELECT changed_at, actor, concept_id, change, before, after FROM history"  # noqa: S608 - constants
            f" {where} ORDER BY history_id DESC LIMIT ?",
            (*values, bound),
        )
        return tuple(
            HistoryEntry(
                datetime.fromisoformat(changed_at),
                actor,
                ConceptId(changed_id),
                Change(change),
                None if before is None else concept_from_json(before),
                None if after is None else concept_from_json(after),
            )
            for changed_at, actor, changed_id, change, before, after in rows
        )

    # Versions

    def draft(self) -> Snapshot:
        """What would be published now, as version 0 and without storing it.

        Raises:
            TermConflict: two approved concepts claim one variant.
        """
        self._refuse_conflicts()
        concepts = self.all_concepts()
        return compile_snapshot(concepts, DictionaryVersion(0))

    def publish(self, snapshots_dir: Path | None = None, *, actor: str = "") -> DictionaryVersion:
        """Compiles the dictionary, stores the snapshot and puts it in force; the new version.

        A process that dies on the way leaves the version before in force.

        Raises:
            TermConflict: two approved concepts claim one variant.
            CorruptSnapshot: the compiled dictionary doesn't serve what it stores.
            StoreUnavailable: a file can't be written.
        """
        folder = self.snapshots_dir if snapshots_dir is None else snapshots_dir
        with self._transaction():
            concepts = self._read_all()
            self._refuse_conflicts()
            ((newest,),) = self._query("SELECT coalesce(max(version), 0) FROM versions")
            # Files count too, so that a number isn't reused when the database was lost.
            version = DictionaryVersion(max(int(newest), *stored_versions(folder), 0) + 1)
            snapshot = compile_snapshot(concepts, version)
            write_snapshot(folder, snapshot)
            read_snapshot(folder, version)
            self._db.execute(
                "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?)",
                (
                    version,
                    self._clock().isoformat(),
                    actor,
                    snapshot.digest,
                    snapshot.concept_count,
                    snapshot.variant_count,
                ),
            )
            self._activate(version, actor)
        with self._translated():
            put_in_force(folder, version)
        return version

    def rollback(
        self, version: DictionaryVersion, snapshots_dir: Path | None = None, *, actor: str = ""
    ) -> None:
        """Puts an earlier (or later) published version in force; the concepts stay as edited.

        Raises:
            UnknownVersion: it was never published, or its file is gone.
            CorruptSnapshot: its file is damaged; the version in force stays.
        """
        folder = self.snapshots_dir if snapshots_dir is None else snapshots_dir
        with self._transaction():
            if not self._query("SELECT 1 FROM versions WHERE version = ?", (version,)):
                raise UnknownVersion(version)
            read_snapshot(folder, version)
            self._activate(version, actor)
        with self._translated():
            put_in_force(folder, version)

    def versions(self) -> tuple[PublishedVersion, ...]:
        """Every published version, newest first."""
        current = self._version_in_force()
        rows = self._query(
            "SELECT version, published_at, digest, concept_count, variant_count FROM versions"
            " ORDER BY version DESC"
        )
        return tuple(
            PublishedVersion(
                DictionaryVersion(version),
                datetime.fromisoformat(published_at),
                digest,
                concept_count,
                variant_count,
                version == current,
            )
            for version, published_at, digest, concept_count, variant_count in rows
        )

    def published(self) -> Snapshot:
        """The snapshot in force; an empty one of version 0 when nothing was published.

        Raises:
            CorruptSnapshot, UnknownVersion: it can't be read.
        """
        version = version_in_force(self.snapshots_dir)
        return read_snapshot(self.snapshots_dir, version) if version else empty_snapshot()

    def stats(self) -> DictionaryStats:
        """Sizes of the dictionary and of the version in force."""
        ((concept_count,),) = self._query("SELECT count(*) FROM concepts")
        ((term_count,),) = self._query("SELECT count(*) FROM terms")
        by_lang = self._query("SELECT lang, count(*) FROM terms GROUP BY lang ORDER BY lang")
        by_domain = self._query(
            "SELECT domain, count(*) FROM concepts GROUP BY domain ORDER BY domain"
        )
        served = [version for version in self.versions() if version.is_current]
        return DictionaryStats(
            concept_count,
            term_count,
            tuple(by_lang),
            tuple(by_domain),
            served[0].version if served else DictionaryVersion(0),
            served[0].concept_count if served else 0,
            served[0].variant_count if served else 0,
        )

    # Rules that need the database, inside a transaction

    def _import(
        self, concepts: Sequence[Concept], *, replace_all: bool, actor: str
    ) -> ImportReport:
        for concept in concepts:
            try:
                check_concept(concept)
            except ValueError as exc:
                raise InvalidTerm(str(exc), source=concept.concept_id) from exc
        is_bulk = replace_all or len(concepts) > _SINGLE_READS_MAX
        known = {
            concept.concept_id: concept
            for concept in (self._read_all() if is_bulk else self._read_each(concepts))
        }
        added: list[ConceptId] = []
        changed: list[ConceptId] = []
        removed: list[ConceptId] = []
        unchanged_count = 0
        for concept in concepts:
            before = known.get(concept.concept_id)
            if before == concept:
                unchanged_count += 1
                continue
            (added if before is None else changed).append(concept.concept_id)
            self._record(Change.ADDED if before is None else Change.CHANGED, before, concept, actor)
            self._delete(concept.concept_id)
            self._insert(concept)
            known[concept.concept_id] = concept
        if replace_all:
            removed = sorted(known.keys() - {concept.concept_id for concept in concepts})
            for concept_id in removed:
                self._record(Change.REMOVED, known[concept_id], None, actor)
                self._delete(concept_id)
        self._refuse_conflicts()
        return ImportReport(tuple(added), tuple(changed), tuple(removed), unchanged_count)

    def _read_each(self, concepts: Sequence[Concept]) -> list[Concept]:
        return [
            known
            for concept in concepts
            for known in self._read("WHERE concept_id = ?", (concept.concept_id,))
        ]

    def _find_conflicts(self, statuses: Sequence[TermStatus]) -> tuple[Conflict, ...]:
        """Conflicts among concepts with one of `statuses`: suspects by index, then the exact rule."""
        marks = ", ".join("?" * len(statuses))
        suspects = self._query(
            "SELECT DISTINCT concept_id FROM terms WHERE folded IN (SELECT folded FROM terms"  # noqa: S608 - question marks only
            f" JOIN concepts USING (concept_id) WHERE status IN ({marks})"
            " GROUP BY folded HAVING count(DISTINCT concept_id) > 1)",
            [status.value for status in statuses],
        )
        concepts = [self.get(ConceptId(concept_id)) for (concept_id,) in suspects]
        return find_conflicts(concept for concept in concepts if concept.status in statuses)

    def _refuse_conflicts(self) -> None:
        found = self._find_conflicts((TermStatus.APPROVED,))
        if found:
            first = found[0]
            raise TermConflict(first.variant, first.concept_ids, more_count=len(found) - 1)

    # SQL

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")
        ((schema,),) = self._db.execute("PRAGMA user_version").fetchall()
        if schema == 0:
            self._db.execute("BEGIN IMMEDIATE")
            ((schema,),) = self._db.execute("PRAGMA user_version").fetchall()
            if schema == 0:  # still ours to make: another process may have been first
                for statement in _SCHEMA.split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
            self._db.execute("COMMIT")
        elif schema != _SCHEMA_VERSION:
            raise StoreUnavailable(
                str(self._path),
                f"has schema {schema}, this version knows {_SCHEMA_VERSION}: upgrade Expertgate",
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            raise StoreUnavailable(str(self._path), f"the database refuses: {exc}") from exc
        except OSError as exc:
            place = exc.filename or self._path
            raise StoreUnavailable(str(place), exc.strerror or str(exc)) from exc

    @contextmanager
    def _transaction(self, *, keep: bool = True) -> Iterator[None]:
        with self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT" if keep else "ROLLBACK")

    def _query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._translated():
            return self._db.execute(sql, tuple(values)).fetchall()

    def _read_all(self) -> list[Concept]:
        return self._read("ORDER BY concept_id", ())

    def _read(self, clause: str, values: Sequence[object]) -> list[Concept]:
        """Concepts that `clause`, a constant of this module, selects."""
        chosen = self._query(f"SELECT {_CONCEPT_FIELDS} FROM concepts {clause}", values)  # noqa: S608
        if len(chosen) == 1:
            rows = self._query(
                f"SELECT {_TERM_FIELDS} FROM terms WHERE concept_id = ? ORDER BY position",  # noqa: S608
                (chosen[0][0],),
            )
        else:
            rows = self._query(
                f"SELECT {_TERM_FIELDS} FROM terms ORDER BY concept_id, position"  # noqa: S608
            )
        terms: dict[str, list[Term]] = {}
        for concept_id, text, lang, kind, case_rule, countable, note in rows:
            term = Term(text, lang, TermKind(kind), CaseRule(case_rule), bool(countable), note)
            terms.setdefault(concept_id, []).append(term)
        return [
            Concept(
                ConceptId(concept_id),
                domain,
                tuple(terms.get(concept_id, ())),
                definition,
                expert_hint,
                TermAction(action),
                TermStatus(status),
            )
            for concept_id, domain, definition, expert_hint, action, status in chosen
        ]

    def _insert(self, concept: Concept) -> None:
        self._db.execute(
            f"INSERT INTO concepts ({_CONCEPT_FIELDS}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608
            (
                concept.concept_id,
                concept.domain,
                concept.definition,
                concept.expert_hint,
                concept.action.value,
                concept.status.value,
            ),
        )
        self._db.executemany(
            f"INSERT INTO terms (position, folded, {_TERM_FIELDS})"  # noqa: S608
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    position,
                    fold_term(term.text),
                    concept.concept_id,
                    term.text,
                    term.lang,
                    term.kind.value,
                    term.case_rule.value,
                    int(term.countable),
                    term.note,
                )
                for position, term in enumerate(concept.terms)
            ],
        )

    def _delete(self, concept_id: ConceptId) -> None:
        self._db.execute("DELETE FROM concepts WHERE concept_id = ?", (concept_id,))

    def _record(
        self, change: Change, before: Concept | None, after: Concept | None, actor: str
    ) -> None:
        subject = after or before
        assert subject is not None
        self._db.execute(
            "INSERT INTO history (changed_at, actor, concept_id, change, before, after)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (
                self._clock().isoformat(),
                actor,
                subject.concept_id,
                change.value,
                None if before is None else concept_to_json(before),
                None if after is None else concept_to_json(after),
            ),
        )

    def _activate(self, version: DictionaryVersion, actor: str) -> None:
        self._db.execute(
            "INSERT INTO activations (activated_at, actor, version) VALUES (?, ?, ?)",
            (self._clock().isoformat(), actor, version),
        )

    def _version_in_force(self) -> DictionaryVersion:
        try:
            return version_in_force(self.snapshots_dir)
        except CorruptSnapshot:
            return DictionaryVersion(0)
