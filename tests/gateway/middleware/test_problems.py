"""The outermost middleware alone: every error becomes an answer, or cuts the connection when it is too late."""

import json
import logging

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from billing.errors import MeteringUnavailable
from gateway.context import SCOPE_KEY, ClientGone
from gateway.errors import BackendUnreachable, BadRequest
from gateway.middleware.problems import ProblemResponses


async def nobody():
    raise AssertionError("nothing is read")


async def run(app, scope_type="http"):
    """Run an ASGI application behind the middleware; return what was sent and the scope."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": scope_type, "path": "/x", "method": "GET", "headers": []}
    await ProblemResponses(app)(scope, nobody, send)
    return sent, scope


def failing_with(error, *before):
    async def app(scope, receive, send):
        for message in before:
            await send(message)
        raise error

    return app


START = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}


@pytest.mark.parametrize(
    ("error", "status", "retry", "after"),
    [
        (BadRequest("no", param="n"), 400, b"false", None),
        (BackendUnreachable("down"), 503, b"true", b"2"),
        (MeteringUnavailable("full"), 503, b"true", b"5"),
        (RuntimeError("secret detail"), 500, b"false", None),
    ],
)
async def test_every_error_is_answered_with_advice_and_a_request_id(error, status, retry, after):
    (start, body), scope = await run(failing_with(error))
    headers = dict(start["headers"])
    assert start["status"] == status
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    assert headers[b"x-should-retry"] == retry
    assert headers.get(b"retry-after") == after
    assert headers[b"x-request-id"] == scope[SCOPE_KEY].request_id.encode()
    assert set(json.loads(body["body"])["error"]) == {"message", "type", "param", "code"}
    assert b"secret" not in body["body"]


async def test_what_is_our_fault_is_logged_with_its_trace_and_what_is_not_is_not(caplog):
    caplog.set_level(logging.INFO)
    await run(failing_with(BadRequest("no")))
    assert [record.exc_info for record in caplog.records if record.exc_info] == []
    await run(failing_with(RuntimeError("boom")))
    (record,) = [record for record in caplog.records if record.exc_info]
    assert (record.message, record.path) == ("request_failed", "/x")


async def test_why_a_request_was_not_served_is_for_the_log_alone(caplog):
    (_, body), _ = await run(failing_with(MeteringUnavailable("/data/journal: no space left")))
    assert b"/data" not in body["body"]
    (record,) = [each for each in caplog.records if each.message == "request_not_served"]
    assert (record.error, record.reason) == ("MeteringUnavailable", "/data/journal: no space left")


async def test_an_error_after_the_first_byte_is_raised_so_that_the_server_cuts_the_connection():
    sent = []

    async def send(message):
        sent.append(message["type"])

    app = ProblemResponses(failing_with(BadRequest("late"), dict(START)))
    with pytest.raises(BadRequest):
        await app({"type": "http", "path": "/", "method": "GET", "headers": []}, nobody, send)
    assert sent == ["http.response.start"]


async def test_a_client_that_left_is_not_answered():
    sent, _ = await run(failing_with(ClientGone()))
    assert sent == []


async def test_answers_keep_their_own_headers():
    async def app(scope, receive, send):
        await send(dict(START))
        await send({"type": "http.response.body", "body": b"ok"})

    (start, body), scope = await run(app)
    assert start["headers"] == [
        (b"a", b"b"),
        (b"x-request-id", scope[SCOPE_KEY].request_id.encode()),
    ]
    assert body["body"] == b"ok"


async def test_other_kinds_of_connection_pass_untouched():
    seen = []

    async def app(scope, receive, send):
        seen.append(dict(scope))

    await run(app, "lifespan")
    assert SCOPE_KEY not in seen[0]


async def test_starlette_s_own_errors_pass_through_stamped():
    app = Starlette(
        routes=[Route("/", lambda _: PlainTextResponse("ok"))],
        middleware=[Middleware(ProblemResponses)],
    )
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": "/none", "method": "GET", "headers": [], "query_string": b""}
    await app(scope, nobody, send)
    assert sent[0]["status"] == 404
    assert b"x-request-id" in dict(sent[0]["headers"])
