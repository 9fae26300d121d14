"""The first stage's gate in numpy: hashed bag → fingerprint → block-sparse expert affinity → softmax.

Trained in torch (`routing_engine/training/first_stage.py`), exported as float32, run here without it in tens of
microseconds. Experts of one domain read only that domain's block of the fingerprint.

Shape legend: N = features of a text, H = bag width, D = domains, W = block width, E = experts.
"""

# ruff: noqa: N806 -- tensors carry their shape as a suffix (STYLE.md, torch)

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from routing_engine.artefacts import Facts, load_tensors, require, version_of
from routing_engine.errors import ArtefactError
from routing_engine.features import FEATURE_VERSION, Buckets, Weights

KIND = "first-stage-gate"
BUCKETS = 32_768
BAG_WIDTH = 32
BLOCK_WIDTH = 16

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Gate:
    """Weights and facts of one gate.

    Shapes: bag (BUCKETS, H), fingerprint (H, D·W), fingerprint_bias (D·W), affinity (E, W), affinity_bias (E),
    domain_of (E) = index of each expert's block.
    """

    bag: Floats
    fingerprint: Floats
    fingerprint_bias: Floats
    affinity: Floats
    affinity_bias: Floats
    domain_of: npt.NDArray[np.int64]
    facts: Facts
    version: str

    def scores(self, buckets: Buckets, weights: Weights) -> Floats:
        """Return the calibrated probability of each label, shape (E,), in the order of `facts.labels`."""
        x_H = weights @ self.bag[buckets]
        h = x_H @ self.fingerprint + self.fingerprint_bias
        # GELU in its tanh form, which is what training uses too.
        h = 0.5 * h * (1.0 + np.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))
        blocks_DW = h.reshape(-1, BLOCK_WIDTH)
        logits_E = (blocks_DW[self.domain_of] * self.affinity).sum(axis=1) + self.affinity_bias
        return softmax(logits_E, self.facts.temperature)


def softmax(logits: Floats, temperature: float) -> Floats:
    """Return the softmax of ``logits / temperature``."""
    scaled = (logits - logits.max()) / max(temperature, 1e-6)
    powers = np.exp(scaled)
    return np.asarray(powers / powers.sum(), dtype=np.float32)


def load_gate(path: Path) -> Gate:
    """Return the gate in `path`.

    Raises:
        ArtefactError: the file is missing or damaged, or was made for other features or shapes.
    """
    arrays, facts = load_tensors(path)
    require(facts, path, kind=KIND, feature_version=FEATURE_VERSION)
    experts, domains = len(facts.labels), len(set(facts.domains))
    wanted = {
        "bag": (BUCKETS, BAG_WIDTH),
        "fingerprint": (BAG_WIDTH, domains * BLOCK_WIDTH),
        "fingerprint_bias": (domains * BLOCK_WIDTH,),
        "affinity": (experts, BLOCK_WIDTH),
        "affinity_bias": (experts,),
        "domain_of": (experts,),
    }
    for name, shape in wanted.items():
        if name not in arrays or arrays[name].shape != shape:
            raise ArtefactError(str(path), f"tensor {name!r} is missing or isn't of shape {shape}")
        if not np.isfinite(arrays[name]).all():
            raise ArtefactError(str(path), f"tensor {name!r} has values that aren't numbers")
    if not (math.isfinite(facts.temperature) and facts.temperature > 0):
        raise ArtefactError(str(path), "its temperature isn't a positive number")
    domain_of = arrays["domain_of"].astype(np.int64)
    if domain_of.min() < 0 or domain_of.max() >= domains:
        raise ArtefactError(str(path), "tensor 'domain_of' names a block that isn't there")
    return Gate(
        bag=arrays["bag"].astype(np.float32),
        fingerprint=arrays["fingerprint"].astype(np.float32),
        fingerprint_bias=arrays["fingerprint_bias"].astype(np.float32),
        affinity=arrays["affinity"].astype(np.float32),
        affinity_bias=arrays["affinity_bias"].astype(np.float32),
        domain_of=domain_of,
        facts=facts,
        version=version_of(path.read_bytes()),
    )
