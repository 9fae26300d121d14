"""What the trainings of gate and table share: encoded rows, the loop, and calibration. Deterministic by seed.

The loss is cross-entropy with label smoothing plus an auxiliary balance loss; features are dropped at random as
router dropout.

Source: balance loss, Fedus et al. 2022 (Switch Transformers), equation 4; temperature scaling, Guo et al. 2017.

Shape legend: B = rows of a batch, N = features, E = experts, U = buckets.
"""

# ruff: noqa: N803, N806 -- tensors carry their shape as a suffix (STYLE.md, torch)

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- torch's own convention

from routing_engine.features import features_of
from routing_engine.gate import BUCKETS
from routing_engine.training.dataset import LabelledPrompt

EPOCHS = 8
BATCH = 128
LEARNING_RATE = 0.02
LABEL_SMOOTHING = 0.05
BALANCE_WEIGHT = 0.01
FEATURE_DROPOUT = 0.3
PROMPT_WEIGHT = 2.0
"""How much more a labelled prompt counts than a practice prompt made of the vocabulary."""

ABSTAIN_ACCURACY = 0.5
"""Below the threshold, fewer of the calibration rows than this are routed right: more wrong than right."""

ABSTAIN_MAX = 0.5
"""The threshold never asks for more than this, however small the calibration slice is."""

TEMPERATURES = (0.4, 4.0)
"""Bounds of the temperature: a few lucky rows must not turn every score into 1."""

Progress = Callable[[str, int, int], None]
"""Receives phase, steps done and steps in all."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as one flat list of features: row r owns ``buckets[starts[r]:starts[r + 1]]``."""

    buckets: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int64]
    labels: Tensor
    importance: Tensor

    def batch(self, rows: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        """Return buckets, offsets and weights of some rows."""
        lengths = self.starts[rows + 1] - self.starts[rows]
        offsets = np.cumsum(lengths) - lengths
        index = np.repeat(self.starts[rows] - offsets, lengths) + np.arange(lengths.sum())
        return (
            torch.from_numpy(self.buckets[index]),
            torch.from_numpy(offsets),
            torch.from_numpy(self.weights[index]),
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """The temperature that makes scores probabilities, and the score below which a scorer is unsure."""

    temperature: float
    abstain_below: float


def encode(
    rows: Sequence[LabelledPrompt], labels: Sequence[str], importance: Sequence[float]
) -> EncodedRows:
    """Return `rows` as features of `BUCKETS` buckets; `importance` weighs each row in the loss."""
    index = {label: number for number, label in enumerate(labels)}
    found = [features_of(row.text, row.concept_ids, bucket_count=BUCKETS) for row in rows]
    lengths = np.array([0, *(len(buckets) for buckets, _ in found)], dtype=np.int64)
    return EncodedRows(
        buckets=np.concatenate([buckets for buckets, _ in found]).astype(np.int64),
        weights=np.concatenate([weights for _, weights in found]),
        starts=np.cumsum(lengths),
        labels=torch.tensor([index[row.label] for row in rows]),
        importance=torch.tensor(importance, dtype=torch.float32),
    )


def rarity(encoded: EncodedRows, rows: npt.NDArray[np.int64], bucket_count: int) -> Tensor:
    """Return how much each bucket tells, shape (U,): the rarer the more; zero for one that no row has.

    It scales the learned vectors and is folded into them at export, so that routing pays nothing for it; and what
    was never seen in training has no say.
    """
    frequencies = np.zeros(bucket_count)
    for row in rows:
        span = slice(encoded.starts[row], encoded.starts[row + 1])
        frequencies[np.unique(encoded.buckets[span] % bucket_count)] += 1
    told = np.log((1 + len(rows)) / (1 + frequencies)) + 1
    return torch.from_numpy(np.where(frequencies > 0, told, 0.0).astype(np.float32))


def fit(
    model: nn.Module,
    encoded: EncodedRows,
    rows: npt.NDArray[np.int64],
    *,
    seed: int,
    epochs: int,
    phase: str,
    progress: Progress | None,
) -> None:
    """Train `model`, which maps buckets, offsets and weights to logits (B, E), on some rows."""
    generator = torch.Generator().manual_seed(seed)
    shuffle = np.random.default_rng(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    step_count = epochs * -(-len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, total_iters=step_count)
    model.train()
    for epoch in range(epochs):
        order = shuffle.permutation(rows)
        for start in range(0, len(order), BATCH):
            picked = order[start : start + BATCH]
            buckets, offsets, weights = encoded.batch(picked)
            kept = torch.rand(len(weights), generator=generator) >= FEATURE_DROPOUT
            logits_BE = model(buckets, offsets, weights * kept / (1.0 - FEATURE_DROPOUT) ** 0.5)
            losses_B = F.cross_entropy(
                logits_BE,
                encoded.labels[picked],
                reduction="none",
                label_smoothing=LABEL_SMOOTHING,
            )
            loss = (losses_B * encoded.importance[picked]).mean()
            loss = loss + BALANCE_WEIGHT * _balance_loss(logits_BE)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            schedule.step()
        if progress is not None:
            progress(phase, epoch + 1, epochs)
    model.eval()


def logits_of(model: nn.Module, encoded: EncodedRows, rows: npt.NDArray[np.int64]) -> Tensor:
    """Return the logits (B, E) of some rows."""
    with torch.inference_mode():
        logits_BE: Tensor = model(*encoded.batch(rows))
    return logits_BE


def calibrate(logits_BE: Tensor, labels_B: Tensor) -> Calibration:
    """Return the temperature of lowest cross-entropy, and the abstain threshold at that temperature.

    The threshold is the highest score below which fewer than `ABSTAIN_ACCURACY` of the rows are right.
    """
    grid = torch.logspace(np.log10(TEMPERATURES[0]), np.log10(TEMPERATURES[1]), 61)
    losses = torch.stack([F.cross_entropy(logits_BE / each, labels_B) for each in grid])
    temperature = float(grid[int(losses.argmin())])
    top_B, picked_B = torch.softmax(logits_BE / temperature, dim=1).max(dim=1)
    is_right_B = picked_B == labels_B
    threshold = min(1.5 / logits_BE.shape[1], ABSTAIN_MAX)
    for candidate in torch.linspace(threshold, ABSTAIN_MAX, 40).tolist():
        below = top_B < candidate
        if int(below.sum()) and float(is_right_B[below].float().mean()) < ABSTAIN_ACCURACY:
            threshold = candidate
    return Calibration(temperature, threshold)


def _balance_loss(logits_BE: Tensor) -> Tensor:
    """Return E · Σ share_e · mean_score_e: one when experts are used evenly, more when few take all."""
    scores_BE = torch.softmax(logits_BE, dim=1)
    picked = F.one_hot(scores_BE.argmax(dim=1), scores_BE.shape[1]).float()
    return scores_BE.shape[1] * (picked.mean(dim=0) * scores_BE.mean(dim=0)).sum()
