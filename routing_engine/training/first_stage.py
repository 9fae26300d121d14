"""Training of the first stage in torch: the gate and the fallback table, exported for numpy.

Both are hashed embedding bags with a head; the gate's head is a GELU fingerprint with block-sparse affinity, the
table's is linear and its bag is quantised to signed bytes. The loss is cross-entropy with label smoothing plus an
auxiliary balance loss, with feature dropout as router dropout; temperature and abstain threshold are calibrated on
a slice of the training rows that the weights never see. Deterministic by seed on one machine.

Source: hashed bags, docs/adr/0009; balance loss, Fedus et al. 2022 (Switch Transformers), equation 4; temperature
scaling, Guo et al. 2017.

Shape legend: B = rows of a batch, N = features, H = bag width, D = domains, W = block width, E = experts.
"""

# ruff: noqa: N803, N806 -- tensors carry their shape as a suffix (STYLE.md, torch)

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- torch's own convention

from routing_engine.artefacts import GATE_FILE, Facts, save_tensors
from routing_engine.errors import TrainingDataError
from routing_engine.features import FEATURE_VERSION, features_of
from routing_engine.gate import BAG_WIDTH, BLOCK_WIDTH, BUCKETS
from routing_engine.gate import KIND as GATE_KIND
from routing_engine.table import KIND as TABLE_KIND
from routing_engine.table import TABLE_BUCKETS, TABLE_WIDTH, save_table
from routing_engine.training.dataset import TRAIN, LabelledPrompt, domains_of

BAG_STD = 1e-3
"""Near zero: a bucket that no training row touches must add nothing to a prompt."""

EPOCHS = 30
BATCH = 64
LEARNING_RATE = 0.01
WEIGHT_DECAY = 1e-4
LABEL_SMOOTHING = 0.05
BALANCE_WEIGHT = 0.01
FEATURE_DROPOUT = 0.3
CALIBRATION_SHARE = 0.15
ABSTAIN_ACCURACY = 0.6
"""Below the threshold, fewer of the calibration rows than this are routed right."""

ABSTAIN_MAX = 0.55
"""The threshold never asks for more than this, however small the calibration slice is."""

Progress = Callable[[str, int, int], None]
"""Receives phase, steps done and steps in all."""


