"""The fallback table: 128 KiB exactly, refused when damaged, usable where torch isn't installed."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from routing_engine.artefacts import TABLE_FACTS_FILE, TABLE_FILE
from routing_engine.errors import ArtefactError
from routing_engine.features import features_of
from routing_engine.gate import BUCKETS
from routing_engine.table import TABLE_BUCKETS, TABLE_BYTES, TABLE_WIDTH, load_table, save_table
from tests.routing_engine.first_stage_files import (
    GATE_FACTS,
    SAMPLES,
    TABLE_FACTS,
    random_table_parts,
    table_parts,
    write_gate,
    write_table,
)

PROMPT = "which oven for bread? 烤箱"


def scores_of(table, text=PROMPT, bucket_count=TABLE_BUCKETS):
    return table.scores(*features_of(text, bucket_count=bucket_count))


def change(directory, **members):
    """Overwrite members of the table's facts file; None removes one."""
    path = directory / TABLE_FACTS_FILE
    document = {**json.loads(path.read_text()), **members}
    kept = {name: value for name, value in document.items() if value is not None}
    path.write_text(json.dumps(kept))


def test_the_table_is_exactly_128_kib(tmp_path):
    write_table(tmp_path, parts=random_table_parts())
    assert (tmp_path / TABLE_FILE).stat().st_size == 131_072
    assert TABLE_BUCKETS * TABLE_WIDTH == TABLE_BYTES == 131_072


@pytest.mark.parametrize("temperature", [0.4, 1.0, 4.0])
def test_scores_are_the_formulas(tmp_path, temperature):
    cells, scale, head, bias = random_table_parts()
    facts = replace(TABLE_FACTS, temperature=temperature)
    table = load_table(write_table(tmp_path, facts, (cells, scale, head, bias)))
    buckets, weights = features_of(PROMPT, bucket_count=TABLE_BUCKETS)
    summed = sum(
        weight * scale * cells[bucket].astype(np.float64)
        for bucket, weight in zip(buckets, weights, strict=True)
    )
    powers = np.exp((summed @ head.astype(np.float64) + bias) / temperature)
    scores = scores_of(table)
    assert scores.shape == (3,)
    np.testing.assert_allclose(scores, powers / powers.sum(), rtol=1e-3, atol=1e-5)
    # The gate's wider buckets end in the same rows.
    np.testing.assert_allclose(scores_of(table, bucket_count=BUCKETS), scores, rtol=1e-5)


def test_each_sample_is_sent_to_its_label(tmp_path):
    table = load_table(write_table(tmp_path))
    for number, sample in enumerate(SAMPLES):
        assert int(scores_of(table, sample).argmax()) == number


def test_a_table_is_read_back_as_written(tmp_path):
    cells, scale, head, bias = random_table_parts()
    table = load_table(write_table(tmp_path, parts=(cells, scale, head, bias)))
    np.testing.assert_array_equal(table.cells, cells)
    np.testing.assert_allclose(table.head, head, atol=1e-6)
    np.testing.assert_allclose(table.bias, bias, atol=1e-6)
    assert (table.scale, table.facts) == (scale, TABLE_FACTS)


def test_the_version_is_that_of_the_bytes(tmp_path):
    one = load_table(write_table(tmp_path / "a"))
    same = load_table(write_table(tmp_path / "b"))
    other = load_table(write_table(tmp_path / "c", parts=random_table_parts()))
    assert one.version == same.version != other.version


def test_cells_of_another_size_are_never_written(tmp_path):
    cells, *rest = table_parts()
    with pytest.raises(AssertionError, match="its one size"):
        save_table(tmp_path, cells[:-1], *rest, TABLE_FACTS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 1, 131_071, 131_073, 262_144])
def test_a_table_of_another_size_is_refused(tmp_path, size):
    path = write_table(tmp_path) / TABLE_FILE
    path.write_bytes(bytes(size))
    with pytest.raises(ArtefactError, match=f"has {size} bytes, not 131072") as caught:
        load_table(tmp_path)
    assert caught.value.path == str(path)


def test_the_facts_of_another_table_are_refused(tmp_path):
    write_table(tmp_path / "a")
    write_table(tmp_path / "b", parts=random_table_parts())
    (tmp_path / "b" / TABLE_FILE).replace(tmp_path / "a" / TABLE_FILE)
    with pytest.raises(ArtefactError, match=r"belongs to another table\.bin") as caught:
        load_table(tmp_path / "a")
    assert caught.value.path == str(tmp_path / "a" / TABLE_FACTS_FILE)


