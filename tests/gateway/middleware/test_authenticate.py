"""Where a key may stand, what is refused, and that no refusal repeats what was sent."""

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from billing.types import CustomerId, KeyId, ProjectId, SlaTierId
from gateway.context import SCOPE_KEY
from gateway.errors import BadRequest, Unauthenticated
from gateway.middleware.authenticate import KEY_LENGTH_MAX, Authenticate, credential_of
from gateway.types import Principal

RIGHT = "eg_right"
PRINCIPAL = Principal(KeyId("k"), CustomerId("c"), ProjectId("p"), SlaTierId("s"), None)
SQL = "' OR 1=1; DROP TABLE api_keys; --"


def bearer(value):
    return ("authorization", f"Bearer {value}")


def api_key(value):
    return ("x-api-key", value)


@pytest.fixture
def asked():
    return []


async def call(asked, sent, path="/", public_paths=("/open",)):
    def lookup(key):
        asked.append(key)
        return PRINCIPAL if key == RIGHT else None

    async def who(request: Request):
        context = request.scope.get(SCOPE_KEY)
        return PlainTextResponse(
            context.principal.key_id if context and context.principal else "nobody"
        )

    app = Starlette(
        routes=[Route("/", who), Route("/open", who)],
        middleware=[Middleware(Authenticate, lookup=lookup, public_paths=public_paths)],
    )
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.get(path, headers=sent)


@pytest.mark.parametrize(
    "sent",
    [
        [bearer(RIGHT)],
        [("Authorization", f"bearer {RIGHT}")],
        [("authorization", f"BEARER   {RIGHT}  ")],
        [api_key(RIGHT)],
        [api_key(f" {RIGHT} ")],
        [bearer(RIGHT), api_key(RIGHT)],
        [bearer(RIGHT), bearer(RIGHT)],
        [bearer(""), api_key(RIGHT)],
        [bearer(RIGHT), api_key("")],
        [("authorization", "Basic dXNlcjpwYXNz"), api_key(RIGHT)],
    ],
    ids=repr,
)
async def test_a_key_may_stand_in_either_place_or_in_both(asked, sent):
    answer = await call(asked, sent)
    assert (answer.status_code, answer.text, asked) == (200, "k", [RIGHT])


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([], "no key"),
        ([("authorization", "")], "no key"),
        ([("authorization", "Bearer")], "no key"),
        ([bearer("")], "no key"),
        ([api_key("")], "no key"),
        ([("authorization", RIGHT)], "no key"),
        ([("authorization", f"Basic {RIGHT}")], "no key"),
        ([("authorization", f"BearerToken {RIGHT}")], "no key"),
        ([("authorization", f"Bearer{RIGHT}")], "no key"),
        ([bearer("eg_wrong")], "isn't valid"),
        ([bearer(SQL)], "isn't valid"),
        ([bearer(f"{RIGHT} {RIGHT}")], "isn't valid"),
        ([bearer("x" * (KEY_LENGTH_MAX + 1))], "isn't valid"),
        ([(b"authorization", "Bearer eg_клю́ч".encode())], "isn't valid"),
        ([(b"x-api-key", b"eg_\xff\xfe")], "isn't valid"),
    ],
    ids=lambda each: repr(each)[:60],
)
async def test_anything_else_is_refused_in_openai_s_shape_and_never_repeated(asked, sent, said):
    answer = await call(asked, sent)
    error = answer.json()["error"]
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-should-retry"] == "false"
    assert said in error.pop("message")
    assert error == {"type": "authentication_error", "param": None, "code": "invalid_api_key"}
    for _, value in sent:
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        secret = text.removeprefix("Bearer").strip()
        assert not secret or secret not in answer.text


@pytest.mark.parametrize("sent", [[bearer(RIGHT), api_key("other")], [bearer(RIGHT), bearer("b")]])
async def test_keys_that_differ_are_refused_without_trying_either(asked, sent):
    answer = await call(asked, sent)
    assert (answer.status_code, asked) == (400, [])
    assert RIGHT not in answer.text


async def test_hopeless_keys_are_not_looked_up(asked):
    for value in (b"x" * (KEY_LENGTH_MAX + 1), b"\xff"):
        await call(asked, [(b"x-api-key", value)])
    assert asked == []


async def test_only_the_named_paths_are_open(asked):
    assert (await call(asked, [], "/open")).text == "nobody"
    assert (await call(asked, [bearer("wrong")], "/open")).status_code == 200
    for path in ("/open/", "//open", "/OPEN", "/open/../"):
        assert (await call(asked, [], path)).status_code == 401


def test_the_longest_key_that_is_looked_at():
    longest = b"x" * KEY_LENGTH_MAX
    assert credential_of([(b"x-api-key", longest)]) == longest.decode()
    with pytest.raises(Unauthenticated):
        credential_of([(b"x-api-key", longest + b"x")])
    with pytest.raises(BadRequest):
        credential_of([(b"x-api-key", b"a"), (b"authorization", b"Bearer b")])
