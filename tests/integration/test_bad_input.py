"""Bad input gets the exact status in OpenAI's shape, costs nothing, holds nothing, and never reaches a backend.

Every test ends with proof: the caller's budget fits exactly one more call, and that call is served.
"""

import asyncio
import gzip
import json
from datetime import UTC, datetime

import pytest
import pytest_asyncio

from billing.types import KeyId
from tests.integration.conftest import BODY_BYTES_MAX, chat_body

HELLO = b'"messages":[{"role":"user","content":"hi"}]'


def with_members(**members) -> bytes:
    return chat_body("hi", **members)


def message(**members) -> bytes:
    return json.dumps({"model": "auto", "messages": [{"role": "user", **members}]}).encode()


def nested(opening: bytes, closing: bytes) -> bytes:
    return opening * 10_000 + closing * 10_000


# What is sent, then status, code and param of the error.
BODIES = {
    "nothing": (b"", 400, "invalid_json", None),
    "half an object": (b'{"model":"auto",', 400, "invalid_json", None),
    "two objects": (with_members() + with_members(), 400, "invalid_json", None),
    "an array": (b"[]", 400, "invalid_json", None),
    "a string": (b'"hi"', 400, "invalid_json", None),
    "null": (b"null", 400, "invalid_json", None),
    "words": (b"model=auto", 400, "invalid_json", None),
    "not UTF-8": (b'{"model":"auto","messages":"\xff"}', 400, "invalid_json", None),
    "UTF-16": (with_members().decode().encode("utf-16"), 400, "invalid_json", None),
    "a byte order mark": (b"\xef\xbb\xbf" + with_members(), 400, "invalid_json", None),
    "a lone surrogate": (message(content="\ud800"), 400, "invalid_json", None),
    "NaN": (b'{"model":"auto","top_p":NaN,%b}' % HELLO, 400, "invalid_json", None),
    "Infinity": (b'{"model":"auto","top_p":-Infinity,%b}' % HELLO, 400, "invalid_json", None),
    "NaN inside": (b'{"model":"auto","x":{"y":[NaN]},%b}' % HELLO, 400, "invalid_json", None),
    "the same key twice": (
        b'{"model":"auto","model":"expert/general",%b}' % HELLO, 400, "invalid_json", None),
    "the same key and value twice": (
        b'{"model":"auto","model":"auto",%b}' % HELLO, 400, "invalid_json", None),
    "the same key, once escaped": (
        b'{"model":"auto","mod\\u0065l":"auto",%b}' % HELLO, 400, "invalid_json", None),
    "10,000 arrays deep": (
        b'{"model":"auto","messages":%b}' % nested(b"[", b"]"), 400, "invalid_json", None),
    "10,000 objects deep, where nobody looks": (
        b'{"model":"auto","x":%b,%b}' % (nested(b'{"a":', b"}")[:-10_000] + b"1" + b"}" * 10_000,
                                         HELLO), 400, "invalid_json", None),
    "10,000 deep in content": (
        b'{"model":"auto","messages":[{"role":"user","content":%b}]}' % nested(b"[", b"]"),
        400, "invalid_json", None),
    "no model": (b"{%b}" % HELLO, 400, None, "model"),
    "an empty model": (with_members(model=""), 400, None, "model"),
    "a number as model": (with_members(model=7), 400, None, "model"),
    "an unknown model": (with_members(model="gpt-9"), 404, "model_not_found", "model"),
    "a model with a NUL": (with_members(model="auto\0"), 404, "model_not_found", "model"),
    "an unknown expert": (with_members(model="expert/x"), 404, "model_not_found", "model"),
    "an expert without prefix": (with_members(model="general"), 404, "model_not_found", "model"),
    "no messages": (b'{"model":"auto"}', 400, None, "messages"),
    "null as messages": (with_members(messages=None), 400, None, "messages"),
    "empty messages": (with_members(messages=[]), 400, None, "messages"),
    "a string as messages": (with_members(messages="hi"), 400, None, "messages"),
    "strings in messages": (with_members(messages=["hi"]), 400, None, "messages"),
    "a message without role": (
        with_members(messages=[{"content": "hi"}]), 400, None, "messages[0].role"),
    "a number as role": (
        with_members(messages=[{"role": 1, "content": "hi"}]), 400, None, "messages[0].role"),
    "a number as content": (message(content=7), 400, None, "messages[0].content"),
    "numbers in content": (message(content=[7]), 400, None, "messages[0].content"),
    "a part whose text is a number": (
        message(content=[{"type": "text", "text": 7}]), 400, None, "messages[0].content"),
    "a word as stream": (with_members(stream="yes"), 400, None, "stream"),
    "a number as stream": (with_members(stream=1), 400, None, "stream"),
    "a list as stream_options": (with_members(stream_options=[]), 400, None, "stream_options"),
    "no tokens": (with_members(max_tokens=0), 400, None, "max_tokens"),
    "fewer than no tokens": (with_members(max_tokens=-1), 400, None, "max_tokens"),
    "half tokens": (with_members(max_tokens=1.5), 400, None, "max_tokens"),
    "too many tokens": (with_members(max_tokens=2**64), 400, None, "max_tokens"),
    "true as a number": (with_members(max_tokens=True), 400, None, "max_tokens"),
    "bad completion tokens": (
        with_members(max_completion_tokens="9"), 400, None, "max_completion_tokens"),
    "no choices": (with_members(n=0), 400, None, "n"),
    "too many choices": (with_members(n=17), 400, None, "n"),
    "a number as anchor": (with_members(expert_anchor=5), 400, None, "expert_anchor"),
    "an unknown anchor": (
        with_members(expert_anchor="contract-lawe"), 400, "unknown_expert_anchor", "expert_anchor"),
    "one byte too many": (
        with_members(x="").ljust(BODY_BYTES_MAX + 1), 413, "body_too_large", None),
}  # fmt: skip


