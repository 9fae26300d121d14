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

_GELU_LINE = np.float32(0.7978845608)
_GELU_CUBE = np.float32(0.7978845608 * 0.044715)
_ONE = np.float32(1.0)


@dataclass(frozen=True, slots=True)
class Gate:
    """Weights and facts of one gate.

    Shapes: bag (BUCKETS, H), fingerprint (H, D·W), fingerprint_bias (D·W), affinity (E, W), affinity_bias (E),
    domain_of (E) = index of each expert's block; reading (D·W, E) is the affinity spread over the blocks, zero
    outside an expert's own, with the temperature in it: for one prompt a single product is faster than gathering.
    """

    bag: Floats
    fingerprint: Floats
    fingerprint_bias: Floats
    affinity: Floats
    affinity_bias: Floats
    domain_of: npt.NDArray[np.int64]
    reading: Floats
    bias: Floats
    facts: Facts
    version: str

    def scores(self, buckets: Buckets, weights: Weights) -> Floats:
        """Return the calibrated probability of each label, shape (E,), in the order of `facts.labels`."""
        x_H = weights @ self.bag[buckets]
        h: Floats = (x_H @ self.fingerprint).astype(np.float32, copy=False)
        h += self.fingerprint_bias
        # GELU in its tanh form, which is what training uses too.
        inner = h * h
        inner *= _GELU_CUBE
        inner += _GELU_LINE
        inner *= h
        np.tanh(inner, out=inner)
        inner += _ONE
        inner *= h
        logits_E: Floats = (inner @ self.reading).astype(np.float32, copy=False) + self.bias
        return softmax(logits_E)


def softmax(logits: Floats) -> Floats:
    """Return the softmax of `logits`, which are overwritten."""
    logits -= logits.max()
    np.exp(logits, out=logits)
    logits /= logits.sum()
    return logits


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
    temperature = np.float32(facts.temperature)
    affinity, affinity_bias = (
        arrays[name].astype(np.float32) for name in ("affinity", "affinity_bias")
    )
    reading = np.zeros((experts, domains, BLOCK_WIDTH), dtype=np.float32)
    # GELU's factor of one half is in here too.
    reading[np.arange(experts), domain_of] = affinity / (2 * temperature)
    return Gate(
        bag=arrays["bag"].astype(np.float32),
        fingerprint=arrays["fingerprint"].astype(np.float32),
        fingerprint_bias=arrays["fingerprint_bias"].astype(np.float32),
        affinity=affinity,
        affinity_bias=affinity_bias,
        domain_of=domain_of,
        reading=np.ascontiguousarray(reading.reshape(experts, -1).T),
        bias=affinity_bias / temperature,
        facts=facts,
        version=version_of(path.read_bytes()),
    )
