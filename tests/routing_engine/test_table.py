"""The fallback table: exactly 128 KiB, needs no torch, refused when its two files don't belong together."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from routing_engine.artefacts import TABLE_FACTS_FILE, TABLE_FILE
from routing_engine.errors import ArtefactError
from routing_engine.features import features_of
from routing_engine.gate import BUCKETS
from routing_engine.table import TABLE_BYTES, load_table
from tests.routing_engine.first_stage_files import LABELS, SAMPLES, TABLE_FACTS, write_table


def test_the_table_has_exactly_128_kib(tmp_path):
    write_table(tmp_path)
    assert (tmp_path / TABLE_FILE).stat().st_size == TABLE_BYTES == 131_072


@pytest.mark.parametrize(("text", "label"), [*zip(SAMPLES, LABELS, strict=True)])
def test_scores_are_probabilities_from_features_of_the_gates_buckets(tmp_path, text, label):
    write_table(tmp_path)
    table = load_table(tmp_path)
    scores = table.scores(*features_of(text, bucket_count=BUCKETS))
    assert float(scores.sum()) == pytest.approx(1.0, abs=1e-6)
    assert table.facts.labels[int(scores.argmax())] == label


def test_temperature_flattens_the_scores(tmp_path):
    write_table(tmp_path / "sharp")
    write_table(tmp_path / "flat", replace(TABLE_FACTS, temperature=5.0))
    features = features_of(SAMPLES[0], bucket_count=BUCKETS)
    sharp = load_table(tmp_path / "sharp").scores(*features).max()
    assert load_table(tmp_path / "flat").scores(*features).max() < sharp


def test_a_table_of_another_size_is_refused(tmp_path):
    write_table(tmp_path)
    (tmp_path / TABLE_FILE).write_bytes(b"\0" * (TABLE_BYTES - 1))
    with pytest.raises(ArtefactError, match="131071 bytes, not 131072"):
        load_table(tmp_path)


def test_a_head_of_another_table_is_refused(tmp_path):
    write_table(tmp_path)
    (tmp_path / TABLE_FILE).write_bytes(b"\0" * TABLE_BYTES)
    with pytest.raises(ArtefactError, match="belongs to another"):
        load_table(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"head": [[1.0]]},
        {"scale": float("nan")},
        {"facts": {}},
        {"bias": None},
        {"bias": [1e999, 0, 0]},
    ],
)
def test_damaged_facts_are_refused(tmp_path, change):
    write_table(tmp_path)
    path = tmp_path / TABLE_FACTS_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ArtefactError, match=r"table\.json"):
        load_table(tmp_path)


def test_a_missing_half_is_refused(tmp_path):
    write_table(tmp_path)
    (tmp_path / TABLE_FACTS_FILE).unlink()
    with pytest.raises(ArtefactError):
        load_table(tmp_path)


def test_the_first_stage_loads_no_torch():
    code = "import sys, routing_engine.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