@pytest_asyncio.fixture(autouse=True)
async def nothing_is_held(gateway, backend):
    """Afterwards there is budget for exactly one call, no event but that call's, and no other request."""
    yield
    caller = await gateway.add_caller("last")
    assert (await gateway.chat("hi", key=caller.key)).status == 200
    (rated,) = await gateway.events(caller)
    hold = rated.event.intent.hold
    assert await gateway.events() == []
    assert len(backend.exchanges) == 1
    for budget, status in ((hold - 1, 429), (hold, 200)):
        await gateway.set_budget(gateway.caller, budget)
        assert (await gateway.chat("hi")).status == status
    assert len(await gateway.events()) == 1
    assert gateway.inner.meter.open_events == 0


def assert_openai_error(answer, status, code, param=None, type_="invalid_request_error"):
    assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, param)
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert answer.error["type"] == type_
    assert answer.error["message"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/route"])
async def test_every_bad_body_has_its_own_answer(gateway, path):
    for name, (body, status, code, param) in BODIES.items():
        answer = await gateway.post(body, path=path)
        try:
            assert_openai_error(answer, status, code, param)
        except AssertionError as exc:
            exc.add_note(f"{name}: {answer.status} {answer.body[:300]!r}")
            raise
        assert b"Traceback" not in answer.body


async def test_a_body_of_exactly_the_limit_is_read(gateway, backend):
    body = chat_body("hi", model="gpt-9").ljust(BODY_BYTES_MAX)
    assert_openai_error(await gateway.post(body), 404, "model_not_found", "model")


async def test_a_chunked_upload_over_the_limit_is_refused_before_its_end(gateway):
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 1024
            yield b" " * 1024

    headers = gateway.headers()
    url = f"{gateway.url}/v1/chat/completions"
    async with gateway.session.post(url, data=endless(), headers=headers) as got:
        assert got.status == 413
        assert (await got.json())["error"]["code"] == "body_too_large"
    assert sent >= BODY_BYTES_MAX


MEDIA = [
    ("content-type", "text/plain"),
    ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", "multipart/form-data; boundary=x"),
    ("content-encoding", "gzip"),
    ("content-encoding", "br"),
]


async def test_another_media_type_or_encoding_is_refused(gateway):
    for name, value in MEDIA:
        body = gzip.compress(chat_body()) if value == "gzip" else chat_body()
        answer = await gateway.post(body, headers=gateway.headers() | {name: value})
        assert_openai_error(answer, 415, "unsupported_media_type")


BAD_KEYS = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer "},
    {"authorization": "Basic YTpi"},
    {"authorization": "Bearer eg_0000"},
    {"authorization": "Bearer ' OR 1=1 --"},
    {"authorization": "Bearer " + "x" * 5_000},
    {"authorization": "Bearer schlüssel"},
    {"x-api-key": "eg_0000"},
]


