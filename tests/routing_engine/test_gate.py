"""The gate scores as its weights say, and a file that doesn't fit is refused."""

from dataclasses import replace

import numpy as np
import pytest

from routing_engine.artefacts import load_tensors
from routing_engine.errors import ArtefactError
from routing_engine.features import features_of
from routing_engine.gate import BAG_WIDTH, BLOCK_WIDTH, BUCKETS, load_gate
from tests.routing_engine.first_stage_files import (
    GATE_FACTS,
    LABELS,
    SAMPLES,
    gate_arrays,
    write_gate,
)


@pytest.mark.parametrize(("text", "label"), [*zip(SAMPLES, LABELS, strict=True)])
def test_scores_are_probabilities_and_the_right_expert_is_first(tmp_path, text, label):
    gate = load_gate(write_gate(tmp_path))
    scores = gate.scores(*features_of(text, bucket_count=BUCKETS))
    assert scores.dtype == np.float32
    assert float(scores.sum()) == pytest.approx(1.0, abs=1e-6)
    assert gate.facts.labels[int(scores.argmax())] == label


def test_scores_are_those_of_the_network_as_written(tmp_path):
    random = np.random.default_rng(3)
    changed = {
        "bag": random.normal(size=(BUCKETS, BAG_WIDTH)).astype(np.float32),
        "fingerprint": random.normal(size=(BAG_WIDTH, 2 * BLOCK_WIDTH)).astype(np.float32),
        "fingerprint_bias": random.normal(size=2 * BLOCK_WIDTH).astype(np.float32),
        "affinity": random.normal(size=(3, BLOCK_WIDTH)).astype(np.float32),
        "affinity_bias": random.normal(size=3).astype(np.float32),
    }
    gate = load_gate(write_gate(tmp_path, replace(GATE_FACTS, temperature=1.7), **changed))
    buckets, weights = features_of("any words at all", bucket_count=BUCKETS)
    x = weights @ changed["bag"][buckets]
    h = x @ changed["fingerprint"] + changed["fingerprint_bias"]
    h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    blocks = h.reshape(2, BLOCK_WIDTH)[gate_arrays()["domain_of"]]
    logits = ((blocks * changed["affinity"]).sum(1) + changed["affinity_bias"]) / 1.7
    powers = np.exp(logits - logits.max())
    assert gate.scores(buckets, weights) == pytest.approx(powers / powers.sum(), abs=1e-5)


def test_a_text_without_features_gives_finite_scores(tmp_path):
    scores = load_gate(write_gate(tmp_path)).scores(*features_of("", bucket_count=BUCKETS))
    assert scores.tolist() == pytest.approx([1 / 3] * 3)


def test_the_version_names_exactly_this_content(tmp_path):
    first = load_gate(write_gate(tmp_path / "a")).version
    assert load_gate(write_gate(tmp_path / "b")).version == first
    assert load_gate(write_gate(tmp_path / "c", replace(GATE_FACTS, seed=1))).version != first


@pytest.mark.parametrize(
    ("facts", "changed", "reason"),
    [
        (replace(GATE_FACTS, feature_version="bag-0"), {}, "bag-0"),
        (replace(GATE_FACTS, kind="fallback-table"), {}, "fallback-table"),
        (replace(GATE_FACTS, labels=("a",)), {}, "labels"),
        (replace(GATE_FACTS, temperature=0.0), {}, "temperature"),
        (replace(GATE_FACTS, labels=("a", "b"), domains=("x", "y")), {}, "affinity"),
        (GATE_FACTS, {"bag": np.zeros((8, BAG_WIDTH), dtype=np.float32)}, "bag"),
        (GATE_FACTS, {"affinity_bias": np.full(3, np.nan, dtype=np.float32)}, "affinity_bias"),
        (GATE_FACTS, {"domain_of": np.array([0, 1, 2])}, "domain_of"),
    ],
)
def test_an_artefact_that_does_not_fit_is_refused(tmp_path, facts, changed, reason):
    path = write_gate(tmp_path, facts, **changed)
    with pytest.raises(ArtefactError, match=reason) as caught:
        load_gate(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\xff" * 64])
def test_a_damaged_file_is_refused(tmp_path, content):
    path = tmp_path / "gate.safetensors"
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match=r"gate\.safetensors"):
        load_gate(path)


def test_a_truncated_file_is_refused(tmp_path):
    path = write_gate(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ArtefactError):
        load_tensors(path)
