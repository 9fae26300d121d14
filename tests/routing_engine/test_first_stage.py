"""Training of the gate: same seed, same file; what numpy serves is what torch trained."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

if "engine" not in os.environ.get("EXPERTGATE_TEST_REQUIRE", "") and find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import torch
from torch.nn.modules.module import register_module_forward_hook

from routing_engine.artefacts import GATE_FILE, TABLE_FACTS_FILE, TABLE_FILE
from routing_engine.client import Router
from routing_engine.errors import TrainingDataError
from routing_engine.features import FEATURE_VERSION, features_of
from routing_engine.gate import BLOCK_WIDTH, BUCKETS, load_gate
from routing_engine.table import TABLE_BYTES, load_table
from routing_engine.training.dataset import LabelledPrompt, packaged_prompts, read_prompts
from routing_engine.training.evaluate import evaluate
from routing_engine.training.fallback_table import BagTable
from routing_engine.training.first_stage import BagGate, train_first_stage
from routing_engine.training.vocabulary import ExpertVocabulary, Vocabulary
from routing_engine.types import RouteRequest, RouteSource
from tests.routing_engine.first_stage_files import experts_of

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("one_torch_thread")]

FILES = (GATE_FILE, TABLE_FILE, TABLE_FACTS_FILE)
TEXTS = (
    "my derailleur makes a noise",
    "什么是租约",
    "how long does sourdough bread need?",
    "nothing that was ever learned",
    "",
)
VOCABULARY = Vocabulary(
    experts=(
        ExpertVocabulary("baking", "home", {"en": "Bread and cakes."}, {"en": ("yeast", "oven")}),
        ExpertVocabulary("sailing", "sport", {}, {"en": ("spinnaker", "rudder", "keel", "mast")}),
    ),
    frames={"en": ("what is a {}", "my {} broke")},
)


@pytest.fixture(scope="module")
def rows(own_prompts):
    return read_prompts(own_prompts)


def bytes_of(directory):
    return {name: (directory / name).read_bytes() for name in FILES}


@contextmanager
def models_trained() -> Iterator[dict[type, torch.nn.Module]]:
    """Keep hold of the modules that run meanwhile, by their type."""
    seen: dict[type, torch.nn.Module] = {}
    hook = register_module_forward_hook(
        lambda module, _args, _out: seen.update({type(module): module})
    )
    try:
        yield seen
    finally:
        hook.remove()


def logits_of(model, text):
    buckets, weights = features_of(text, bucket_count=BUCKETS)
    with torch.inference_mode():
        return model(
            torch.from_numpy(buckets.astype(np.int64)), torch.tensor([0]), torch.from_numpy(weights)
        )[0]


def test_what_numpy_serves_is_what_torch_trained(tmp_path, rows):
    with models_trained() as models:
        train_first_stage(rows, tmp_path, epochs=2)
    gate, table = load_gate(tmp_path / GATE_FILE), load_table(tmp_path)
    for text in TEXTS:
        features = features_of(text, bucket_count=BUCKETS)
        for served, model in ((gate, models[BagGate]), (table, models[BagTable])):
            logits = logits_of(model, text)
            wanted = torch.softmax(logits / served.facts.temperature, dim=0)
            np.testing.assert_allclose(served.scores(*features), wanted, rtol=2e-3, atol=1e-5)
            found = np.log(served.scores(*features)) * served.facts.temperature
            np.testing.assert_allclose(
                found - found.mean(), logits - logits.mean(), rtol=2e-3, atol=2e-3
            )


def test_the_same_seed_gives_the_same_artefacts_and_another_seed_others(tmp_path, rows):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train_first_stage(rows, tmp_path / name, seed=seed, epochs=2, vocabulary=VOCABULARY)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    for name, content in bytes_of(tmp_path / "a").items():
        assert content != bytes_of(tmp_path / "c")[name], name


def test_training_neither_reads_nor_changes_the_processes_random_numbers(tmp_path, rows):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    train_first_stage(rows, tmp_path / "a", epochs=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    train_first_stage(rows, tmp_path / "b", epochs=1)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_rows_of_other_splits_are_never_learned_from(tmp_path, rows):
    stranger = LabelledPrompt("an unheard label", "unheard", "en", "test")
    moved = [replace(row, label="baking") if row.split == "test" else row for row in rows]
    train_first_stage(rows, tmp_path / "a", epochs=1)
    train_first_stage([*moved, stranger], tmp_path / "b", epochs=1)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_both_artefacts_say_what_they_are(trained):
    gate, table = load_gate(trained / GATE_FILE).facts, load_table(trained).facts
    assert (gate.kind, table.kind) == ("first-stage-gate", "fallback-table")
    for facts in (gate, table):
        assert facts.labels == ("baking", "cycling", "tenancy")
        assert facts.domains == ("home", "sport", "law")
        assert facts.feature_version == FEATURE_VERSION
        assert facts.temperature > 0
        assert 0 < facts.abstain_below <= 0.5
    assert gate.evaluation.keys() == {"calibration_accuracy", "calibration_rows"}
    assert (trained / TABLE_FILE).stat().st_size == TABLE_BYTES == 131_072
    assert sorted(path.name for path in trained.iterdir()) == sorted(FILES)


def test_labels_of_one_domain_share_a_block(tmp_path, rows):
    shared = [replace(row, domain="home" if row.domain == "sport" else row.domain) for row in rows]
    train_first_stage(shared, tmp_path, epochs=1)
    gate = load_gate(tmp_path / GATE_FILE)
    assert gate.facts.domains == ("home", "home", "law")
    assert gate.domain_of.tolist() == [0, 0, 1]
    assert gate.fingerprint.shape[1] == 2 * BLOCK_WIDTH


def test_rows_without_domains_share_one(tmp_path, rows):
    train_first_stage([replace(row, domain="") for row in rows], tmp_path, epochs=1)
    assert load_gate(tmp_path / GATE_FILE).facts.domains == ("default",) * 3


def test_vocabulary_teaches_an_expert_without_a_single_prompt(tmp_path, rows):
    train_first_stage(rows, tmp_path, vocabulary=VOCABULARY, epochs=8)
    gate = load_gate(tmp_path / GATE_FILE)
    assert gate.facts.labels == ("baking", "cycling", "sailing", "tenancy")
    # What the vocabulary says of a domain counts, and what it doesn't say is the rows'.
    assert gate.facts.domains == ("home", "sport", "sport", "law")
    router = Router.load(tmp_path, experts_of(*gate.facts.labels), "baking")
    found = router.decide(RouteRequest("the rudder and the keel", caller_request_count=99))
    assert (found.expert_id, found.source) == ("sailing", RouteSource.GATE)


def test_progress_tells_every_epoch_of_both_phases(tmp_path, rows):
    told = []
    train_first_stage(rows, tmp_path, epochs=2, progress=lambda *step: told.append(step))
    assert told == [("gate", 1, 2), ("gate", 2, 2), ("table", 1, 2), ("table", 2, 2)]


@pytest.mark.parametrize("kept", [[], ["baking"]])
def test_fewer_than_two_labels_are_refused(tmp_path, rows, kept):
    few = [row for row in rows if row.split == "test" or row.label in kept]
    with pytest.raises(TrainingDataError, match="needs 'train' rows of at least two labels"):
        train_first_stage(few, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("texts", [("bread", "lease"), ("?!", "。"), ("\0" * 9, "x" * 100_000)])
def test_two_rows_are_enough_whatever_they_say(tmp_path, texts):
    rows = [
        LabelledPrompt(text, label, "en", "train") for text, label in zip(texts, "ab", strict=True)
    ]
    train_first_stage(rows, tmp_path, epochs=1)
    assert Router.load(tmp_path, experts_of("a", "b"), "a").decide(RouteRequest("bread")).score >= 0


def test_what_was_never_seen_has_no_say(trained):
    gate, table = load_gate(trained / GATE_FILE), load_table(trained)
    empty = features_of("", bucket_count=BUCKETS)
    unseen = np.flatnonzero(~gate.bag.any(axis=1))[:5].astype(np.uint32)
    assert len(unseen) == 5
    ones = np.ones(5, dtype=np.float32)
    np.testing.assert_array_equal(gate.scores(unseen, ones), gate.scores(*empty))
    assert not table.cells.any(axis=1).all()


def test_a_trained_first_stage_routes_new_prompts_about_what_it_learned(trained, rows):
    report = evaluate([row for row in rows if row.split == "test"], trained)
    assert min(report.accuracy.values()) > 0.9, report.accuracy


def test_the_table_spends_its_whole_range_of_bytes(trained):
    cells = load_table(trained).cells
    assert int(np.abs(cells.astype(int)).max()) == 127
    document = json.loads((trained / TABLE_FACTS_FILE).read_text(encoding="utf-8"))
    assert document.keys() == {"facts", "table_version", "scale", "head", "bias"}


def test_a_gate_of_the_packaged_prompts_beats_forty_per_cent_on_those_it_never_saw(tmp_path):
    rows = read_prompts(packaged_prompts())
    train_first_stage(rows, tmp_path)
    report = evaluate([row for row in rows if row.split == "test"], tmp_path)
    assert report.accuracy["gate"] > 0.4
    assert report.accuracy["table"] > 0.4
