"""Bodies are strict JSON with right fields; model, anchor and directive agree on one expert."""

import os
from importlib.util import find_spec
from typing import Any

import msgspec
import pytest

if find_spec("torch") is None and "engine" not in os.environ.get("EXPERTGATE_TEST_REQUIRE", ""):
    pytest.skip("needs torch", allow_module_level=True)

from routing_engine.engine.errors import BadEngineRequest, UnknownEngineModel
from routing_engine.engine.experts import ExpertRegistry
from routing_engine.engine.language_model import Turn
from routing_engine.engine.requests import ChatBody, RouteBody, choose_expert, read_body

ANCHOR = "【专家锚定：nutrition】"


def body(**fields: Any) -> bytes:
    document = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}
    return msgspec.json.encode(document | fields)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", None),
        (b"\xff", None),
        (b"[]", None),
        (b'{"model": "a", "messages": NaN}', None),
        (b"[" * 100_000, None),
        (b'{"model": "a"}', "messages"),
        (body(model=5), "model"),
        (body(model=""), "model"),
        (body(messages=[]), "messages"),
        (body(messages=[{"role": "wizard", "content": "a"}]), "messages.0.role"),
        (body(messages=[{"role": "user", "content": 5}]), "messages.0.content"),
        (
            body(messages=[{"role": "user", "content": [{"type": "image_url", "text": ""}]}]),
            "messages.0.content.0.type",
        ),
        (body(max_tokens=0), "max_tokens"),
        (body(max_tokens=True), "max_tokens"),
        (body(max_tokens="5"), "max_tokens"),
        (body(max_tokens=1.5), "max_tokens"),
        (body(temperature=2.1), "temperature"),
        (body(temperature="0"), "temperature"),
        (body(top_p=0), "top_p"),
        (body(seed=2**70), "seed"),
        (body(stop=""), "stop"),
        (body(stop=["a"] * 5), "stop"),
        (body(stream="yes"), "stream"),
        (body(n=2), "n"),
        (body(logprobs=True), "logprobs"),
        (body(response_format={"type": "json_object"}), "response_format.type"),
    ],
)
def test_a_wrong_body_is_refused_and_the_field_named(raw: bytes, param: str | None) -> None:
    with pytest.raises(BadEngineRequest) as caught:
        read_body(raw, ChatBody)
    assert caught.value.param == param


def test_fields_that_change_nothing_here_are_ignored() -> None:
    chat = read_body(
        body(user="u", metadata={}, n=1, temperature=1, stop=["a", "b"], tools=[]), ChatBody
    )
    assert (chat.temperature, chat.stops) == (1.0, ("a", "b"))


def test_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = read_body(body(messages=[{"role": "user", "content": parts}]), ChatBody)
    assert chat.messages[0].text == "a\nb"


def test_route_body_becomes_the_routers_own_request() -> None:
    request = read_body(
        b'{"text": "a", "expert_hints": ["b"], "allowed": ["c"]}', RouteBody
    ).request
    assert (request.text, request.expert_hints, request.allowed) == ("a", ("b",), frozenset("c"))
    assert read_body(b'{"text": "a"}', RouteBody).request.allowed is None


def choose(model: str, *messages: tuple[str, str]) -> tuple[str, tuple[Turn, ...]]:
    listed = [{"role": role, "content": text} for role, text in messages]
    expert, turns = choose_expert(
        read_body(body(model=model, messages=listed), ChatBody), ExpertRegistry()
    )
    return expert.expert_id, turns


def test_anchor_selects_the_expert_of_the_bare_model_and_leaves_the_text() -> None:
    expert_id, turns = choose("smollm2", ("user", f"eat? {ANCHOR}"), ("assistant", "yes"))
    assert expert_id == "nutrition"
    assert turns[0] == Turn("system", ExpertRegistry().get("nutrition").directive)
    assert turns[1:] == (Turn("user", "eat?"), Turn("assistant", "yes"))


def test_anchor_that_agrees_with_the_model_is_removed() -> None:
    assert choose("nutrition", ("user", f"eat?{ANCHOR}"))[1][1:] == (Turn("user", "eat?"),)


def test_anchor_that_contradicts_the_model_is_refused() -> None:
    with pytest.raises(BadEngineRequest, match="anchored to 'nutrition'"):
        choose("c-systems", ("user", f"eat?{ANCHOR}"))


@pytest.mark.parametrize(
    "messages",
    [
        (("user", "eat?【专家锚定：nobody】"),),
        (("user", f"first {ANCHOR}"), ("user", "second")),
        (("user", "eat?"), ("assistant", f"yes {ANCHOR}")),
        (("user", "eat?"), ("tool", f"result {ANCHOR}")),
    ],
)
def test_an_anchor_elsewhere_or_of_nobody_is_ordinary_text(
    messages: tuple[tuple[str, str], ...],
) -> None:
    expert_id, turns = choose("smollm2", *messages)
    assert (expert_id, turns) == ("smollm2", tuple(Turn(*message) for message in messages))


def test_unknown_model_is_refused() -> None:
    with pytest.raises(UnknownEngineModel):
        choose("gpt-9", ("user", "hi"))
