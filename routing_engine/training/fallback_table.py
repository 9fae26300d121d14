"""Training of the fallback table in torch: a hashed bag with a linear head, quantised to signed bytes.

Source: hashed bags, docs/adr/0009.

Shape legend: B = rows of a batch, U = table buckets, W = table width, E = experts.
"""

# ruff: noqa: N806 -- tensors carry their shape as a suffix (STYLE.md, torch)

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from routing_engine.artefacts import Facts
from routing_engine.features import FEATURE_VERSION
from routing_engine.table import KIND, TABLE_BUCKETS, TABLE_WIDTH, save_table
from routing_engine.training.fitting import (
    EncodedRows,
    Progress,
    calibrate,
    fit,
    logits_of,
    rarity,
)

CELL_MAX = 127


class BagTable(nn.Module):
    """Bag → linear head: what `routing_engine.table.FallbackTable` runs after quantisation."""

    def __init__(self, expert_count: int, rarity_U: Tensor) -> None:  # noqa: N803
        super().__init__()
        self.bag = nn.EmbeddingBag(TABLE_BUCKETS, TABLE_WIDTH, mode="sum")
        nn.init.normal_(self.bag.weight, std=0.01)
        self.head = nn.Linear(TABLE_WIDTH, expert_count)
        nn.init.orthogonal_(self.head.weight)
        self.register_buffer("rarity", rarity_U)

    def forward(self, buckets: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
        """Return logits (B, E)."""
        buckets = buckets % TABLE_BUCKETS
        weights = weights * self.get_buffer("rarity")[buckets]
        logits_BE: Tensor = self.head(self.bag(buckets, offsets, per_sample_weights=weights))
        return logits_BE


def train_table(
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
    """Train the table on the rows `fitted`, calibrate it on `held`, and write it to `directory`."""
    table = BagTable(len(labels), rarity(encoded, fitted, TABLE_BUCKETS))
    fit(table, encoded, fitted, seed=seed, epochs=epochs, phase="table", progress=progress)
    with torch.no_grad():
        vectors_UW = table.bag.weight * table.get_buffer("rarity")[:, None]
        scale = max(float(vectors_UW.abs().max()), 1e-9) / CELL_MAX
        cells_UW = torch.round(vectors_UW / scale).clamp(-CELL_MAX, CELL_MAX)
        # What is calibrated is what will be served: the quantised vectors.
        table.bag.weight.copy_(cells_UW * scale)
        table.get_buffer("rarity").fill_(1.0)
    calibration = calibrate(logits_of(table, encoded, held), encoded.labels[held])
    save_table(
        directory,
        cells_UW.numpy().astype(np.int8),
        scale,
        table.head.weight.detach().numpy().T.astype(np.float32),
        table.head.bias.detach().numpy().astype(np.float32),
        Facts(
            kind=KIND,
            feature_version=FEATURE_VERSION,
            labels=labels,
            domains=domains,
            temperature=calibration.temperature,
            abstain_below=calibration.abstain_below,
            seed=seed,
            evaluation={},
        ),
    )