def test_one_changed_byte_is_noticed(tmp_path):
    path = write_table(tmp_path) / TABLE_FILE
    content = bytearray(path.read_bytes())
    content[99_999] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match="belongs to another"):
        load_table(tmp_path)


@pytest.mark.parametrize("name", [TABLE_FILE, TABLE_FACTS_FILE])
def test_a_missing_half_is_refused(tmp_path, name):
    (write_table(tmp_path) / name).unlink()
    with pytest.raises(ArtefactError, match="can't be read"):
        load_table(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"null", b"[]", b'"x"', b"{}", b"7"])
def test_facts_that_are_no_facts_are_refused(tmp_path, content):
    (write_table(tmp_path) / TABLE_FACTS_FILE).write_bytes(content)
    with pytest.raises(ArtefactError, match="can't be read"):
        load_table(tmp_path)


@pytest.mark.parametrize("name", ["facts", "table_version", "scale", "head", "bias"])
def test_facts_with_a_member_missing_are_refused(tmp_path, name):
    change(write_table(tmp_path), **{name: None})
    with pytest.raises(ArtefactError, match="can't be read"):
        load_table(tmp_path)


@pytest.mark.parametrize(
    "members",
    [
        {"head": []},
        {"head": [[1.0, 2.0, 3.0]] * 15},
        {"head": [[1.0, 2.0]] * 16},
        {"head": [[1.0, 2.0], [1.0]]},
        {"head": "x"},
        {"head": [["x", 1.0, 2.0]] * 16},
        {"bias": [0.0] * 4},
        {"bias": [[0.0] * 3]},
        {"bias": 1.0},
        {"scale": "small"},
        {"scale": [1.0]},
    ],
)
def test_a_head_that_does_not_fit_is_refused(tmp_path, members):
    change(write_table(tmp_path), **members)
    with pytest.raises(ArtefactError, match=r"its head isn't made for 3 experts|can't be read"):
        load_table(tmp_path)


@pytest.mark.parametrize(
    "members",
    [
        {"scale": float("nan")},
        {"scale": float("inf")},
        {"head": [[0.0, float("nan"), 0.0]] * 16},
        {"bias": [0.0, 0.0, float("inf")]},
        {"bias": [0.0, 0.0, float("nan")]},
    ],
)
def test_a_value_that_is_no_number_is_refused(tmp_path, members):
    change(write_table(tmp_path), **members)
    with pytest.raises(ArtefactError, match="holds values that aren't numbers"):
        load_table(tmp_path)


@pytest.mark.parametrize("temperature", [0.0, -2.0, float("nan"), float("inf")])
def test_a_temperature_that_divides_nothing_is_refused(tmp_path, temperature):
    write_table(tmp_path, replace(TABLE_FACTS, temperature=temperature))
    with pytest.raises(ArtefactError, match="holds values that aren't numbers"):
        load_table(tmp_path)


def test_a_table_of_another_kind_or_for_other_features_is_refused(tmp_path):
    write_table(tmp_path, GATE_FACTS)
    with pytest.raises(ArtefactError, match="is a 'first-stage-gate' artefact"):
        load_table(tmp_path)
    write_table(tmp_path, replace(TABLE_FACTS, feature_version="bag-0"))
    with pytest.raises(ArtefactError, match="was made for features 'bag-0'"):
        load_table(tmp_path)


def test_gate_and_table_route_where_neither_torch_nor_the_engine_can_be_imported(tmp_path):
    write_table(tmp_path)
    write_gate(tmp_path)
    program = f"""
import sys
for name in ("torch", "transformers", "routing_engine.engine", "routing_engine.training"):
    sys.modules[name] = None
from pathlib import Path
from routing_engine.client import Router
from routing_engine.types import Expert, RouteRequest
experts = [Expert(name, 0, "", name, ()) for name in {TABLE_FACTS.labels!r}]
router = Router.load(Path({str(tmp_path)!r}), experts, "general")
for sample in {SAMPLES!r}:
    decision = router.decide(RouteRequest(sample))
    print(decision.expert_id, decision.source, decision.table_share)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout.splitlines(), done.stderr) == (
        ["bakery blend 0.8", "garage blend 0.8", "general blend 0.8"],
        "",
    )
