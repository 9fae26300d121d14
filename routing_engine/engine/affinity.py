"""The network of the second routing stage: semantic fingerprint and block-sparse expert affinity.

A fingerprint of the text is computed once; each domain owns a contiguous block of it, and only that
block scores the domain's experts. Blocks that lie together are one batched matrix product: measured,
two to three times faster than the same sparsity as a mask.

Shape legend:
  B = batch (texts)        D = length of the encoder's vector (384)
  G = domains (blocks)     W = width of one block of the fingerprint
  K = experts of the largest domain     E = experts
"""

# ruff: noqa: N803, N806 -- tensors carry their shape as a suffix (STYLE.md, torch)

from collections.abc import Sequence

import torch
from torch import Tensor, nn

BLOCK_WIDTH = 64


class ExpertAffinity(nn.Module):
    """Logit of each expert for each text.

    Args:
        domains: the domain of each expert, in the order of the logits.
        vector_length: D.
        block_width: W.
        dropout: share of the fingerprint that is left out while training.

    Shapes: x_BD float32 → logits_BE float32.
    """

    def __init__(
        self,
        domains: Sequence[str],
        *,
        vector_length: int = 384,
        block_width: int = BLOCK_WIDTH,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        names = sorted(set(domains))
        places = [names.index(domain) for domain in domains]
        depth = max(places.count(index) for index in range(len(names)))
        slots = [place * depth + places[:index].count(place) for index, place in enumerate(places)]
        self.block_count, self.block_width = len(names), block_width
        self.fingerprint = nn.Linear(vector_length, len(names) * block_width)
        self.dropout = nn.Dropout(dropout)
        self.weight_GWK = nn.Parameter(
            torch.randn(len(names), block_width, depth) / block_width**0.5
        )
        self.bias_G1K = nn.Parameter(torch.zeros(len(names), 1, depth))
        self.register_buffer("slot_E", torch.tensor(slots), persistent=False)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return logits_BE."""
        fingerprint_BH = self.dropout(nn.functional.gelu(self.fingerprint(x_BD)))
        blocks_GBW = fingerprint_BH.view(-1, self.block_count, self.block_width).transpose(0, 1)
        affinity_GBK = torch.bmm(blocks_GBW, self.weight_GWK) + self.bias_G1K
        affinity_BS = affinity_GBK.transpose(0, 1).flatten(1)
        slot_E = self.get_buffer("slot_E")
        return affinity_BS[:, slot_E]


def scores_of(logits_BE: Tensor, temperature: float) -> Tensor:
    """Return calibrated probabilities scores_BE, in float32 whatever the logits are."""
    return torch.softmax(logits_BE.float() / temperature, dim=-1)


def damp(scores_BE: Tensor, loads_E: Tensor) -> Tensor:
    """Return scores after load: ``score * (1 - load)``, loads over the last 100 ms, 0 to 1.

    On probabilities, never on logits: a negative logit would gain from load.
    """
    return scores_BE * (1.0 - loads_E.clamp(0.0, 1.0))
