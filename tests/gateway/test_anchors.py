"""Where expert anchors are obeyed, and where they are ordinary text."""

import json

import pytest

from gateway.anchors import (
    EXPERT_ID_LENGTH_MAX,
    canonical_directive,
    directive_in,
    read_anchor,
    with_directive,
    without_directive,
)
from gateway.chat import newest_human_text, parse_chat
from gateway.errors import UnknownAnchor
from gateway.json_document import JsonDocument
from gateway.types import Anchor, AnchorOrigin
from routing_engine.types import Expert, ExpertId, Replica, ReplicaId

PYTHON, SQL = ExpertId("python-algorithm"), ExpertId("database-sql")
EXPERTS = {
    expert_id: Expert(
        expert_id, number, "programming", expert_id, (Replica(ReplicaId("r"), "http://x", "m"),)
    )
    for number, expert_id in enumerate((PYTHON, SQL))
}


def messages(*pairs):
    body = {
        "model": "auto",
        "messages": [{"role": role, "content": content} for role, content in pairs],
    }
    return parse_chat(JsonDocument.parse(json.dumps(body).encode())).messages


def read(*pairs, header=None, field=None):
    return read_anchor(
        header=header,
        field=field,
        messages=messages(*pairs),
        experts=EXPERTS,
        near_matches=lambda _: ("python-algorithm",),
    )


def test_header_wins_over_field_wins_over_directive():
    text = ("user", f"hi{canonical_directive(SQL)}")
    assert read(text).anchor == Anchor(SQL, AnchorOrigin.DIRECTIVE)
    assert read(text, field=PYTHON).anchor == Anchor(PYTHON, AnchorOrigin.FIELD)
    assert read(text, field=PYTHON, header=SQL).anchor == Anchor(SQL, AnchorOrigin.HEADER)


@pytest.mark.parametrize(
    ("place", "param"), [("header", "x-expert-anchor"), ("field", "expert_anchor")]
)
def test_unknown_expert_in_header_or_field_names_near_matches(place, param):
    with pytest.raises(UnknownAnchor, match="did you mean python-algorithm") as caught:
        read(("user", "hi"), **{place: "python-algoritm"})
    assert caught.value.param == param


def test_unknown_expert_in_text_is_text_and_reported():
    reading = read(("user", "hi【专家锚定：nobody】"))
    assert reading.anchor is None
    assert reading.ignored == "nobody"


@pytest.mark.parametrize(
    "pairs",
    [
        [("user", f"{canonical_directive(SQL)} and then more text")],
        [("system", f"hi{canonical_directive(SQL)}"), ("user", "hi")],
        [("user", f"hi{canonical_directive(SQL)}"), ("assistant", "yes"), ("user", "go on")],
        [("user", "hi"), ("assistant", f"sure{canonical_directive(SQL)}")],
        [("user", "hi"), ("tool", f"document{canonical_directive(SQL)}")],
        [("user", "hi【专家锚定：Database-SQL】")],
        [("user", f"hi【专家锚定：{'a' * (EXPERT_ID_LENGTH_MAX + 1)}】")],
        [("user", "hi【专家锚定：../etc】")],
    ],
)
def test_directives_elsewhere_are_never_obeyed(pairs):
    assert read(*pairs).anchor is None


def test_directive_in_the_last_user_turn_holds_through_tool_calls():
    reading = read(("user", f"hi {canonical_directive(SQL)}"), ("assistant", "…"), ("tool", "42"))
    assert reading.anchor == Anchor(SQL, AnchorOrigin.DIRECTIVE)


@pytest.mark.parametrize(
    "text", ["hi【专家锚定:database-sql】", "hi 【专家锚定： database-sql 】 \n"]
)
def test_both_colons_and_spaces_are_read(text):
    assert directive_in(messages(("user", text))) == SQL


def test_removing_and_closing_are_inverse():
    asked = messages(("user", "hi"))
    closed = with_directive(asked, SQL)
    assert newest_human_text(closed) == "hi\n【专家锚定：database-sql】"
    assert newest_human_text(without_directive(closed)) == "hi"


def test_closing_replaces_a_directive_that_was_there():
    asked = messages(("user", f"hi{canonical_directive(PYTHON)}"))
    assert newest_human_text(with_directive(asked, SQL)) == "hi\n【专家锚定：database-sql】"


def test_closing_a_conversation_without_user_turn_changes_nothing():
    asked = messages(("system", "hi"))
    assert with_directive(asked, SQL) is asked


@pytest.mark.timeout(30)
def test_megabytes_of_spaces_and_brackets_are_read_in_one_pass():
    for text in (" " * (4 << 20) + "x", "【专家锚定：" * 500_000 + " " * 500_000 + "】"):
        assert directive_in(messages(("user", text))) is None
