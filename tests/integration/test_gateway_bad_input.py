"""Bad input gets a clear error with the right status; nothing is charged, the process stays up."""

import json

import pytest
import pytest_asyncio

from tests.integration.harness import running_gateway, scripted_backend


@pytest_asyncio.fixture
async def backend():
    async with scripted_backend() as backend:
        yield backend


@pytest_asyncio.fixture
async def gateway(tmp_path, backend):
    async with running_gateway(tmp_path, [backend.port]) as gateway:
        yield gateway


def chat(**members):
    return json.dumps(
        {"model": "auto", "messages": [{"role": "user", "content": "hi"}], **members}
    ).encode()


BODIES = [
    (b"", 400, "invalid_json"),
    (b"{", 400, "invalid_json"),
    (b"[]", 400, "invalid_json"),
    (b"nonsense", 400, "invalid_json"),
    (
        b'{"model":"auto","messages":[{"role":"user","content":"hi"}],"temperature":NaN}',
        400,
        "invalid_json",
    ),
    (
        b'{"model":"auto","model":"auto","messages":[{"role":"user","content":"hi"}]}',
        400,
        "invalid_json",
    ),
    (b'{"model":"auto","messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400, "invalid_json"),
    (b'{"model":"auto","messages":[{"role":"user","content":"\\ud800"}]}', 400, "invalid_json"),
    (chat(model=7), 400, None),
    (chat(messages=[]), 400, None),
    (chat(messages=[{"role": "user", "content": 7}]), 400, None),
    (chat(stream="yes"), 400, None),
    (chat(max_tokens=-5), 400, None),
    (chat(expert_anchor=5), 400, None),
    (chat(expert_anchor="python-algoritm"), 400, "unknown_expert_anchor"),
    (chat(model="gpt-9"), 404, "model_not_found"),
    (chat(model="expert/nobody"), 404, "model_not_found"),
    (chat(padding="x" * 70_000), 413, "body_too_large"),
]


async def test_bad_bodies_cost_nothing_and_reach_no_backend(gateway, backend):
    for body, expected, code in BODIES:
        status, headers, answer = await gateway.post(body)
        error = json.loads(answer)["error"]
        assert (status, error["code"]) == (expected, code), body[:80]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert headers["x-request-id"]
    status, _, _ = await gateway.chat()
    assert status == 200
    assert len(backend.received) == 1
    assert len(await gateway.settled(1)) == 1
    assert gateway.gateway.meter.open_events == 0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"x-expert-anchor": "nobody-at-all"}, 400),
    ],
)
async def test_bad_headers(gateway, backend, headers, expected):
    status, _, answer = await gateway.chat(headers=headers)
    assert status == expected
    assert json.loads(answer)["error"]["message"]
    assert backend.received == []


async def test_a_chunked_upload_over_the_limit_is_cut_off(gateway, backend):
    async def endless():
        for _ in range(200):
            yield b"x" * 1024

    sent = {"authorization": f"Bearer {gateway.key}", "content-type": "application/json"}
    async with gateway.session.post(
        f"{gateway.url}/v1/chat/completions", data=endless(), headers=sent
    ) as response:
        assert response.status == 413
    assert backend.received == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Basic abc"},
        {"authorization": "Bearer eg_0000"},
        {"authorization": "Bearer ' OR 1=1 --"},
        {"authorization": "Bearer " + "x" * 5000},
        {"x-api-key": "eg_mistyped"},
    ],
)
async def test_without_a_valid_key_there_is_one_answer(gateway, headers):
    status, answered, body = await gateway.post(chat(), key="", headers=headers)
    error = json.loads(body)["error"]
    assert (status, error["type"], error["code"]) == (
        401,
        "authentication_error",
        "invalid_api_key",
    )
    assert answered["www-authenticate"] == "Bearer"


async def test_two_different_keys_are_refused(gateway):
    status, _, _ = await gateway.post(chat(), headers={"x-api-key": gateway.key[:-1] + "x"})
    assert status == 400


async def test_the_key_may_come_in_x_api_key(gateway):
    status, _, _ = await gateway.post(chat(), key="", headers={"x-api-key": gateway.key})
    assert status == 200


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/v1/chat/completions/", 404),
    ],
)
async def test_unknown_places_answer_in_the_same_shape(gateway, method, path, expected):
    sent = {"authorization": f"Bearer {gateway.key}"}
    async with gateway.session.request(
        method, gateway.url + path, headers=sent, allow_redirects=False
    ) as response:
        assert response.status == expected
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_operators_endpoints_need_no_key(gateway):
    for path, expected in (
        ("/healthz", "ok"),
        ("/readyz", '"ready":true'),
        ("/metrics", "expertgate"),
    ):
        async with gateway.session.get(gateway.url + path) as response:
            assert response.status == 200
            assert expected in await response.text()
