"""Which body a backend gets."""

import json
from dataclasses import replace

from gateway.chat import parse_chat
from gateway.forwarding import forwarded_body, output_tokens_cap
from gateway.json_document import JsonDocument
from gateway.types import AnchorOrigin
from routing_engine.types import Expert, ExpertId, Replica, ReplicaId

REPLICA = Replica(ReplicaId("e/0"), "http://x/v1", "their-model")
EXPERT = Expert(ExpertId("e"), 1, "d", "E", (REPLICA,), output_tokens_max=50)


def forward(body, replica=REPLICA, origin=None):
    document = JsonDocument.parse(body)
    return forwarded_body(document, parse_chat(document), EXPERT, replica, origin)


def body(**members):
    return json.dumps(
        {"model": "auto", "messages": [{"role": "user", "content": "hi"}], **members},
        ensure_ascii=False,
    ).encode()


def test_only_what_is_ours_changes():
    sent = b'{"logit_bias":{"1":-100},"model":"auto","x":1.0,"messages":[{"role":"user","content":"hi","k" : [1]}]}'
    assert forward(sent) == (
        b'{"logit_bias":{"1":-100},"model":"their-model","x":1.0,'
        b'"messages":[{"role":"user","content":"hi","k" : [1]}],"max_tokens":50}'
    )


def test_the_client_s_own_cap_counts_within_the_expert_s():
    for asked, sent in ((10, 10), (99, 50)):
        assert json.loads(forward(body(max_tokens=asked)))["max_tokens"] == sent
        both = json.loads(forward(body(max_completion_tokens=asked)))
        assert both["max_completion_tokens"] == sent
        assert "max_tokens" not in both
    assert output_tokens_cap(parse_chat(JsonDocument.parse(body())), EXPERT) == 50


def test_a_stream_always_reports_usage_and_keeps_the_client_s_options():
    sent = json.loads(forward(body(stream=True, stream_options={"x": 1})))
    assert sent["stream_options"] == {"x": 1, "include_usage": True}
    untouched = json.loads(
        forward(body(stream=True, stream_options={"include_usage": True, "x": 2}))
    )
    assert untouched["stream_options"] == {"include_usage": True, "x": 2}
    assert "stream_options" not in json.loads(forward(body()))


def test_anchors_are_written_for_those_who_understand_and_removed_for_those_who_do_not():
    anchored = body(messages=[{"role": "user", "content": "hi【专家锚定：e】"}])
    understanding = replace(REPLICA, understands_anchors=True)

    def text(sent):
        return json.loads(sent)["messages"][0]["content"]

    assert text(forward(anchored, understanding)) == "hi\n【专家锚定：e】"
    assert text(forward(body(), understanding)) == "hi\n【专家锚定：e】"
    assert text(forward(anchored, origin=AnchorOrigin.DIRECTIVE)) == "hi"
    assert text(forward(anchored, origin=AnchorOrigin.HEADER)) == "hi【专家锚定：e】"
