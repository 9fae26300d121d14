"""The openai package works unmodified against the gateway, and raises its own classes for our errors."""

import asyncio
import json

import openai
import pytest
import pytest_asyncio

from tests.integration.conftest import PACKAGE, cost
from tests.integration.scripted_backend import (
    DONE,
    FINISH,
    STREAM_HEAD,
    STREAM_TAIL,
    always,
    completion,
    event,
    framed,
    piece,
    response,
)

HELLO = [{"role": "user", "content": "Hello there"}]
SAID = "one two three"


class Recorder(openai.DefaultAsyncHttpxClient):
    """The package's own transport; keeps the bodies that it sent."""

    def __init__(self):
        self.sent = []
        super().__init__(event_hooks={"request": [self._keep]})

    async def _keep(self, request):
        self.sent.append(request.content)


@pytest.fixture
def recorder():
    return Recorder()


@pytest_asyncio.fixture
async def client(gateway, recorder):
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=gateway.caller.key, http_client=recorder
    ) as client:
        yield client


async def in_thread(gateway, work):
    """What `work` returns when it is given a synchronous client, which blocks."""

    def run():
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.caller.key) as client:
            return work(client)

    return await asyncio.to_thread(run)


def joined(chunks):
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


async def test_a_complete_answer_and_what_is_said_about_it(gateway, client, backend):
    raw = await client.chat.completions.with_raw_response.create(model="auto", messages=HELLO)
    answer = raw.parse()
    assert answer.choices[0].message.content == "Hello."
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 3)
    assert raw.headers["x-expert-id"] == "general"
    assert raw.headers["x-route-source"] == "default"
    assert raw.headers["x-terms-matched"] == "0"
    assert raw.headers["x-base-points"] == str(cost(11, 3))
    assert raw.headers["x-request-id"] == backend.exchanges[0].headers["x-request-id"]
    assert raw.headers["x-usage-event-id"] == backend.exchanges[0].headers["idempotency-key"]
    assert float(raw.headers["x-overhead-ms"]) >= 0
    assert (await gateway.only_event()).event.intent.event_id == raw.headers["x-usage-event-id"]


async def test_the_usage_chunk_is_hidden_from_who_did_not_ask_for_it(client, backend):
    stream = await client.chat.completions.create(model="auto", messages=HELLO, stream=True)
    chunks = [chunk async for chunk in stream]
    assert joined(chunks) == SAID
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert backend.exchanges[0].json["stream_options"] == {"include_usage": True}


async def test_a_usage_chunk_that_was_declined_is_hidden_too(client, backend):
    stream = await client.chat.completions.create(
        model="auto",
        messages=HELLO,
        stream=True,
        stream_options={"include_usage": False, "include_obfuscation": False},
    )
    chunks = [chunk async for chunk in stream]
    assert (joined(chunks), [chunk for chunk in chunks if not chunk.choices]) == (SAID, [])
    options = backend.exchanges[0].json["stream_options"]
    assert options == {"include_usage": True, "include_obfuscation": False}


async def test_the_usage_chunk_reaches_who_asked_for_it(client):
    stream = await client.chat.completions.create(
        model="auto", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert joined(chunks) == SAID
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 14)
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


async def test_the_synchronous_client_gets_answers_and_streams(gateway):
    def work(client):
        answer = client.chat.completions.create(model="gpt-4o-mini", messages=HELLO)
        stream = client.chat.completions.create(model="auto", messages=HELLO, stream=True)
        return answer.choices[0].message.content, joined(list(stream))

    assert await in_thread(gateway, work) == ("Hello.", SAID)


async def test_the_synchronous_client_raises_its_classes(gateway):
    def work(client):
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="gpt-9", messages=HELLO)
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="eg_wrong").models.list()
        return caught.value.code

    assert await in_thread(gateway, work) == "model_not_found"


async def test_tool_calls_and_members_nobody_knows_pass_through_a_stream(gateway, backend):
    call = {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"北":1}'}}
    stream = b"".join(
        [
            event(choices=[{"index": 0, "delta": {"tool_calls": [call]}}], x_vendor=1),
            event(choices=[{"index": 0, "delta": {"tool_calls": [more]}}]),
            b": keep-alive\r\n\r\n",
            b'data: {"choices":[{"index":0,"delta":{"content":"\xe5\x8c\x97"}}],"big":18446744073709551617}\n\n',
            FINISH,
            DONE,
        ]
    )
    # One byte a chunk: every character and separator is split somewhere.
    single = [stream[index : index + 1] for index in range(len(stream))]
    backend.script = always(STREAM_HEAD, framed(*single), STREAM_TAIL)
    answer = await gateway.chat(stream=True)
    assert (answer.status, answer.body) == (200, stream)


async def test_a_complete_answer_passes_byte_for_byte(gateway, backend):
    body = b'{ "choices" : [ ], "usage":null,\n "seed": 18446744073709551617, "x": 1.50 }'
    backend.script = always(response(body, headers="x-internal: 1\r\nset-cookie: a=b\r\n"))
    answer = await gateway.chat()
    assert (answer.status, answer.body) == (200, body)
    assert not {"set-cookie", "x-internal"} & {name.lower() for name in answer.headers}


