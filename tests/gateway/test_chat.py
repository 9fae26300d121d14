"""Reading and rewriting chat bodies."""

import json

import pytest

from gateway.chat import (
    CHOICES_MAX,
    input_tokens_bound,
    last_user_index,
    lift_text,
    newest_human_text,
    parse_chat,
    rewrite_last_text,
    rewrite_text,
)
from gateway.errors import BadRequest
from gateway.json_document import JsonDocument


def document(**members):
    return JsonDocument.parse(json.dumps(members, ensure_ascii=False).encode())


def messages(*pairs):
    return parse_chat(
        document(
            model="auto", messages=[{"role": role, "content": content} for role, content in pairs]
        )
    ).messages


def plain(message):
    return {name: json.loads(bytes(value)) for name, value in message.items()}


def test_fields_that_the_gateway_acts_on():
    chat = parse_chat(
        document(
            model="auto",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
            max_completion_tokens=7,
            n=2,
        )
    )
    assert (chat.model, chat.is_stream, chat.wants_usage_chunk) == ("auto", True, True)
    assert (chat.output_tokens_asked, chat.output_cap_field) == (7, "max_completion_tokens")
    assert chat.choice_count == 2


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, "model"),
        ({"model": 3, "messages": [{"role": "user", "content": "x"}]}, "model"),
        ({"model": "auto"}, "messages"),
        ({"model": "auto", "messages": []}, "messages"),
        ({"model": "auto", "messages": "hi"}, "messages"),
        ({"model": "auto", "messages": ["hi"]}, "messages"),
        ({"model": "auto", "messages": [{"content": "x"}]}, "messages[0].role"),
        ({"model": "auto", "messages": [{"role": 1}]}, "messages[0].role"),
        ({"model": "auto", "messages": [{"role": "user"}], "stream": 1}, "stream"),
        ({"model": "auto", "messages": [{"role": "user"}], "max_tokens": 0}, "max_tokens"),
        ({"model": "auto", "messages": [{"role": "user"}], "max_tokens": -1}, "max_tokens"),
        ({"model": "auto", "messages": [{"role": "user"}], "max_tokens": 1.5}, "max_tokens"),
        ({"model": "auto", "messages": [{"role": "user"}], "max_tokens": 10**30}, "max_tokens"),
        ({"model": "auto", "messages": [{"role": "user"}], "n": CHOICES_MAX + 1}, "n"),
        ({"model": "auto", "messages": [{"role": "user"}], "n": 0}, "n"),
        ({"model": "auto", "messages": [{"role": "user"}], "stream_options": 1}, "stream_options"),
    ],
)
def test_a_wrong_field_is_refused_and_named(members, param):
    with pytest.raises(BadRequest) as caught:
        parse_chat(document(**members))
    assert caught.value.param == param


def test_content_of_another_type_is_refused_where_it_is_read():
    with pytest.raises(BadRequest) as caught:
        newest_human_text(messages(("user", 5)))
    assert caught.value.param == "messages[0].content"


def test_newest_human_text_walks_back_over_tool_results_and_harness_blocks():
    found = newest_human_text(
        messages(
            ("user", "sort my list"),
            ("assistant", "calling a tool"),
            ("tool", "result"),
            ("user", "<system-reminder>stay on topic</system-reminder>"),
            ("user", [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]),
        )
    )
    assert found == "sort my list"


def test_newest_human_text_joins_text_parts_and_skips_images():
    parts = [
        {"type": "text", "text": "what is"},
        {"type": "image_url", "image_url": {"url": "data:"}},
        {"type": "text", "text": "this"},
    ]
    assert newest_human_text(messages(("user", parts))) == "what is\nthis"


def test_no_human_text_is_the_empty_text():
    assert newest_human_text(messages(("system", "be brief"), ("assistant", "ok"))) == ""


def test_rewriting_keeps_every_other_member_byte_for_byte():
    body = (
        b'{"model":"auto","messages":[{"role":"user","name":"u","content":['
        b'{"type":"text","text":"qsort", "cache_control":{"x":1.0}},'
        b'{"type":"input_audio","input_audio":{"n":12345678901234567890123}}]}]}'
    )
    chat = parse_chat(JsonDocument.parse(body))
    changed = rewrite_text(chat.messages[0], 0, lambda text: text.replace("qsort", "quicksort"))
    assert changed is not None
    assert bytes(changed["name"]) == b'"u"'
    assert bytes(changed["content"]) == (
        b'[{"type":"text","text":"quicksort","cache_control":{"x":1.0}},'
        b'{"type":"input_audio","input_audio":{"n":12345678901234567890123}}]'
    )


def test_rewriting_nothing_returns_none():
    (message,) = messages(("user", "hello"))
    assert rewrite_text(message, 0, lambda text: text) is None


def test_only_the_last_text_part_is_rewritten():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image_url"}]
    (message,) = messages(("user", parts))
    changed = rewrite_last_text(message, 0, str.upper)
    assert changed is not None
    assert [part.get("text") for part in plain(changed)["content"]] == ["a", "B", None]


def test_last_user_index():
    assert last_user_index(messages(("user", "a"), ("assistant", "b"))) == 0
    assert last_user_index(messages(("system", "a"))) is None


def test_short_form_becomes_one_user_message_routed_automatically():
    short = document(text="快速排序")
    lift_text(short)
    chat = parse_chat(short)
    assert chat.model == "auto"
    assert [plain(message) for message in chat.messages] == [
        {"role": "user", "content": "快速排序"}
    ]


def test_bound_counts_bytes_template_and_directive():
    assert input_tokens_bound(100, 2, 30) == 100 + 32 + 30


@pytest.mark.timeout(30)
def test_megabytes_of_harness_tags_without_an_end_are_read_in_one_pass():
    text = "<context>" * 400_000 + "</environment_details>"
    assert newest_human_text(messages(("user", text))) == text


def test_only_whole_harness_blocks_are_left_out():
    text = "a <context>x</environment_details> b <context>y</context> c <context>z"
    assert newest_human_text(messages(("user", text))) == "a   c <context>z"
