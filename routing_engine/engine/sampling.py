"""Picks the next token from logits: greedy, or sampled with temperature and nucleus.

Shape legend: V = vocabulary.
"""

# ruff: noqa: N803, N806 -- tensors carry their shape as a suffix (STYLE.md, torch)

import torch
from torch import Tensor

TEMPERATURE_MIN = 1e-4
"""Below this sampling can't be told from taking the best token, and dividing by it would overflow."""


def pick_token(
    logits_V: Tensor, *, temperature: float, top_p: float, generator: torch.Generator | None
) -> int:
    """Return the id of the next token.

    Args:
        logits_V: scores of all tokens, float32.
        temperature: 0 to 2; 0 takes the best token; otherwise the logits are divided by it.
        top_p: the smallest set of best tokens whose probability reaches this is sampled from
            (nucleus sampling, Holtzman et al. 2019, section 3.1).
        generator: source of randomness; the same state gives the same token.
    """
    if temperature < TEMPERATURE_MIN:
        return int(logits_V.argmax())
    probabilities_V = torch.softmax(logits_V.float() / temperature, dim=-1)
    if top_p < 1:
        sorted_V, order_V = probabilities_V.sort(descending=True, stable=True)
        # A token stays while the probability *before* it is below top_p: the best always does.
        is_outside_V = sorted_V.cumsum(dim=-1) - sorted_V >= top_p
        sorted_V = sorted_V.masked_fill(is_outside_V, 0.0)
        return int(order_V[torch.multinomial(sorted_V, 1, generator=generator)])
    return int(torch.multinomial(probabilities_V, 1, generator=generator))
