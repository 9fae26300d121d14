"""Training of the first stage in torch: the gate (here) and the fallback table, exported for numpy.

The gate is a hashed embedding bag under a GELU fingerprint with block-sparse affinity. It learns from labelled
prompts and, where there is one, from the experts' vocabulary; temperature and abstain threshold are calibrated on a
slice of the labelled prompts that the weights never see. Deterministic by seed on one machine.

Source: hashed bags, docs/adr/0009.

Shape legend: B = rows of a batch, U = buckets, H = bag width, D = domains, W = block width, E = experts.
"""

# ruff: noqa: N803, N806 -- tensors carry their shape as a suffix (STYLE.md, torch)

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- torch's own convention

from routing_engine.artefacts import GATE_FILE, Facts, save_tensors
from routing_engine.errors import TrainingDataError
from routing_engine.features import FEATURE_VERSION
from routing_engine.gate import BAG_WIDTH, BLOCK_WIDTH, BUCKETS, KIND
from routing_engine.training.dataset import TRAIN, LabelledPrompt, domains_of
from routing_engine.training.fallback_table import train_table
from routing_engine.training.fitting import (
    EPOCHS,
    PROMPT_WEIGHT,
    EncodedRows,
    Progress,
    calibrate,
    encode,
    fit,
    logits_of,
    rarity,
)
from routing_engine.training.vocabulary import Vocabulary

CALIBRATION_SHARE = 0.15


class BagGate(nn.Module):
    """Bag → fingerprint (linear, GELU) → block-sparse affinity: what `routing_engine.gate.Gate` runs."""

    def __init__(self, domain_of_E: Tensor, domain_count: int, rarity_U: Tensor) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, BAG_WIDTH, mode="sum")
        nn.init.normal_(self.bag.weight, std=0.01)
        self.fingerprint = nn.Linear(BAG_WIDTH, domain_count * BLOCK_WIDTH)
        self.affinity = nn.Parameter(torch.randn(len(domain_of_E), BLOCK_WIDTH) * 0.2)
        self.affinity_bias = nn.Parameter(torch.zeros(len(domain_of_E)))
        self.register_buffer("domain_of", domain_of_E)
        self.register_buffer("rarity", rarity_U)

    def forward(self, buckets: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
        """Return logits (B, E)."""
        weights = weights * self.get_buffer("rarity")[buckets]
        x_BH = self.bag(buckets, offsets, per_sample_weights=weights)
        h = F.gelu(self.fingerprint(x_BH), approximate="tanh")
        blocks_BDW = h.reshape(len(h), -1, BLOCK_WIDTH)
        blocks_BEW = blocks_BDW[:, self.get_buffer("domain_of")]
        logits_BE: Tensor = (blocks_BEW * self.affinity).sum(-1) + self.affinity_bias
        return logits_BE


def train_first_stage(
    rows: Sequence[LabelledPrompt],
    directory: Path,
    *,
    vocabulary: Vocabulary | None = None,
    seed: int = 0,
    epochs: int = EPOCHS,
    progress: Progress | None = None,
) -> None:
    """Train gate and table on the ``train`` rows and write their artefacts to `directory`.

    Args:
        vocabulary: domains and terms of the experts; terms of experts without a labelled prompt count too. Without
            it the rows name the domains. Labels of one domain share a block.

    Raises:
        TrainingDataError: fewer than two labels have training rows.
    """
    prompts = [row for row in rows if row.split == TRAIN]
    practice = [] if vocabulary is None else vocabulary.practice_prompts(seed)
    labels = tuple(sorted({row.label for row in (*prompts, *practice)}))
    if len(labels) < 2 or len(prompts) < 2:
        raise TrainingDataError("training data", 0, "needs 'train' rows of at least two labels")
    known = {**domains_of([*prompts, *practice]), **(vocabulary.domains if vocabulary else {})}
    domains = tuple(known[label] for label in labels)
    importance = [PROMPT_WEIGHT] * len(prompts) + [1.0] * len(practice)
    encoded = encode([*prompts, *practice], labels, importance)
    fitted, held = _split(len(prompts), len(practice), seed)
    # Seeding the process's generator would change it for everybody else.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _train_gate(
            encoded,
            fitted,
            held,
            directory,
            labels=labels,
            domains=domains,
            seed=seed,
            epochs=epochs,
            progress=progress,
        )
        train_table(
            encoded,
            fitted,
            held,
            directory,
            labels=labels,
            domains=domains,
            seed=seed + 1,
            epochs=epochs,
            progress=progress,
        )


def _split(
    prompt_count: int, practice_count: int, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows to fit and the rows to calibrate on, which are real prompts only."""
    order = np.random.default_rng(seed).permutation(prompt_count)
    held = max(1, int(prompt_count * CALIBRATION_SHARE))
    practice = np.arange(prompt_count, prompt_count + practice_count)
    return np.concatenate([order[held:], practice]), order[:held]


def _train_gate(
    encoded: EncodedRows,
    fitted: npt.NDArray[np.int64],
    held: npt.NDArray[np.int64],
    directory: Path,
    *,
    labels: tuple[str, ...],
    domains: tuple[str, ...],
    seed: int,
    epochs: int,
    progress: Progress | None,
) -> None:
    blocks = sorted(set(domains))
    domain_of_E = torch.tensor([blocks.index(domain) for domain in domains])
    gate = BagGate(domain_of_E, len(blocks), rarity(encoded, fitted, BUCKETS))
    fit(gate, encoded, fitted, seed=seed, epochs=epochs, phase="gate", progress=progress)
    logits_BE = logits_of(gate, encoded, held)
    calibration = calibrate(logits_BE, encoded.labels[held])
    accuracy = float((logits_BE.argmax(dim=1) == encoded.labels[held]).float().mean())
    facts = Facts(
        kind=KIND,
        feature_version=FEATURE_VERSION,
        labels=labels,
        domains=domains,
        temperature=calibration.temperature,
        abstain_below=calibration.abstain_below,
        seed=seed,
        evaluation={"calibration_accuracy": accuracy, "calibration_rows": float(len(held))},
    )
    arrays = {
        "bag": gate.bag.weight * gate.get_buffer("rarity")[:, None],
        "fingerprint": gate.fingerprint.weight.T,
        "fingerprint_bias": gate.fingerprint.bias,
        "affinity": gate.affinity,
        "affinity_bias": gate.affinity_bias,
    }
    exported = {name: tensor.detach().numpy().astype(np.float32) for name, tensor in arrays.items()}
    exported["domain_of"] = gate.get_buffer("domain_of").numpy()
    save_tensors(directory / GATE_FILE, exported, facts)
