"""Each middleware works alone in a Starlette application that isn't ours."""

import json

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from billing.types import CustomerId, KeyId, ProjectId, SlaTierId
from gateway.context import SCOPE_KEY, BodyLimits
from gateway.errors import UnknownModel
from gateway.middleware.anchor import BindAnchor
from gateway.middleware.authenticate import Authenticate, credential_of
from gateway.middleware.normalise import NormaliseTerms
from gateway.middleware.problems import ProblemResponses
from gateway.types import Principal
from routing_engine.types import Expert, ExpertId, Replica, ReplicaId
from term_db.types import NormalisedText

PATH = "/ask"
PRINCIPAL = Principal(KeyId("k"), CustomerId("c"), ProjectId("p"), SlaTierId("s"), None)
EXPERT = Expert(ExpertId("e"), 1, "d", "E", (Replica(ReplicaId("r"), "http://x", "m"),))


def app_with(*middleware, endpoint=None):
    async def echo(request: Request):
        body = await request.body()
        context = request.scope.get(SCOPE_KEY)
        return JSONResponse(
            {
                "body": body.decode(),
                "content_length": request.headers.get("content-length"),
                "key": None
                if context is None or context.principal is None
                else context.principal.key_id,
                "anchor": None
                if context is None or context.anchor.anchor is None
                else context.anchor.anchor.expert_id,
            }
        )

    routes = [Route(PATH, endpoint or echo, methods=["GET", "POST"])]
    return Starlette(routes=routes, middleware=list(middleware))


async def send(app, body=None, method="POST", **options):
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.request(method, PATH, content=body, **options)


def chat(text="use qsort"):
    return json.dumps({"model": "auto", "messages": [{"role": "user", "content": text}]}).encode()


def shorten(text):
    return NormalisedText(text.replace("qsort", "快速排序"), (), 1)


NORMALISE = Middleware(NormaliseTerms, terms=lambda: (shorten, 3), paths=[PATH])
ANCHOR = Middleware(
    BindAnchor,
    experts=lambda: {EXPERT.expert_id: EXPERT},
    near_matches=lambda _: ("e",),
    paths=[PATH],
)


async def test_normalising_replays_the_rewritten_body_with_its_length():
    answer = (await send(app_with(NORMALISE), chat())).json()
    assert json.loads(answer["body"])["messages"][0]["content"] == "use 快速排序"
    assert answer["content_length"] == str(len(answer["body"].encode()))


async def test_an_unchanged_body_is_replayed_byte_for_byte():
    body = b'{ "model":"auto", "messages": [ {"role":"user","content":"hi"} ], "n" : 1 }'
    assert (await send(app_with(NORMALISE), body)).json()["body"] == body.decode()


async def test_normalising_alone_answers_bad_bodies_itself():
    answer = await send(app_with(NORMALISE), b"{")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


async def test_other_methods_and_paths_pass_untouched():
    assert (await send(app_with(NORMALISE), method="GET")).json()["body"] == ""


async def test_system_and_assistant_texts_are_never_rewritten():
    messages = [
        {"role": role, "content": "qsort"} for role in ("system", "assistant", "tool", "user")
    ]
    body = json.dumps({"model": "auto", "messages": messages}).encode()
    replayed = json.loads((await send(app_with(NORMALISE), body)).json()["body"])["messages"]
    assert [each["content"] for each in replayed] == ["qsort", "qsort", "qsort", "快速排序"]


async def test_the_anchor_field_is_bound_and_taken_out():
    body = json.dumps(
        {"model": "auto", "expert_anchor": "e", "messages": [{"role": "user", "content": "x"}]}
    )
    answer = (await send(app_with(ANCHOR), body.encode())).json()
    assert answer["anchor"] == "e"
    assert "expert_anchor" not in answer["body"]


async def test_an_unknown_anchor_is_answered_with_near_matches():
    answer = await send(app_with(ANCHOR), chat(), headers={"x-expert-anchor": "f"})
    assert answer.status_code == 400
    assert "did you mean e" in answer.json()["error"]["message"]


async def test_both_together_read_the_body_once_and_agree():
    answer = (await send(app_with(NORMALISE, ANCHOR), chat("use qsort【专家锚定：e】"))).json()
    assert answer["anchor"] == "e"
    assert "快速排序" in answer["body"]


async def test_a_body_over_the_limit_is_refused_early():
    small = Middleware(
        NormaliseTerms, terms=lambda: (shorten, 0), paths=[PATH], limits=BodyLimits(20, 1.0)
    )
    assert (await send(app_with(small), chat())).status_code == 413


async def test_authentication_alone():
    authenticate = Middleware(
        Authenticate, lookup=lambda key: PRINCIPAL if key == "right" else None
    )
    app = app_with(authenticate)
    right = await send(app, b"", headers={"authorization": "Bearer right"})
    wrong = await send(app, b"", headers={"authorization": "Bearer wrong"})
    assert right.json()["key"] == "k"
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
    assert "wrong" not in wrong.text


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ([(b"authorization", b"Bearer a")], "a"),
        ([(b"authorization", b"bearer  a ")], "a"),
        ([(b"x-api-key", b"a")], "a"),
        ([(b"authorization", b"Bearer a"), (b"x-api-key", b"a")], "a"),
    ],
)
def test_where_a_key_may_stand(sent, found):
    assert credential_of(sent) == found


async def test_problems_alone_answer_what_an_endpoint_raises_and_stamp_a_request_id():
    async def fails(request):
        raise UnknownModel("gpt-9", ("auto",))

    app = app_with(Middleware(ProblemResponses), endpoint=fails)
    answer = await send(app, b"{}")
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == "model"
    assert answer.headers["x-request-id"].startswith("req_")


class Meddling:
    """A foreign middleware that copies the scope and wraps `receive`, as many do."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def wrapped():
            return await receive()

        await self.app({**scope, "headers": list(scope["headers"])}, wrapped, send)


@pytest.mark.parametrize(
    "order",
    [
        (Middleware(Meddling), NORMALISE, ANCHOR),
        (NORMALISE, Middleware(Meddling), ANCHOR),
        (NORMALISE, ANCHOR, Middleware(Meddling)),
        (ANCHOR, Middleware(Meddling), NORMALISE),
    ],
)
async def test_foreign_middleware_may_stand_anywhere_between(order):
    answer = (await send(app_with(*order), chat("use qsort【专家锚定：e】"))).json()
    assert answer["anchor"] == "e"
    assert "快速排序" in answer["body"]
    assert answer["content_length"] == str(len(answer["body"].encode()))


async def test_a_body_sent_in_chunks_arrives_whole_with_its_length():
    async def pieces():
        body = chat()
        for at in range(0, len(body), 7):
            yield body[at : at + 7]

    answer = (await send(app_with(NORMALISE), pieces())).json()
    assert answer["content_length"] == str(len(answer["body"].encode()))


async def test_a_directive_that_names_nobody_is_passed_on_and_never_obeyed():
    answer = (await send(app_with(ANCHOR), chat("hi【专家锚定：nobody】"))).json()
    assert answer["anchor"] is None
    assert json.loads(answer["body"])["messages"][0]["content"] == "hi【专家锚定：nobody】"


async def test_one_request_uses_one_dictionary_throughout():
    asked = []

    def terms():
        asked.append(len(asked))
        return shorten, len(asked)

    messages = [{"role": "user", "content": "qsort"}] * 3
    body = json.dumps({"model": "auto", "messages": messages}).encode()
    await send(app_with(Middleware(NormaliseTerms, terms=terms, paths=[PATH])), body)
    assert asked == [0]
