"""A request's body is read once, within bounds, and replayed as it stands."""

import asyncio
import json

import msgspec
import pytest

from gateway.context import SCOPE_KEY, BodyLimits, ClientGone, context_of
from gateway.errors import BadRequest, BodyTooLarge, InvalidJson, UnsupportedMedia

BODY = b'{"model": "auto", "messages": [{"role": "user", "content": "hi"}], "seed": 18446744073709551615}'


def request(*pieces, headers=(), ends=True):
    """Return the context of a request whose body comes in `pieces`, and its scope."""
    scope = {"type": "http", "headers": list(headers)}
    messages = [
        {"type": "http.request", "body": piece, "more_body": not ends or index < len(pieces) - 1}
        for index, piece in enumerate(pieces)
    ]

    async def receive():
        if messages:
            return messages.pop(0)
        if ends:
            return {"type": "http.disconnect"}
        return await asyncio.get_running_loop().create_future()

    return context_of(scope, receive), scope


async def read(*pieces, limits=BodyLimits(), **options):
    context, scope = request(*pieces, **options)
    return await context.read_chat(scope, limits)


async def test_a_body_in_pieces_is_read_once_and_replayed_whole():
    context, scope = request(BODY[:10], b"", BODY[10:])
    chat = await context.read_chat(scope, BodyLimits())
    assert await context.read_chat(scope, BodyLimits()) is chat
    receive = context.replay()
    assert await receive() == {"type": "http.request", "body": BODY, "more_body": False}
    assert await receive() == {"type": "http.disconnect"}


async def test_an_untouched_body_keeps_its_scope_and_a_rewritten_one_gets_its_length():
    headers = [(b"a", b"b"), (b"content-length", b"96"), (b"transfer-encoding", b"chunked")]
    context, scope = request(BODY, headers=headers)
    await context.read_chat(scope, BodyLimits())
    assert context.scope_behind(scope) is scope
    message = {**context.chat.messages[0], "content": msgspec.Raw(b'"longer than before"')}
    context.rewrite_messages((message,))
    behind = context.scope_behind(scope)
    body = (await context.replay()())["body"]
    assert behind["headers"] == [(b"a", b"b"), (b"content-length", str(len(body)).encode())]
    assert scope["headers"] == headers
    assert b'"seed":18446744073709551615' in body
    assert json.loads(body)["messages"] == [{"role": "user", "content": "longer than before"}]


async def test_one_request_has_one_context_and_each_request_its_own_id():
    context, scope = request(BODY)
    assert context_of(scope, None) is context is scope[SCOPE_KEY]
    others = {request(BODY)[0].request_id for _ in range(1_000)}
    assert len(others) == 1_000
    assert all(each.startswith("req_") for each in others)


@pytest.mark.parametrize("cut", [1, 10, 96])
async def test_a_body_over_the_limit_is_refused_whether_or_not_it_says_so(cut):
    limits = BodyLimits(size_bytes_max=len(BODY) - 1)
    with pytest.raises(BodyTooLarge):
        await read(*(BODY[at : at + cut] for at in range(0, len(BODY), cut)), limits=limits)
    with pytest.raises(BodyTooLarge):
        await read(headers=[(b"content-length", str(len(BODY)).encode())], limits=limits)
    assert await read(BODY, limits=BodyLimits(size_bytes_max=len(BODY)))


@pytest.mark.parametrize(
    ("name", "value", "is_read"),
    [
        (b"content-type", b"application/json", True),
        (b"content-type", b"Application/JSON; charset=utf-8", True),
        (b"content-type", b"application/vnd.x+json", True),
        (b"content-type", b"multipart/form-data; boundary=x", False),
        (b"content-type", b"text/plain", False),
        (b"content-encoding", b"identity", True),
        (b"content-encoding", b"gzip", False),
        (b"content-encoding", b"br", False),
        (b"content-length", b"many", True),
    ],
)
async def test_which_bodies_are_read(name, value, is_read):
    if is_read:
        assert await read(BODY, headers=[(name, value)])
    else:
        with pytest.raises(UnsupportedMedia):
            await read(BODY, headers=[(name, value)])


async def test_a_body_that_does_not_come_is_not_waited_for_forever():
    with pytest.raises(BadRequest, match=r"did not arrive within 0\.01 seconds"):
        await read(BODY[:5], ends=False, limits=BodyLimits(deadline_s=0.01))


async def test_a_client_that_leaves_in_the_middle_is_no_error_of_anybody():
    context, scope = request()
    with pytest.raises(ClientGone):
        await context.read_chat(scope, BodyLimits())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", BODY + b"}", BODY.replace(b"auto", b"\xff")])
async def test_what_is_no_json_object_is_refused(body):
    with pytest.raises(InvalidJson):
        await read(body)


async def test_a_body_that_nobody_read_is_still_the_server_s_to_give():
    context, _ = request(BODY)
    assert (await context.replay()())["body"] == BODY