class BagGate(nn.Module):
    """Bag → fingerprint (linear, GELU) → block-sparse affinity: what `routing_engine.gate.Gate` runs."""

    def __init__(self, domain_of_E: Tensor, domain_count: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, BAG_WIDTH, mode="sum")
        nn.init.normal_(self.bag.weight, std=BAG_STD)
        self.fingerprint = nn.Linear(BAG_WIDTH, domain_count * BLOCK_WIDTH)
        self.affinity = nn.Parameter(torch.randn(len(domain_of_E), BLOCK_WIDTH) * 0.2)
        self.affinity_bias = nn.Parameter(torch.zeros(len(domain_of_E)))
        self.register_buffer("domain_of", domain_of_E)

    def forward(self, buckets: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
        """Return logits (B, E)."""
        x_BH = self.bag(buckets, offsets, per_sample_weights=weights)
        h_BC: Tensor = F.gelu(self.fingerprint(x_BH), approximate="tanh")
        h_BDW = h_BC.view(len(h_BC), -1, BLOCK_WIDTH)
        blocks_BEW = h_BDW[:, self.get_buffer("domain_of")]
        logits_BE: Tensor = (blocks_BEW * self.affinity).sum(-1) + self.affinity_bias
        return logits_BE


class BagTable(nn.Module):
    """Bag → linear head: what `routing_engine.table.FallbackTable` runs after quantisation."""

    def __init__(self, expert_count: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(TABLE_BUCKETS, TABLE_WIDTH, mode="sum")
        nn.init.normal_(self.bag.weight, std=BAG_STD)
        self.head = nn.Linear(TABLE_WIDTH, expert_count)

    def forward(self, buckets: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
        """Return logits (B, E)."""
        logits_BE: Tensor = self.head(
            self.bag(buckets % TABLE_BUCKETS, offsets, per_sample_weights=weights)
        )
        return logits_BE


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Rows as features, with their labels as indices."""

    buckets: list[Tensor]
    weights: list[Tensor]
    labels: Tensor

    def batch(
        self, indices: Sequence[int], *, dropout: float, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Return buckets, offsets and weights of some rows, with features dropped at random."""
        buckets, weights = [], []
        for index in indices:
            bucket, weight = self.buckets[index], self.weights[index]
            if dropout:
                kept = torch.rand(len(bucket), generator=generator) >= dropout
                bucket, weight = bucket[kept], weight[kept] / (1.0 - dropout) ** 0.5
            buckets.append(bucket)
            weights.append(weight)
        lengths = torch.tensor([0, *(len(each) for each in buckets[:-1])])
        return torch.cat(buckets), lengths.cumsum(0), torch.cat(weights)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The temperature that makes scores probabilities, and the score below which the gate is unsure."""

    temperature: float
    abstain_below: float


def train_first_stage(
    rows: Sequence[LabelledPrompt],
    directory: Path,
    *,
    seed: int = 0,
    domains: Mapping[str, str] | None = None,
    epochs: int = EPOCHS,
    progress: Progress | None = None,
) -> None:
    """Train gate and table on the ``train`` rows and write their artefacts to `directory`.

    Args:
        domains: the domain of each label; the rows' own by default. Labels of one domain share a block.

    Raises:
        TrainingDataError: fewer than two labels have training rows.
    """
    train = [row for row in rows if row.split == TRAIN]
    labels = tuple(sorted({row.label for row in train}))
    if len(labels) < 2:
        raise TrainingDataError("training data", 0, "needs 'train' rows of at least two labels")
    known = {**domains_of(train), **(domains or {})}
    label_domains = tuple(known[label] for label in labels)
    encoded = _encode(train, labels)
    fit, held = _split(len(train), seed)
    blocks = sorted(set(label_domains))
    domain_of = torch.tensor([blocks.index(domain) for domain in label_domains])
    # Seeding the process's generator would change it for everybody else.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gate = BagGate(domain_of, len(blocks))
        _fit(gate, encoded, fit, seed=seed, epochs=epochs, phase="gate", progress=progress)
        table = BagTable(len(labels))
        _fit(table, encoded, fit, seed=seed + 1, epochs=epochs, phase="table", progress=progress)
    scale = float(table.bag.weight.detach().abs().max()) / 127.0
    cells = torch.clamp(torch.round(table.bag.weight.detach() / scale), -127, 127)
    with torch.no_grad():
        table.bag.weight.copy_(cells * scale)
    _export_gate(gate, encoded, held, directory, labels, label_domains, seed)
    calibration = calibrate(_logits(table, encoded, held), encoded.labels[held])
    save_table(
        directory,
        cells.numpy().astype(np.int8),
        scale,
        table.head.weight.detach().numpy().T.astype(np.float32),
        table.head.bias.detach().numpy().astype(np.float32),
        _facts(TABLE_KIND, labels, label_domains, calibration, seed),
    )


def calibrate(logits_BE: Tensor, labels_B: Tensor) -> Calibration:
    """Return the temperature of lowest cross-entropy, and the abstain threshold at that temperature.

    The threshold is the highest score below which fewer than `ABSTAIN_ACCURACY` of the rows are right.
    """
    grid = torch.logspace(-1.0, 1.0, 81)
    losses = torch.stack([F.cross_entropy(logits_BE / each, labels_B) for each in grid])
    temperature = float(grid[int(losses.argmin())])
    top_B, picked_B = torch.softmax(logits_BE / temperature, dim=1).max(dim=1)
    is_right_B = picked_B == labels_B
    threshold = 1.5 / logits_BE.shape[1]
    for candidate in torch.linspace(threshold, ABSTAIN_MAX, 40).tolist():
        below = top_B < candidate
        if int(below.sum()) and float(is_right_B[below].float().mean()) < ABSTAIN_ACCURACY:
            threshold = candidate
    return Calibration(temperature, min(threshold, ABSTAIN_MAX))


def _encode(rows: Sequence[LabelledPrompt], labels: Sequence[str]) -> _Encoded:
    index = {label: number for number, label in enumerate(labels)}
    buckets, weights = [], []
    for row in rows:
        found, weighed = features_of(row.text, row.concept_ids, bucket_count=BUCKETS)
        buckets.append(torch.from_numpy(found.astype(np.int64)))
        weights.append(torch.from_numpy(weighed))
    return _Encoded(buckets, weights, torch.tensor([index[row.label] for row in rows]))


def _split(count: int, seed: int) -> tuple[list[int], list[int]]:
    """Return the rows to fit and the rows to calibrate on."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    held = max(1, int(count * CALIBRATION_SHARE))
    return order[held:], order[:held]


def _fit(
    model: nn.Module,
    encoded: _Encoded,
    rows: list[int],
    *,
    seed: int,
    epochs: int,
    phase: str,
    progress: Progress | None,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    model.train()
    for epoch in range(epochs):
        order = torch.randperm(len(rows), generator=generator).tolist()
        for start in range(0, len(order), BATCH):
            picked = [rows[each] for each in order[start : start + BATCH]]
            batch = encoded.batch(picked, dropout=FEATURE_DROPOUT, generator=generator)
            logits_BE = model(*batch)
            labels_B = encoded.labels[picked]
            loss = F.cross_entropy(logits_BE, labels_B, label_smoothing=LABEL_SMOOTHING)
            loss = loss + BALANCE_WEIGHT * _balance_loss(logits_BE)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
        schedule.step()
        if progress is not None:
            progress(phase, epoch + 1, epochs)
    model.eval()


def _balance_loss(logits_BE: Tensor) -> Tensor:
    """Return E · Σ share_e · mean_score_e: one when experts are used evenly, more when few take all."""
    scores_BE = torch.softmax(logits_BE, dim=1)
    picked = F.one_hot(scores_BE.argmax(dim=1), scores_BE.shape[1]).float()
    return scores_BE.shape[1] * (picked.mean(dim=0) * scores_BE.mean(dim=0)).sum()


def _logits(model: nn.Module, encoded: _Encoded, rows: list[int]) -> Tensor:
    batch = encoded.batch(rows, dropout=0.0, generator=torch.Generator())
    with torch.inference_mode():
        logits_BE: Tensor = model(*batch)
    return logits_BE


def _facts(
    kind: str,
    labels: tuple[str, ...],
    domains: tuple[str, ...],
    calibration: Calibration,
    seed: int,
    evaluation: Mapping[str, float] | None = None,
) -> Facts:
    return Facts(
        kind=kind,
        feature_version=FEATURE_VERSION,
        labels=labels,
        domains=domains,
        temperature=calibration.temperature,
        abstain_below=calibration.abstain_below,
        seed=seed,
        evaluation=evaluation or {},
    )


def _export_gate(
    gate: BagGate,
    encoded: _Encoded,
    held: list[int],
    directory: Path,
    labels: tuple[str, ...],
    domains: tuple[str, ...],
    seed: int,
) -> None:
    logits_BE = _logits(gate, encoded, held)
    calibration = calibrate(logits_BE, encoded.labels[held])
    accuracy = float((logits_BE.argmax(dim=1) == encoded.labels[held]).float().mean())
    facts = _facts(
        GATE_KIND,
        labels,
        domains,
        calibration,
        seed,
        {"calibration_accuracy": accuracy, "calibration_rows": float(len(held))},
    )
    arrays = {
        "bag": gate.bag.weight,
        "fingerprint": gate.fingerprint.weight.T,
        "fingerprint_bias": gate.fingerprint.bias,
        "affinity": gate.affinity,
        "affinity_bias": gate.affinity_bias,
    }
    exported = {name: tensor.detach().numpy().astype(np.float32) for name, tensor in arrays.items()}
    exported["domain_of"] = gate.get_buffer("domain_of").numpy()
    save_tensors(directory / GATE_FILE, exported, facts)
