"""Artefacts on disk: read back as written, refused with their path when they can't be used."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save

from routing_engine.artefacts import (
    facts_from_json,
    load_tensors,
    require,
    save_tensors,
    version_of,
    write_file,
)
from routing_engine.errors import ArtefactError
from tests.routing_engine.first_stage_files import GATE_FACTS

FACTS = replace(
    GATE_FACTS,
    labels=("baking", "烘焙"),
    domains=("home", "家"),
    temperature=0.75,
    abstain_below=0.25,
    seed=7,
    evaluation={"accuracy": 0.875},
)


def test_facts_are_read_back_as_written(tmp_path):
    assert facts_from_json(FACTS.to_json(), tmp_path) == FACTS
    assert "烘焙" in FACTS.to_json()


@pytest.mark.parametrize("missing", sorted(json.loads(FACTS.to_json())))
def test_facts_with_one_missing_are_refused(tmp_path, missing):
    document = json.loads(FACTS.to_json())
    del document[missing]
    with pytest.raises(ArtefactError, match=missing) as caught:
        facts_from_json(json.dumps(document), tmp_path / "gate")
    assert caught.value.path == str(tmp_path / "gate")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels", None),
        ("labels", 3),
        ("temperature", "warm"),
        ("temperature", None),
        ("abstain_below", []),
        ("seed", "x"),
        ("evaluation", ["accuracy"]),
        ("evaluation", {"accuracy": "good"}),
    ],
)
def test_facts_of_another_type_are_refused(tmp_path, name, value):
    document = {**json.loads(FACTS.to_json()), name: value}
    with pytest.raises(ArtefactError, match="its facts can't be read"):
        facts_from_json(json.dumps(document), tmp_path)


@pytest.mark.parametrize("text", ["", "null", "[]", '"facts"', "{", "1"])
def test_what_is_no_object_has_no_facts(tmp_path, text):
    with pytest.raises(ArtefactError, match="its facts can't be read"):
        facts_from_json(text, tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "fallback-table"}, "is a 'fallback-table' artefact, not 'first-stage-gate'"),
        (
            {"feature_version": "bag-0"},
            (
                "was made for features 'bag-0', this version computes 'v'; train again with"
                " `expertgate engine train`"
            ),
        ),
        ({"labels": (), "domains": ()}, "has no labels, or not one domain for each"),
        ({"domains": ("home",)}, "has no labels, or not one domain for each"),
    ],
)
def test_an_artefact_for_something_else_is_refused(tmp_path, changes, reason):
    fitting = replace(FACTS, feature_version="v")
    require(fitting, tmp_path, kind=FACTS.kind, feature_version="v")
    with pytest.raises(ArtefactError) as caught:
        require(replace(fitting, **changes), tmp_path, kind=FACTS.kind, feature_version="v")
    assert (caught.value.path, caught.value.reason) == (str(tmp_path), reason)
    assert str(caught.value) == f"{tmp_path}: {reason}"


def test_tensors_are_read_back_as_written_whatever_their_memory_order(tmp_path):
    path = tmp_path / "new" / "gate.safetensors"
    arrays = {
        "upright": np.arange(6, dtype=np.float32).reshape(2, 3),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "strided": np.arange(10)[::2],
    }
    save_tensors(path, arrays, FACTS)
    loaded, facts = load_tensors(path)
    assert facts == FACTS
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)


def test_the_same_content_is_the_same_file_in_whatever_order_it_is_given(tmp_path):
    arrays = {"a": np.zeros(2), "b": np.ones(3)}
    save_tensors(tmp_path / "one", arrays, FACTS)
    save_tensors(tmp_path / "two", dict(reversed(arrays.items())), FACTS)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("kept", [0, 1, 8, 200, -1])
def test_a_truncated_file_is_refused(tmp_path, kept):
    path = tmp_path / "gate.safetensors"
    save_tensors(path, {"a": np.zeros(64)}, FACTS)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ArtefactError, match="can't be read") as caught:
        load_tensors(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("content", [b"\xff" * 64, b'{"facts": 1}', b"\x00" * 4096])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    path = tmp_path / "gate.safetensors"
    path.write_bytes(content)
    with pytest.raises(ArtefactError):
        load_tensors(path)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    for path in (tmp_path / "gate.safetensors", tmp_path):
        with pytest.raises(ArtefactError, match="can't be read"):
            load_tensors(path)


def test_a_tensor_file_without_facts_is_refused(tmp_path):
    path = tmp_path / "gate.safetensors"
    path.write_bytes(save({"a": np.zeros(2)}))
    with pytest.raises(ArtefactError, match="its facts can't be read"):
        load_tensors(path)


def test_a_file_is_replaced_at_once_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "deep" / "table.bin"
    write_file(path, b"old")
    with path.open("rb") as reader:
        write_file(path, b"new and longer")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new and longer"
    assert list(path.parent.iterdir()) == [path]


def test_the_version_names_the_content():
    assert version_of(b"") == "e3b0c44298fc"
    assert version_of(b"a") != version_of(b"b")
