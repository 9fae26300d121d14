"""The served dictionary: follows what is published, never falls to a damaged file."""

import pytest

from term_db.dictionary import Dictionary
from term_db.errors import CorruptSnapshot
from term_db.snapshot import compile_snapshot
from term_db.snapshot_files import current_path, put_in_force, snapshot_path, write_snapshot
from term_db.types import Concept, ConceptId, DictionaryVersion, Term


def publish(folder, version, *texts):
    concept = Concept(ConceptId("c"), "test", tuple(Term(text, "en") for text in texts))
    write_snapshot(folder, compile_snapshot([concept], DictionaryVersion(version)))
    put_in_force(folder, DictionaryVersion(version))


def test_nothing_published_is_an_empty_dictionary(tmp_path):
    dictionary = Dictionary(tmp_path / "missing")
    assert dictionary.snapshot.version == 0
    assert dictionary.refresh() is False


def test_refresh_takes_each_new_version_once(tmp_path):
    dictionary = Dictionary(tmp_path)
    publish(tmp_path, 1, "qsort")
    assert dictionary.refresh() is True
    assert dictionary.refresh() is False
    held = dictionary.snapshot
    publish(tmp_path, 2, "mergesort")
    assert dictionary.refresh() is True
    assert (held.version, dictionary.snapshot.version) == (1, 2)
    assert held.find("qsort") != []
    put_in_force(tmp_path, DictionaryVersion(1))
    assert dictionary.refresh() is True
    assert dictionary.snapshot.version == 1


def test_published_version_is_there_from_the_start(tmp_path):
    publish(tmp_path, 3, "qsort")
    assert Dictionary(tmp_path).snapshot.version == 3


@pytest.mark.parametrize("damage", [b"", b"EGTERMS\nbroken", b"x" * 1000])
def test_damaged_version_never_replaces_a_good_one(tmp_path, damage):
    publish(tmp_path, 1, "qsort")
    dictionary = Dictionary(tmp_path)
    publish(tmp_path, 2, "mergesort")
    whole = snapshot_path(tmp_path, 2).read_bytes()
    snapshot_path(tmp_path, 2).write_bytes(damage)
    with pytest.raises(CorruptSnapshot, match=r"2\.terms"):
        dictionary.refresh()
    assert dictionary.snapshot.version == 1
    assert dictionary.refresh() is False, "reported once, not twice a second"
    snapshot_path(tmp_path, 2).write_bytes(whole)
    assert dictionary.refresh() is True
    assert dictionary.snapshot.version == 2


def test_missing_version_is_reported(tmp_path):
    publish(tmp_path, 1, "qsort")
    dictionary = Dictionary(tmp_path)
    put_in_force(tmp_path, DictionaryVersion(5))
    with pytest.raises(CorruptSnapshot, match="names version 5"):
        dictionary.refresh()
    assert dictionary.snapshot.version == 1


@pytest.mark.parametrize("content", [b"", b"latest\n", b"-1", b"\xff\xfe", "１".encode()])
def test_unreadable_pointer_is_reported(tmp_path, content):
    publish(tmp_path, 1, "qsort")
    dictionary = Dictionary(tmp_path)
    current_path(tmp_path).write_bytes(content)
    with pytest.raises(CorruptSnapshot, match="CURRENT"):
        dictionary.refresh()
    assert dictionary.snapshot.version == 1


def test_damaged_version_at_the_start_is_an_error(tmp_path):
    publish(tmp_path, 1, "qsort")
    snapshot_path(tmp_path, 1).write_bytes(b"broken")
    with pytest.raises(CorruptSnapshot):
        Dictionary(tmp_path)
