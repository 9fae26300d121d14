"""Small artefacts made by hand, without torch, for tests of gate, table and router."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from routing_engine.artefacts import GATE_FILE, Facts, save_tensors
from routing_engine.features import FEATURE_VERSION, features_of
from routing_engine.gate import BAG_WIDTH, BLOCK_WIDTH, BUCKETS
from routing_engine.gate import KIND as GATE_KIND
from routing_engine.table import KIND as TABLE_KIND
from routing_engine.table import TABLE_BUCKETS, TABLE_WIDTH, save_table
from routing_engine.types import Expert, ExpertId

LABELS = ("bakery", "garage", "general")
SAMPLES = ("bread flour oven", "brake engine tyre", "hello weather")

GATE_FACTS = Facts(
    kind=GATE_KIND,
    feature_version=FEATURE_VERSION,
    labels=LABELS,
    domains=("food", "cars", "food"),
    temperature=1.0,
    abstain_below=0.5,
    seed=0,
    evaluation={},
)
TABLE_FACTS = replace(GATE_FACTS, kind=TABLE_KIND)


def gate_arrays() -> dict[str, np.ndarray]:
    """Each sample's buckets point along its own axis; each expert reads its axis in its domain's block."""
    bag = np.zeros((BUCKETS, BAG_WIDTH), dtype=np.float32)
    for axis, sample in enumerate(SAMPLES):
        bag[features_of(sample, bucket_count=BUCKETS)[0], axis] = 4.0
    fingerprint = np.zeros((BAG_WIDTH, 2 * BLOCK_WIDTH), dtype=np.float32)
    fingerprint[1, 0] = 1.0  # cars is the first block
    fingerprint[0, BLOCK_WIDTH] = fingerprint[2, BLOCK_WIDTH + 1] = 1.0
    affinity = np.zeros((3, BLOCK_WIDTH), dtype=np.float32)
    affinity[0, 0] = affinity[1, 0] = affinity[2, 1] = 1.0
    return {
        "bag": bag,
        "fingerprint": fingerprint,
        "fingerprint_bias": np.zeros(2 * BLOCK_WIDTH, dtype=np.float32),
        "affinity": affinity,
        "affinity_bias": np.zeros(3, dtype=np.float32),
        "domain_of": np.array([1, 0, 1]),
    }


def random_gate_arrays() -> dict[str, np.ndarray]:
    """A gate whose every number matters, and whose scores are neither 0 nor 1."""
    draw = np.random.default_rng(3)
    arrays = {
        name: array if name == "domain_of" else draw.normal(size=array.shape).astype(np.float32)
        for name, array in gate_arrays().items()
    }
    return {**arrays, "affinity": arrays["affinity"] * np.float32(0.05)}


def write_gate(directory: Path, facts: Facts = GATE_FACTS, **changed: np.ndarray) -> Path:
    save_tensors(directory / GATE_FILE, {**gate_arrays(), **changed}, facts)
    return directory / GATE_FILE


TableParts = tuple[np.ndarray, float, np.ndarray, np.ndarray]


def table_parts() -> TableParts:
    """Cells, scale, head and bias of a table that sends each sample to its label."""
    cells = np.zeros((TABLE_BUCKETS, TABLE_WIDTH), dtype=np.int8)
    for axis, sample in enumerate(SAMPLES):
        cells[features_of(sample, bucket_count=TABLE_BUCKETS)[0], axis] = 100
    head = np.zeros((TABLE_WIDTH, 3), dtype=np.float32)
    head[0, 0] = head[1, 1] = head[2, 2] = 1.0
    return cells, 0.04, head, np.zeros(3, dtype=np.float32)


def random_table_parts() -> TableParts:
    """A table whose every number matters, and whose scores are neither 0 nor 1."""
    draw = np.random.default_rng(3)
    return (
        draw.integers(-127, 128, size=(TABLE_BUCKETS, TABLE_WIDTH), dtype=np.int8),
        0.02,
        draw.normal(size=(TABLE_WIDTH, 3)).astype(np.float32),
        draw.normal(size=3).astype(np.float32),
    )


def write_table(
    directory: Path, facts: Facts = TABLE_FACTS, parts: TableParts | None = None
) -> Path:
    save_table(directory, *(parts or table_parts()), facts)
    return directory


def experts_of(*labels: str) -> list[Expert]:
    return [Expert(ExpertId(label), number, "", label, ()) for number, label in enumerate(labels)]
