"""What the trainings share: encoding, rarity, the balance loss, and calibration."""

import math
import os
from importlib.util import find_spec

import numpy as np
import pytest

if "engine" not in os.environ.get("EXPERTGATE_TEST_REQUIRE", "") and find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import torch

from routing_engine.features import features_of
from routing_engine.gate import BUCKETS
from routing_engine.training.dataset import LabelledPrompt
from routing_engine.training.fitting import (
    ABSTAIN_ACCURACY,
    ABSTAIN_MAX,
    TEMPERATURES,
    _balance_loss,
    calibrate,
    encode,
    rarity,
)

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("one_torch_thread")]

TEXTS = ("bake bread", "", "烤面包", "bake a cake")
ROWS = [
    LabelledPrompt(text, label, "en", "train") for text, label in zip(TEXTS, "abab", strict=True)
]


def encoded():
    return encode(ROWS, ("a", "b"), [1.0, 2.0, 1.0, 1.0])


def test_a_batch_holds_the_features_of_its_rows_in_their_order():
    rows = np.array([3, 1, 0])
    buckets, offsets, weights = encoded().batch(rows)
    found = [features_of(TEXTS[row], bucket_count=BUCKETS) for row in rows]
    assert buckets.tolist() == [bucket for each, _ in found for bucket in each.tolist()]
    assert weights.tolist() == [weight for _, each in found for weight in each.tolist()]
    first = len(found[0][0])
    assert offsets.tolist() == [0, first, first]
    assert encoded().labels.tolist() == [0, 1, 0, 1]
    assert encoded().importance.tolist() == [1.0, 2.0, 1.0, 1.0]


@pytest.mark.parametrize("bucket_count", [BUCKETS, 64])
def test_the_rarer_a_bucket_the_more_it_tells_and_an_unseen_one_tells_nothing(bucket_count):
    found = rarity(encoded(), np.array([0, 3]), bucket_count)
    sets = [set(features_of(TEXTS[row], bucket_count=bucket_count)[0].tolist()) for row in (0, 3)]
    assert found.shape == (bucket_count,)
    wanted = torch.zeros(bucket_count)
    for bucket in sets[0] | sets[1]:
        count = sum(bucket in each for each in sets)
        wanted[bucket] = math.log(3 / (1 + count)) + 1
    torch.testing.assert_close(found, wanted)


def test_the_balance_loss_is_one_when_experts_are_used_evenly():
    sure = torch.eye(4) * 100.0
    assert float(_balance_loss(sure)) == pytest.approx(1.0)
    assert float(_balance_loss(torch.zeros(4, 4) + torch.eye(4) * 1e-3)) == pytest.approx(1.0)


def test_the_balance_loss_is_the_number_of_experts_when_one_takes_all():
    greedy = torch.zeros(6, 4)
    greedy[:, 2] = 100.0
    assert float(_balance_loss(greedy)) == pytest.approx(4.0)


def test_the_balance_loss_follows_its_formula_and_pulls_towards_the_idle_experts():
    logits = torch.tensor([[2.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 2.0, 0.0]], requires_grad=True)
    high, low = math.exp(2) / (math.exp(2) + 2), 1 / (math.exp(2) + 2)
    means = [(2 * high + low) / 3, (high + 2 * low) / 3]
    loss = _balance_loss(logits)
    assert float(loss.detach()) == pytest.approx(3 * (2 / 3 * means[0] + 1 / 3 * means[1]))
    torch.autograd.backward(loss)
    assert logits.grad is not None
    # Descending lowers the score of the busy expert and raises that of the idle one.
    assert float(logits.grad[:, 0].sum()) > 0 > float(logits.grad[:, 2].sum())


def rows_of(right, wrong, margin):
    """Logits of two experts that are `margin` apart, and labels: `right` of them agree, `wrong` don't."""
    logits = torch.tensor([[margin, 0.0]] * (right + wrong))
    return logits, torch.tensor([0] * right + [1] * wrong)


@pytest.mark.parametrize(("right", "wrong"), [(90, 10), (75, 25), (60, 40)])
@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_the_temperature_makes_scores_the_share_that_is_right(right, wrong, scale):
    margin = scale * math.log(right / wrong)
    found = calibrate(*rows_of(right, wrong, margin))
    assert found.temperature == pytest.approx(scale, rel=0.03)


@pytest.mark.parametrize(
    ("margin", "wrong", "bound"), [(0.001, 0, TEMPERATURES[0]), (500.0, 40, TEMPERATURES[1])]
)
def test_the_temperature_keeps_its_bounds(margin, wrong, bound):
    found = calibrate(*rows_of(60, wrong, margin))
    assert found.temperature == pytest.approx(bound, rel=1e-4)


def test_a_scorer_that_is_always_right_abstains_as_little_as_it_can():
    logits = torch.eye(5).repeat(8, 1) * 8.0
    found = calibrate(logits, torch.arange(5).repeat(8))
    assert found.abstain_below == pytest.approx(min(1.5 / 5, ABSTAIN_MAX))


def test_a_scorer_that_is_always_wrong_abstains_as_much_as_it_may():
    logits = torch.eye(5).repeat(8, 1) * 2.0
    found = calibrate(logits, (torch.arange(5).repeat(8) + 1) % 5)
    assert found.abstain_below == pytest.approx(ABSTAIN_MAX)


def test_scores_below_the_threshold_are_mostly_wrong():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(400, 5, generator=generator)
    # The further ahead the best expert is, the likelier it is the right one.
    labels = torch.multinomial(torch.softmax(logits * 1.5, dim=1), 1, generator=generator)[:, 0]
    found = calibrate(logits, labels)
    top, picked = torch.softmax(logits / found.temperature, dim=1).max(dim=1)
    below = top < found.abstain_below
    assert 0 < int(below.sum()) < 400
    assert float((picked == labels)[below].float().mean()) < ABSTAIN_ACCURACY
    assert 1.5 / 5 <= found.abstain_below <= ABSTAIN_MAX


def test_one_row_is_enough_to_calibrate_on():
    found = calibrate(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    assert TEMPERATURES[0] * 0.999 <= found.temperature <= TEMPERATURES[1] * 1.001
    assert math.isfinite(found.abstain_below)
