"""The gate in numpy: what it computes, and what it refuses to load."""

import math
from dataclasses import replace

import numpy as np
import pytest

from routing_engine.artefacts import save_tensors
from routing_engine.errors import ArtefactError
from routing_engine.features import features_of
from routing_engine.gate import BAG_WIDTH, BLOCK_WIDTH, BUCKETS, load_gate, softmax
from tests.routing_engine.first_stage_files import (
    GATE_FACTS,
    SAMPLES,
    TABLE_FACTS,
    gate_arrays,
    random_gate_arrays,
    write_gate,
)

PROMPT = "which oven for bread? 烤箱"


def scores_of(gate, text=PROMPT):
    return gate.scores(*features_of(text, bucket_count=BUCKETS))


def reference_scores(arrays, temperature, text=PROMPT):
    """The gate's formula, written once more, slowly and in double precision."""
    buckets, weights = features_of(text, bucket_count=BUCKETS)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    x = sum(weight * wide["bag"][bucket] for bucket, weight in zip(buckets, weights, strict=True))
    h = x @ wide["fingerprint"] + wide["fingerprint_bias"]
    cube = 0.044715 * h**3
    h = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + cube)))
    logits = np.array(
        [
            h[domain * BLOCK_WIDTH : (domain + 1) * BLOCK_WIDTH] @ affinity + bias
            for domain, affinity, bias in zip(
                arrays["domain_of"], wide["affinity"], wide["affinity_bias"], strict=True
            )
        ]
    )
    powers = np.exp((logits - logits.max()) / temperature)
    return powers / powers.sum()


@pytest.mark.parametrize("temperature", [0.4, 1.0, 4.0])
def test_scores_are_the_formulas(tmp_path, temperature):
    arrays = random_gate_arrays()
    path = write_gate(tmp_path, replace(GATE_FACTS, temperature=temperature), **arrays)
    scores = scores_of(load_gate(path))
    assert scores.shape == (3,)
    assert scores.sum() == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(scores, reference_scores(arrays, temperature), rtol=1e-4, atol=1e-7)


def test_each_sample_is_sent_to_its_label(tmp_path):
    gate = load_gate(write_gate(tmp_path))
    for number, sample in enumerate(SAMPLES):
        scores = scores_of(gate, sample)
        assert int(scores.argmax()) == number
        assert scores[number] > 0.9
        assert scores.dtype == np.float32


def test_a_text_without_features_is_scored_by_the_biases_alone(tmp_path):
    arrays = {**gate_arrays(), "affinity_bias": np.log(np.array([0.5, 0.3, 0.2], np.float32))}
    gate = load_gate(write_gate(tmp_path, **arrays))
    np.testing.assert_allclose(scores_of(gate, ""), [0.5, 0.3, 0.2], rtol=1e-5)


def test_an_expert_reads_only_its_domains_block(tmp_path):
    arrays = random_gate_arrays()
    before = np.log(scores_of(load_gate(write_gate(tmp_path / "a", **arrays))))
    arrays["fingerprint"][:, :BLOCK_WIDTH] += 1.0  # cars, the first block
    after = np.log(scores_of(load_gate(write_gate(tmp_path / "b", **arrays))))
    # The experts of food keep their odds among themselves; those against cars move.
    assert after[0] - after[2] == pytest.approx(before[0] - before[2], abs=1e-4)
    assert abs((after[1] - after[0]) - (before[1] - before[0])) > 0.01


def test_scoring_changes_nothing(tmp_path):
    gate = load_gate(write_gate(tmp_path, **random_gate_arrays()))
    buckets, weights = features_of(PROMPT, bucket_count=BUCKETS)
    kept = buckets.copy(), weights.copy()
    first = gate.scores(buckets, weights)
    np.testing.assert_array_equal(gate.scores(buckets, weights), first)
    np.testing.assert_array_equal(buckets, kept[0])
    np.testing.assert_array_equal(weights, kept[1])


def test_softmax_survives_large_numbers():
    found = softmax(np.array([1e30, 0.0, -1e30], dtype=np.float32))
    np.testing.assert_array_equal(found, [1.0, 0.0, 0.0])


def test_the_version_follows_the_content(tmp_path):
    same = load_gate(write_gate(tmp_path / "a")).version
    assert load_gate(write_gate(tmp_path / "b")).version == same
    assert load_gate(write_gate(tmp_path / "c", **random_gate_arrays())).version != same
    assert load_gate(write_gate(tmp_path / "d", replace(GATE_FACTS, seed=1))).version != same


@pytest.mark.parametrize("name", sorted(gate_arrays()))
def test_a_gate_without_one_of_its_tensors_is_refused(tmp_path, name):
    path = tmp_path / "gate.safetensors"
    arrays = gate_arrays()
    del arrays[name]
    save_tensors(path, arrays, GATE_FACTS)
    with pytest.raises(ArtefactError, match=f"tensor '{name}' is missing") as caught:
        load_gate(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("name", sorted(gate_arrays()))
def test_a_tensor_of_another_shape_is_refused(tmp_path, name):
    arrays = gate_arrays()
    arrays[name] = arrays[name][:-1]
    with pytest.raises(ArtefactError, match=f"tensor '{name}' is missing or isn't of shape"):
        load_gate(write_gate(tmp_path, **arrays))


def test_a_tensor_of_more_dimensions_is_refused(tmp_path):
    arrays = gate_arrays()
    arrays["bag"] = arrays["bag"].reshape(BUCKETS, BAG_WIDTH, 1)
    with pytest.raises(ArtefactError, match="tensor 'bag'"):
        load_gate(write_gate(tmp_path, **arrays))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", sorted(gate_arrays()))
def test_a_value_that_is_no_number_is_refused(tmp_path, name, value):
    arrays = gate_arrays()
    arrays[name] = arrays[name].astype(np.float32)
    arrays[name].flat[-1] = value
    with pytest.raises(ArtefactError, match=f"tensor '{name}' has values that aren't numbers"):
        load_gate(write_gate(tmp_path, **arrays))


@pytest.mark.parametrize("block", [-1, 2])
def test_a_block_that_is_not_there_is_refused(tmp_path, block):
    arrays = {**gate_arrays(), "domain_of": np.array([1, 0, block])}
    with pytest.raises(ArtefactError, match="names a block that isn't there"):
        load_gate(write_gate(tmp_path, **arrays))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_that_divides_nothing_is_refused(tmp_path, temperature):
    facts = replace(GATE_FACTS, temperature=temperature)
    with pytest.raises(ArtefactError, match="its temperature isn't a positive number"):
        load_gate(write_gate(tmp_path, facts))


def test_a_gate_of_another_kind_or_for_other_features_is_refused(tmp_path):
    with pytest.raises(ArtefactError, match="is a 'fallback-table' artefact"):
        load_gate(write_gate(tmp_path, TABLE_FACTS))
    with pytest.raises(ArtefactError, match="was made for features 'bag-0'"):
        load_gate(write_gate(tmp_path, replace(GATE_FACTS, feature_version="bag-0")))


def test_a_gate_whose_labels_are_more_than_its_experts_is_refused(tmp_path):
    facts = replace(
        GATE_FACTS, labels=(*GATE_FACTS.labels, "x"), domains=(*GATE_FACTS.domains, "cars")
    )
    with pytest.raises(ArtefactError, match=r"'affinity' .* shape \(4, 16\)"):
        load_gate(write_gate(tmp_path, facts))


def test_a_damaged_gate_is_refused(tmp_path):
    path = write_gate(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArtefactError, match="can't be read"):
        load_gate(path)
