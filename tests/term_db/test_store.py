"""The source of truth: edits whole or not at all, history, versions."""

import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

from term_db.errors import (
    CorruptSnapshot,
    InvalidTerm,
    StoreUnavailable,
    TermConflict,
    UnknownConcept,
    UnknownVersion,
)
from term_db.snapshot_files import snapshot_path, stored_versions, version_in_force
from term_db.store import TermStore
from term_db.types import (
    CaseRule,
    Change,
    Concept,
    ConceptId,
    Conflict,
    HistoryEntry,
    ImportReport,
    Term,
    TermAction,
    TermKind,
    TermStatus,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
QUICK = Concept(
    ConceptId("quick"),
    "programming",
    (
        Term("quicksort", "en", TermKind.PREFERRED, countable=True, note="one word"),
        Term("QS", "en", TermKind.HIDDEN, CaseRule.EXACT),
        Term("快排", "zh"),
    ),
    "a sort",
    "python-algorithm",
    TermAction.TAG,
)
MERGE = Concept(ConceptId("merge"), "programming", (Term("merge sort", "en"),))
RIVAL = Concept(ConceptId("rival"), "law", (Term("ＱＵＩＣＫＳＯＲＴ", "en"),))


@pytest.fixture
def store(tmp_path):
    with TermStore(tmp_path / "terms.sqlite", clock=lambda: NOON) as opened:
        yield opened


def test_concept_comes_back_whole(store):
    assert store.upsert(QUICK) is Change.ADDED
    assert store.get(QUICK.concept_id) == QUICK
    assert store.all_concepts() == (QUICK,)


def test_same_concept_again_changes_nothing(store):
    store.upsert(QUICK, actor="li")
    assert store.upsert(QUICK, actor="li") is None
    assert len(store.history()) == 1


def test_history_tells_before_and_after_newest_first(store):
    store.upsert(MERGE, actor="li")
    grown = store.add_term(MERGE.concept_id, Term("归并排序", "zh"), actor="wang")
    store.remove(MERGE.concept_id, actor="li")
    assert store.history(MERGE.concept_id) == (
        HistoryEntry(NOON, "li", MERGE.concept_id, Change.REMOVED, grown, None),
        HistoryEntry(NOON, "wang", MERGE.concept_id, Change.CHANGED, MERGE, grown),
        HistoryEntry(NOON, "li", MERGE.concept_id, Change.ADDED, None, MERGE),
    )
    assert store.history(limit=1)[0].change is Change.REMOVED
    assert store.history(ConceptId("other")) == ()


def test_unknown_concepts_are_named(store):
    for attempt in (store.get, store.remove, lambda it: store.add_term(it, Term("ab", "en"))):
        with pytest.raises(UnknownConcept, match="'nothing'"):
            attempt(ConceptId("nothing"))


def test_term_may_found_a_concept(store):
    made = store.add_term(ConceptId("new"), Term("ab", "en"), domain="law")
    assert (
        store.get(ConceptId("new")) == made == Concept(ConceptId("new"), "law", (Term("ab", "en"),))
    )


def test_import_is_all_or_nothing(store):
    store.upsert(MERGE)
    with pytest.raises(TermConflict) as caught:
        store.import_concepts([QUICK, RIVAL])
    assert caught.value.concept_ids == ("quick", "rival")
    with pytest.raises(InvalidTerm):
        store.import_concepts([QUICK, Concept(ConceptId("bad"), "law", (Term("x", "en"),))])
    assert store.all_concepts() == (MERGE,)
    assert len(store.history()) == 1


def test_dry_run_reports_and_keeps_nothing(store):
    store.upsert(MERGE)
    report = store.import_concepts([QUICK], replace_all=True, dry_run=True)
    assert report == ImportReport((QUICK.concept_id,), (), (MERGE.concept_id,), 0)
    assert store.all_concepts() == (MERGE,)


def test_import_counts_and_replaces(store):
    store.upsert(MERGE)
    store.upsert(QUICK)
    changed = Concept(QUICK.concept_id, "law", QUICK.terms)
    assert store.import_concepts([changed]) == ImportReport((), (QUICK.concept_id,), (), 0)
    report = store.import_concepts([changed], replace_all=True)
    assert report == ImportReport((), (), (MERGE.concept_id,), 1)
    assert store.all_concepts() == (changed,)


def test_many_concepts_are_imported_alike(store):
    many = [
        Concept(ConceptId(f"c{number:03}"), "law", (Term(f"term {number}", "en"),))
        for number in range(200)
    ]
    assert len(store.import_concepts(many).added) == 200
    assert store.import_concepts(many).unchanged_count == 200
    assert store.all_concepts() == tuple(many)


def test_proposed_rivals_are_listed_and_not_refused(store):
    proposed = Concept(RIVAL.concept_id, "law", RIVAL.terms, status=TermStatus.PROPOSED)
    store.import_concepts([QUICK, proposed])
    assert store.conflicts() == (Conflict("quicksort", (QUICK.concept_id, RIVAL.concept_id)),)
    with pytest.raises(TermConflict, match="claimed by quick, rival"):
        store.upsert(RIVAL)


def test_exact_terms_that_differ_in_case_live_together(store):
    exact = [
        Concept(ConceptId(text), "law", (Term(text, "en", case_rule=CaseRule.EXACT),))
        for text in ("Go", "GO")
    ]
    store.import_concepts(exact)
    assert store.conflicts() == ()


def test_listing_filters_by_domain_and_text(store):
    store.import_concepts([QUICK, MERGE])
    assert store.list_concepts(text="QUICKS") == (QUICK,)
    assert store.list_concepts(text="merg") == (MERGE,)
    assert store.list_concepts(domain="law") == ()
    assert store.list_concepts(limit=1) == (MERGE,)


def test_versions_grow_and_roll_back(store):
    folder = store.snapshots_dir
    assert version_in_force(folder) == 0
    assert store.published().variant_count == 0
    store.upsert(QUICK)
    assert store.publish() == 1
    store.upsert(MERGE)
    assert store.publish(actor="li") == 2
    assert [match.entry for match in store.published().find("merge sort")] != []
    store.rollback(1)
    assert version_in_force(folder) == 1
    assert store.published().find("merge sort") == []
    assert [(item.version, item.is_current) for item in store.versions()] == [(2, False), (1, True)]
    assert store.publish() == 3
    assert stored_versions(folder) == (1, 2, 3)


def test_version_number_is_not_reused_when_the_database_is_lost(store, tmp_path):
    store.upsert(QUICK)
    store.publish()
    with TermStore(tmp_path / "other.sqlite", store.snapshots_dir) as other:
        assert other.publish() == 2


def test_rollback_needs_a_published_and_sound_version(store):
    store.upsert(QUICK)
    store.publish()
    store.publish()
    with pytest.raises(UnknownVersion, match="9"):
        store.rollback(9)
    snapshot_path(store.snapshots_dir, 1).write_bytes(b"broken")
    with pytest.raises(CorruptSnapshot):
        store.rollback(1)
    assert version_in_force(store.snapshots_dir) == 2


def test_stats_count_what_is_stored_and_served(store):
    store.import_concepts([QUICK, MERGE])
    store.publish()
    stats = store.stats()
    assert (stats.concept_count, stats.term_count) == (2, 4)
    assert stats.terms_by_lang == (("en", 3), ("zh", 1))
    assert stats.concepts_by_domain == (("programming", 2),)
    # Derived: quicksorts, merge-sort.
    assert (stats.version, stats.served_concept_count, stats.served_variant_count) == (1, 2, 6)


def test_draft_shows_unpublished_edits(store):
    store.upsert(QUICK)
    assert len(store.draft().find("quicksort 快排")) == 2
    assert store.versions() == ()


def test_two_connections_see_each_other(store, tmp_path):
    with TermStore(tmp_path / "terms.sqlite", clock=lambda: NOON + timedelta(1)) as other:
        other.upsert(QUICK)
    assert store.get(QUICK.concept_id) == QUICK
    assert store.history()[0].changed_at == NOON + timedelta(1)


def test_file_that_is_no_database_is_named(tmp_path):
    path = tmp_path / "terms.sqlite"
    path.write_bytes(b"this is not a database, not at all, by no means" * 40)
    with pytest.raises(StoreUnavailable, match=r"terms\.sqlite: the database refuses"):
        TermStore(path)


def test_later_schema_is_refused(tmp_path):
    path = tmp_path / "terms.sqlite"
    TermStore(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreUnavailable, match="schema 99"):
        TermStore(path)


def test_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable):
        TermStore(tmp_path / "file" / "terms.sqlite")
