"""Which model names the engine accepts, and what a file of experts may say."""

from pathlib import Path

import pytest

from routing_engine.engine.errors import ModelUnavailable, UnknownEngineModel
from routing_engine.engine.experts import (
    DEMO_EXPERTS,
    ExpertProfile,
    ExpertRegistry,
    load_experts,
)


def test_demo_catalogue_has_ten_experts_in_five_domains_each_with_a_directive() -> None:
    assert [(expert.number, expert.expert_id) for expert in DEMO_EXPERTS] == [
        (1, "general"),
        (387, "python-algorithm"),
        (388, "c-systems"),
        (389, "database-sql"),
        (512, "contract-law"),
        (513, "labour-law"),
        (640, "internal-medicine"),
        (641, "nutrition"),
        (768, "corporate-accounting"),
        (769, "personal-finance"),
    ]
    assert len({expert.domain for expert in DEMO_EXPERTS}) == 5
    assert all(expert.directive for expert in DEMO_EXPERTS)


def test_unknown_model_is_refused_with_near_names() -> None:
    with pytest.raises(UnknownEngineModel) as caught:
        ExpertRegistry().get("python-algoritm")
    assert caught.value.near == ("python-algorithm",)


def test_bare_model_has_no_directive() -> None:
    assert ExpertRegistry().get("smollm2").directive == ""


def test_ids_that_occur_twice_are_refused() -> None:
    expert = ExpertProfile("a", 1, "d", "")
    with pytest.raises(ValueError, match="unique"):
        ExpertRegistry([expert, expert])


def test_experts_are_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "experts.toml"
    path.write_text(
        '[experts.rust]\nnumber = 7\ndomain = "programming"\ndirective = "Write Rust."\n'
        "temperature = 1\nmax_tokens = 9\n"
    )
    assert load_experts(path) == (
        ExpertProfile("rust", 7, "programming", "Write Rust.", temperature=1.0, max_tokens=9),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs 1 to"),
        ("x = ", "experts.toml"),
        ('[experts."No Id"]\n', "lower-case"),
        ("[experts.a]\nnumber = true\n", "experts.a.number"),
        ("[experts.a]\nnumber = 1\n", "experts.a.domain"),
        ('[experts.a]\nnumber = 1\ndomain = "d"\n', "experts.a.directive"),
        ('[experts.a]\nnumber = 1\ndomain = "d"\ndirective = ""\ntemperature = 3\n', "temperature"),
        ('[experts.a]\nnumber = 1\ndomain = "d"\ndirective = ""\nmax_tokens = 0\n', "max_tokens"),
        ("[experts.a]\ncolour = 1\n", "'colour'"),
        ("[experts]\na = 1\n", "must be a table"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "experts.toml"
    path.write_text(text)
    with pytest.raises(ModelUnavailable, match=message):
        load_experts(path)