async def test_unknown_fields_arrive_as_they_were_sent(client, backend, recorder):
    await client.chat.completions.create(
        model="auto",
        messages=[{"role": "user", "content": "Hi", "x_vendor": {"b": 1.5, "a": []}}],
        seed=2**63 - 1,
        extra_body={
            "top_k": 40,
            "huge": 2**64 + 1,
            "tiny": -(2**63),
            "one": 1.0,
            "text": None,
            "chat_template_kwargs": {"enable_thinking": False, "深": "度"},
            "metadata": {"api_base": "http://elsewhere", "api_key": "sk-theirs"},
        },
    )
    (sent,) = recorder.sent
    expected = sent.replace(b'"model":"auto"', b'"model":"general-model"')
    assert backend.exchanges[0].body == expected[:-1] + b',"max_tokens":100}'
    assert b'"huge":18446744073709551617' in backend.exchanges[0].body


async def test_odd_spelling_of_values_survives(gateway, backend):
    body = (
        b'{"seed":18446744073709551617,"model":"auto","temperature":1.0,"top_p":1e-1,'
        b'"messages":[{"role":"user","content":"H\\u0069","x":{"b" : 1.50, "a":[ ]}}]}'
    )
    assert (await gateway.post(body)).status == 200
    expected = body.replace(b'"auto"', b'"general-model"')[:-1] + b',"max_tokens":100}'
    assert backend.exchanges[0].body == expected


async def test_only_headers_of_ours_go_up(gateway, backend):
    headers = gateway.headers(cookie="c=d", forwarded="for=x") | {
        "x-internal-token": "t",
        "x-request-id": "mine",
        "openai-organization": "org",
    }
    answer = await gateway.post(
        b'{"model":"auto","messages":[{"role":"user","content":"Hi"}]}', headers=headers
    )
    up = backend.exchanges[0].headers
    assert set(up) == {
        "host",
        "content-type",
        "content-length",
        "accept",
        "accept-encoding",
        "user-agent",
        "x-request-id",
        "idempotency-key",
    }
    assert gateway.caller.key not in str(up)
    assert up["x-request-id"] == answer.headers["x-request-id"] != "mine"


async def test_models_are_those_the_caller_may_use(gateway, client):
    student = await gateway.add_caller("student", package=PACKAGE)
    everything = [model.id async for model in client.models.list()]
    package = client.with_options(api_key=student.key)
    fewer = [model.id async for model in package.models.list()]
    assert everything == [
        "auto",
        "gpt-4o-mini",
        "lawyer",
        "expert/general",
        "expert/python-algorithm",
        "expert/contract-law",
    ]
    assert set(everything) - set(fewer) == {"lawyer", "expert/contract-law"}
    model = await client.models.retrieve("expert/contract-law")
    assert (model.id, model.object, model.owned_by) == (
        "expert/contract-law",
        "model",
        "expertgate",
    )
    with pytest.raises(openai.NotFoundError):
        await package.models.retrieve("expert/contract-law")


async def test_errors_are_raised_as_the_package_s_classes_and_not_tried_again(
    gateway, client, backend, recorder
):
    student = await gateway.add_caller("student", package=PACKAGE)
    poor = await gateway.add_caller("poor", budget=1)
    cases = [
        (openai.AuthenticationError, "eg_wrong", {}, "invalid_api_key", None),
        (openai.NotFoundError, None, {"model": "gpt-9"}, "model_not_found", "model"),
        (openai.BadRequestError, None, {"n": 0}, None, "n"),
        (openai.BadRequestError, None, {"messages": []}, None, "messages"),
        (openai.PermissionDeniedError, student.key, {"model": "lawyer"}, "expert_not_entitled", None),
        (openai.RateLimitError, poor.key, {}, "budget_exceeded", None),
    ]  # fmt: skip
    for error, key, members, code, param in cases:
        recorder.sent.clear()
        asking = client.with_options(api_key=key or gateway.caller.key)
        with pytest.raises(error) as caught:
            await asking.chat.completions.create(**{"model": "auto", "messages": HELLO, **members})
        assert (caught.value.code, caught.value.param) == (code, param)
        assert len(recorder.sent) == 1
        assert asking.api_key not in str(caught.value)
    assert caught.value.type == "insufficient_quota"
    assert backend.exchanges == []
    assert await gateway.events() == []


async def test_a_backend_that_fails_is_an_internal_server_error_and_is_asked_once(
    client, backend, recorder
):
    backend.script = always(response(b"{}", status="500 Internal Server Error"))
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model="auto", messages=HELLO)
    assert (caught.value.status_code, caught.value.code) == (502, "backend_refused")
    assert (len(recorder.sent), len(backend.exchanges)) == (1, 1)


async def test_a_busy_backend_is_a_rate_limit_that_the_client_tries_again(
    client, backend, recorder
):
    body = json.dumps({"error": {"message": "slow down"}}).encode()
    answers = iter([response(body, status="429 Too Many Requests", headers="retry-after: 0\r\n")])

    async def busy_once(exchange):
        exchange.send(next(answers, response(completion("At last."))))

    backend.script = busy_once
    answer = await client.chat.completions.create(model="auto", messages=HELLO)
    assert answer.choices[0].message.content == "At last."
    assert len(recorder.sent) == 2


async def test_a_stream_that_breaks_off_raises_in_the_client(client, backend):
    is_read = asyncio.Event()

    async def script(exchange):
        exchange.send(STREAM_HEAD, framed(piece("a")))
        await is_read.wait()
        exchange.send(framed(event(error={"message": "out of memory", "code": 500})))

    backend.script = script
    stream = await client.chat.completions.create(model="auto", messages=HELLO, stream=True)
    seen = []

    async def read():
        async for chunk in stream:
            seen.append(chunk)
            is_read.set()

    with pytest.raises(openai.APIError) as caught:
        await read()
    assert joined(seen) == "a"
    assert caught.value.type == "backend_error"
