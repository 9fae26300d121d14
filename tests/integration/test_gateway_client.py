"""The OpenAI client works unmodified; what it doesn't know passes through untouched."""

import json

import openai
import pytest
import pytest_asyncio

from tests.integration.harness import (
    add_customer,
    answer_bytes,
    running_gateway,
    scripted_backend,
    wait_for_key,
    whole,
)


@pytest_asyncio.fixture
async def backend():
    async with scripted_backend() as backend:
        yield backend


@pytest_asyncio.fixture
async def gateway(tmp_path, backend):
    async with running_gateway(tmp_path, [backend.port]) as gateway:
        yield gateway


def client_of(gateway, key=None, **options):
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key or gateway.key, **options)


HELLO = [{"role": "user", "content": "Hello there"}]


async def test_complete_answer(gateway, backend):
    async with client_of(gateway) as client:
        raw = await client.chat.completions.with_raw_response.create(model="auto", messages=HELLO)
    answer = raw.parse()
    assert answer.choices[0].message.content == "Hello."
    assert answer.usage.prompt_tokens == 11
    assert raw.headers["x-expert-id"] == "general"
    assert raw.headers["x-route-source"] == "default"
    assert raw.headers["x-base-points"] == str(11 * 2000 + 3 * 4000 + 100_000)
    assert raw.headers["x-request-id"].startswith("req_")
    assert float(raw.headers["x-overhead-ms"]) >= 0
    assert backend.received[0].json["model"] == "general-model"


async def test_stream_hides_the_usage_chunk_that_was_not_asked_for(gateway, backend):
    async with client_of(gateway) as client:
        stream = await client.chat.completions.create(model="auto", messages=HELLO, stream=True)
        chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "one two three"
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    assert backend.received[0].json["stream_options"] == {"include_usage": True}


async def test_stream_shows_the_usage_chunk_that_was_asked_for(gateway):
    async with client_of(gateway) as client:
        stream = await client.chat.completions.create(
            model="auto", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage.completion_tokens == 3
    assert chunks[-1].choices == []


def test_the_synchronous_client_works_too(tmp_path):
    import asyncio

    async def both():
        async with (
            scripted_backend() as backend,
            running_gateway(tmp_path, [backend.port]) as gateway,
        ):

            def ask():
                with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key) as client:
                    whole_answer = client.chat.completions.create(model="auto", messages=HELLO)
                    stream = client.chat.completions.create(
                        model="auto", messages=HELLO, stream=True
                    )
                    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
                    return whole_answer.choices[0].message.content, text

            return await asyncio.to_thread(ask)

    assert asyncio.run(both()) == ("Hello.", "one two three")


async def test_models_are_listed_by_entitlement(gateway):
    key = add_customer(gateway.accounts, gateway.pepper, "student", package="programming")
    await wait_for_key(gateway, key)
    async with client_of(gateway) as everything, client_of(gateway, key) as package:
        names = [model.id async for model in everything.models.list()]
        fewer = [model.id async for model in package.models.list()]
        assert (await everything.models.retrieve("expert/contract-law")).id == "expert/contract-law"
        with pytest.raises(openai.NotFoundError):
            await package.models.retrieve("expert/contract-law")
    assert names == [
        "auto",
        "gpt-4o-mini",
        "expert/general",
        "expert/python-algorithm",
        "expert/contract-law",
    ]
    assert fewer == ["auto", "gpt-4o-mini", "expert/general", "expert/python-algorithm"]


async def test_errors_raise_the_client_s_own_classes(gateway):
    student = add_customer(gateway.accounts, gateway.pepper, "student", package="programming")
    poor = add_customer(gateway.accounts, gateway.pepper, "poor", budget=1)
    await wait_for_key(gateway, student)
    await wait_for_key(gateway, poor)
    cases = [
        (openai.AuthenticationError, "eg_wrong", "auto", {}),
        (openai.NotFoundError, gateway.key, "gpt-9", {}),
        (openai.BadRequestError, gateway.key, "auto", {"n": 0}),
        (openai.PermissionDeniedError, student, "expert/contract-law", {}),
        (openai.RateLimitError, poor, "auto", {}),
    ]
    for error, key, model, members in cases:
        async with client_of(gateway, key) as client:
            with pytest.raises(error) as caught:
                await client.chat.completions.create(model=model, messages=HELLO, **members)
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert key not in str(caught.value)


async def test_unknown_fields_reach_the_backend_byte_for_byte(gateway, backend):
    body = (
        b'{"seed":18446744073709551617,"model":"auto","top_k":40,"temperature":1.0,'
        b'"messages":[{"role":"user","content":"Hi","x_vendor":{"b" : 1.50, "a":[ ]}}],'
        b'"chat_template_kwargs":{"enable_thinking":false},"metadata":{"api_base":"http://elsewhere"}}'
    )
    status, _, _ = await gateway.post(body)
    assert status == 200
    sent = backend.received[0].body
    for kept in (
        b'"seed":18446744073709551617',
        b'"temperature":1.0',
        b'"x_vendor":{"b" : 1.50, "a":[ ]}',
        b'"chat_template_kwargs":{"enable_thinking":false}',
        b'"metadata":{"api_base":"http://elsewhere"}',
    ):
        assert kept in sent
    assert list(json.loads(sent)) == [*json.loads(body), "max_tokens"]
    assert json.loads(sent)["max_tokens"] == 100


async def test_only_our_own_headers_go_up_and_none_of_the_backend_s_come_down(gateway, backend):
    async def nosy(received, writer):
        writer.write(
            whole(answer_bytes(), headers="set-cookie: a=b\r\nserver: secret\r\nx-internal: 1\r\n")
        )

    backend.script = nosy
    status, headers, _ = await gateway.chat(
        headers={"cookie": "c=d", "x-internal-token": "t", "x-request-id": "mine"}
    )
    assert status == 200
    up = backend.received[0].headers
    assert set(up) == {
        "host", "content-type", "accept", "accept-encoding", "user-agent", "x-request-id",
        "idempotency-key", "content-length",
    }  # fmt: skip
    assert up["x-request-id"] == headers["x-request-id"] != "mine"
    assert not {"set-cookie", "x-internal"} & {name.lower() for name in headers}


async def test_tool_calls_and_every_unknown_chunk_member_pass_in_a_stream(gateway, backend):
    from tests.integration.harness import DONE, FINISH, STREAM_HEAD, STREAM_TAIL, event, framed

    deltas = [
        event(choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]}}], x_vendor=1),
        event(choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{\"北\":1}"}}]}}]),
        b": keep-alive\r\n\r\n",
    ]  # fmt: skip

    async def calls(received, writer):
        stream = b"".join([*deltas, FINISH, DONE])
        # Cut into single bytes: multi-byte characters and separators are split everywhere.
        writer.write(
            STREAM_HEAD
            + b"".join(framed(stream[i : i + 1]) for i in range(len(stream)))
            + STREAM_TAIL
        )

    backend.script = calls
    status, _, body = await gateway.chat(stream=True)
    assert (status, body) == (200, b"".join([*deltas, FINISH, DONE]))
