"""Snapshots: the same content back, or nothing at all."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from term_db.errors import CorruptSnapshot
from term_db.fold import UNICODE_VERSION
from term_db.normalise import normalise
from term_db.snapshot import (
    Snapshot,
    compile_snapshot,
    deserialise,
    empty_snapshot,
    serialise,
)
from term_db.types import Concept, ConceptId, DictionaryVersion, Term, TermAction, TermKind

CONCEPT = Concept(
    ConceptId("q"),
    "test",
    (Term("quicksort", "en", TermKind.PREFERRED), Term("qsort", "en"), Term("快排", "zh")),
    expert_hint="python-algorithm",
)
DATA = serialise(compile_snapshot([CONCEPT], DictionaryVersion(7)))


def resealed(data):
    """`data` with a checksum that fits: damage that a checksum alone wouldn't show."""
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


def test_file_form_gives_the_same_dictionary_back():
    before = compile_snapshot([CONCEPT], DictionaryVersion(7))
    after = deserialise(DATA, source="x")
    assert (after.version, after.digest) == (7, before.digest)
    assert (after.concept_count, after.variant_count) == (1, 3)
    assert normalise(after, "用qsort或快排") == normalise(before, "用qsort或快排")
    assert after.entry(1) == ("q", "en", "quicksort", TermAction.REWRITE, "python-algorithm")


def test_digest_is_that_of_the_content():
    other = Concept(CONCEPT.concept_id, "test", CONCEPT.terms, action=TermAction.TAG)
    digests = [
        compile_snapshot([concept], DictionaryVersion(version)).digest
        for concept, version in ((CONCEPT, 1), (CONCEPT, 2), (other, 1))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_empty_snapshot_matches_nothing_and_survives_the_file():
    for snapshot in (empty_snapshot(), deserialise(serialise(empty_snapshot()), source="x")):
        assert isinstance(snapshot, Snapshot)
        assert (snapshot.version, snapshot.concept_count, snapshot.variant_count) == (0, 0, 0)
        assert normalise(snapshot, "qsort").matches == ()


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(index, change):
    damaged = bytearray(DATA)
    damaged[index] ^= change
    with pytest.raises(CorruptSnapshot):
        deserialise(bytes(damaged), source="x")


@settings(max_examples=50)
@given(st.integers(0, len(DATA) - 1))
def test_any_truncation_is_noticed(length):
    with pytest.raises(CorruptSnapshot, match=r"^x: "):
        deserialise(DATA[:length], source="x")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"format":1', b'"format":9', "unknown format 9"),
        (b'"variant_count":3', b'"variant_count":4', "another number of terms"),
        (b'"concept_count":1', b'"concept_count":x', "unreadable table"),
        (b"rewrite", b"rewrote", "tables that its digest doesn't fit"),
    ],
)
def test_damage_under_a_fitting_checksum_is_noticed(old, new, reason):
    assert old in DATA
    with pytest.raises(CorruptSnapshot, match=reason):
        deserialise(resealed(DATA.replace(old, new)), source="x")


def test_damaged_automaton_is_noticed():
    with pytest.raises(CorruptSnapshot):
        deserialise(resealed(DATA[:-60] + DATA[-32:]), source="x")


def test_another_unicode_version_is_refused_with_the_way_out():
    own = f'"unicode":"{UNICODE_VERSION}"'.encode()
    foreign = f'"unicode":"{"9" * len(UNICODE_VERSION)}"'.encode()
    assert own in DATA
    with pytest.raises(CorruptSnapshot, match="publish the dictionary again"):
        deserialise(resealed(DATA.replace(own, foreign)), source="x")
