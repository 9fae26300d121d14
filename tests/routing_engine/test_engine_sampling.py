"""The next token is the best one, or a random one of the nucleus, repeatably."""

import os
from importlib.util import find_spec

import pytest

if find_spec("torch") is None and "engine" not in os.environ.get("EXPERTGATE_TEST_REQUIRE", ""):
    pytest.skip("needs torch", allow_module_level=True)

import torch

from routing_engine.engine.sampling import pick_token

LOGITS_V = torch.tensor([1.0, 3.0, 2.0, -1.0])


def draw(count: int, *, temperature: float = 1.0, top_p: float = 1.0, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [
        pick_token(LOGITS_V, temperature=temperature, top_p=top_p, generator=generator)
        for _ in range(count)
    ]


@pytest.mark.parametrize("temperature", [0.0, 1e-9])
def test_without_temperature_the_best_token_is_taken(temperature: float) -> None:
    assert draw(5, temperature=temperature) == [1] * 5


def test_same_seed_draws_the_same_tokens() -> None:
    assert draw(50, seed=7) == draw(50, seed=7) != draw(50, seed=8)


def test_only_the_nucleus_is_drawn_from() -> None:
    # The probabilities are 0.087, 0.644, 0.237 and 0.032.
    assert set(draw(300, top_p=0.6)) == {1}
    assert set(draw(300, top_p=0.8)) == {1, 2}
    assert set(draw(900)) == {0, 1, 2, 3}


def test_a_tiny_nucleus_still_holds_the_best_token() -> None:
    assert draw(3, top_p=1e-9) == [1, 1, 1]
