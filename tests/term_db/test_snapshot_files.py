"""Snapshot files: durable, whole, and named by version."""

import pytest

from term_db.errors import CorruptSnapshot, UnknownVersion
from term_db.snapshot import compile_snapshot
from term_db.snapshot_files import (
    put_in_force,
    read_snapshot,
    snapshot_path,
    stored_versions,
    version_in_force,
    write_snapshot,
)
from term_db.types import DictionaryVersion


def test_written_snapshot_is_read_back_and_nothing_is_left_beside(tmp_path):
    folder = tmp_path / "made" / "on the way"
    write_snapshot(folder, compile_snapshot([], DictionaryVersion(4)))
    put_in_force(folder, DictionaryVersion(4))
    assert read_snapshot(folder, DictionaryVersion(4)).version == 4
    assert version_in_force(folder) == 4
    assert stored_versions(folder) == (4,)
    assert sorted(path.name for path in folder.iterdir()) == ["4.terms", "CURRENT"]


def test_version_without_file_is_unknown(tmp_path):
    with pytest.raises(UnknownVersion):
        read_snapshot(tmp_path, DictionaryVersion(1))
    assert stored_versions(tmp_path / "missing") == ()


def test_file_under_another_number_is_refused(tmp_path):
    write_snapshot(tmp_path, compile_snapshot([], DictionaryVersion(1)))
    snapshot_path(tmp_path, DictionaryVersion(1)).rename(
        snapshot_path(tmp_path, DictionaryVersion(2))
    )
    with pytest.raises(CorruptSnapshot, match="holds version 1"):
        read_snapshot(tmp_path, DictionaryVersion(2))


def test_folder_in_the_place_of_a_file_is_refused(tmp_path):
    snapshot_path(tmp_path, DictionaryVersion(1)).mkdir()
    with pytest.raises(CorruptSnapshot, match="can't be read"):
        read_snapshot(tmp_path, DictionaryVersion(1))