async def test_without_a_valid_key_every_door_gives_the_same_answer(gateway):
    for headers in BAD_KEYS:
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/route"),
            ("GET", "/v1/models"),
            ("GET", "/v1/nothing"),
        ):
            async with gateway.session.request(
                method, gateway.url + path, data=b"{", headers=headers
            ) as got:
                error = (await got.json())["error"]
                assert got.status == 401
                assert got.headers["www-authenticate"] == "Bearer"
                assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
                sent = headers.get("authorization", headers.get("x-api-key", ""))
                assert not any(len(word) > 6 and word in error["message"] for word in sent.split())


async def test_a_key_with_one_wrong_character_is_refused(gateway):
    key = gateway.caller.key
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
    swapped = key[:10] + key[11] + key[10] + key[12:]
    for bad in (wrong, swapped, key.upper(), key + "0", key[:-1], f"{key} {key}"):
        if bad != key:
            answer = await gateway.chat(key=bad)
            assert_openai_error(answer, 401, "invalid_api_key", type_="authentication_error")


async def test_two_different_keys_are_refused_and_the_same_twice_is_one(gateway):
    other = await gateway.add_caller("other")
    answer = await gateway.post(chat_body(), headers=gateway.headers() | {"x-api-key": other.key})
    assert_openai_error(answer, 400, None)
    twice = {"x-api-key": gateway.caller.key}
    answer = await gateway.post(chat_body(model="x"), headers=gateway.headers() | twice)
    assert_openai_error(answer, 404, "model_not_found", "model")


async def test_the_key_may_come_in_either_header(gateway):
    headers = {"x-api-key": gateway.caller.key, "content-type": "application/json; charset=utf-8"}
    answer = await gateway.post(chat_body(), headers=headers, path="/v1/route")
    assert (answer.status, answer.json["expert"]["id"]) == (200, "general")


async def test_operators_doors_need_no_key(gateway):
    for path, said in (
        ("/healthz", b"ok\n"),
        ("/readyz", b'"ready":true'),
        ("/metrics", b"gen_ai_server_request_duration"),
    ):
        async with gateway.session.get(gateway.url + path) as got:
            assert got.status == 200
            assert path == "/metrics" or said in await got.read()


async def test_a_revoked_key_is_refused_like_an_unknown_one(gateway):
    other = await gateway.add_caller("other")
    gateway.accounts.revoke_key(KeyId("other-key"), now=datetime.now(UTC), actor="test")
    async with asyncio.timeout(1):
        while (await gateway.list_models(other)).status != 401:
            pass
    answer = await gateway.chat(key=other.key)
    assert_openai_error(answer, 401, "invalid_api_key", type_="authentication_error")


PLACES = [
    ("GET", "/v1/nothing", 404, "not_found"),
    ("POST", "/", 404, "not_found"),
    ("POST", "/v1/chat/completions/", 404, "not_found"),
    ("POST", "/v1//chat/completions", 404, "not_found"),
    ("POST", "/v1/chat/../chat/completions%00", 404, "not_found"),
    ("GET", "/v1/models/gpt-9", 404, "model_not_found"),
    ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
    ("DELETE", "/v1/chat/completions", 405, "method_not_allowed"),
    ("POST", "/v1/models", 405, "method_not_allowed"),
    ("GET", "/v1/route", 405, "method_not_allowed"),
]


async def test_unknown_places_and_methods_answer_in_the_same_shape(gateway):
    for method, path, status, code in PLACES:
        async with gateway.session.request(
            method, gateway.url + path, headers=gateway.headers(), allow_redirects=False
        ) as got:
            error = (await got.json())["error"]
            assert (got.status, error["code"]) == (status, code)
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] == "invalid_request_error"
            if status == 405:
                assert got.headers["allow"]


NOT_HTTP = [
    b"not http\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\nabcd",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]


async def test_what_is_not_http_is_cut_off(gateway):
    for request_bytes in NOT_HTTP:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_bytes)
        answer = await asyncio.wait_for(reader.read(), 12)
        writer.close()
        await writer.wait_closed()
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 401"))


async def test_a_head_over_the_limit_is_refused(gateway):
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 40_000)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_client_that_leaves_in_the_middle_of_its_body_costs_nothing(gateway, backend):
    host, port = gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.caller.key}\r\n"
    writer.write(head.encode() + b'content-length: 500\r\n\r\n{"model":"auto",')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await gateway.get("/healthz")).status == 200
    assert backend.exchanges == []
