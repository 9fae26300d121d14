"""Router and engine client as the gateway uses them: real artefacts, a real engine socket."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from routing_engine.client import ANSWER_BYTES_MAX, EngineClient, Router, near_matches
from routing_engine.errors import ArtefactError, EngineUnavailable
from routing_engine.types import Expert, ExpertId, RouteRequest, RouteSource, RoutingDecision
from tests.routing_engine.first_stage_files import LABELS, SAMPLES, write_gate, write_table

EXPERTS = [Expert(ExpertId(label), number, "", label, ()) for number, label in enumerate(LABELS)]
GENERAL = ExpertId("general")
OLD = 100
UNSURE = RouteRequest("zzz qqq", caller_request_count=OLD)
ANSWER = {"expert_id": "bakery", "score": 0.8, "candidates": [], "artefact_version": "s2"}


class Engine:
    """An engine that decides what it was told to, and counts."""

    def __init__(self, answer: RoutingDecision | None) -> None:
        self.answer, self.asked = answer, 0

    async def route(self, request: RouteRequest, *, deadline_s: float) -> RoutingDecision:
        self.asked += 1
        if self.answer is None:
            raise EngineUnavailable("down")
        return self.answer


@pytest.fixture
def router(tmp_path) -> Router:
    write_gate(tmp_path)
    write_table(tmp_path)
    return Router.load(tmp_path, EXPERTS, GENERAL)


@pytest.mark.parametrize(("text", "label"), [*zip(SAMPLES, LABELS, strict=True)])
@pytest.mark.parametrize(("count", "source"), [(0, RouteSource.BLEND), (OLD, RouteSource.GATE)])
def test_a_prompt_reaches_its_expert(router, text, label, count, source):
    decision = router.decide(RouteRequest(text, caller_request_count=count))
    assert (decision.expert_id, decision.source, decision.stage) == (label, source, 1)
    assert decision.artefact_version == router.artefact_version
    assert "+" in router.artefact_version


def test_without_a_gate_the_table_routes(tmp_path):
    write_table(tmp_path)
    decision = Router.load(tmp_path, EXPERTS, GENERAL).decide(RouteRequest(SAMPLES[1]))
    assert (decision.expert_id, decision.source) == ("garage", RouteSource.TABLE)


def test_without_any_artefact_the_default_answers(tmp_path):
    router = Router.load(tmp_path / "nowhere", EXPERTS, GENERAL)
    decision = router.decide(RouteRequest(SAMPLES[1]))
    assert (decision.expert_id, decision.source) == (GENERAL, RouteSource.DEFAULT)
    assert router.artefact_version == "none"


def test_an_expert_that_is_not_configured_is_never_chosen(tmp_path):
    write_gate(tmp_path)
    router = Router.load(tmp_path, [EXPERTS[1], EXPERTS[2]], GENERAL)
    decision = router.decide(RouteRequest(SAMPLES[0], caller_request_count=OLD))
    assert decision.expert_id == GENERAL


def test_artefacts_for_other_experts_are_refused(tmp_path):
    write_gate(tmp_path)
    with pytest.raises(ArtefactError, match="knows none"):
        Router.load(tmp_path, [Expert(ExpertId("x"), 1, "", "x", ())], ExpertId("x"))


def test_near_matches_name_what_was_probably_meant():
    known = [ExpertId(each) for each in ("python-algorithm", "c-systems", "nutrition")]
    assert near_matches("Python-Algoritm", known) == ("python-algorithm",)
    assert near_matches("zzz", known) == ()


async def test_a_sure_first_stage_does_not_ask_the_engine(router):
    engine = Engine(None)
    request = RouteRequest(SAMPLES[0], caller_request_count=OLD)
    assert await router.decide_escalated(request, engine, deadline_s=1) == router.decide(request)
    # Load damps the score, but makes nobody less sure.
    await router.decide_escalated(request, engine, {ExpertId("bakery"): 0.9}, deadline_s=1)
    assert engine.asked == 0


async def test_an_unsure_first_stage_takes_the_engines_word(router):
    engine = Engine(RoutingDecision(ExpertId("garage"), RouteSource.GATE, 0.9, stage=2))
    decision = await router.decide_escalated(UNSURE, engine, deadline_s=1)
    assert (decision.expert_id, decision.stage, decision.source) == ("garage", 2, RouteSource.GATE)
    assert "second stage" in decision.reason


@pytest.mark.parametrize(
    "answer",
    [
        None,
        RoutingDecision(ExpertId("stranger"), RouteSource.GATE, 0.9),
        RoutingDecision(ExpertId("garage"), RouteSource.GATE, 0.1),
    ],
)
async def test_an_engine_without_a_usable_opinion_changes_nothing(router, answer):
    decision = await router.decide_escalated(UNSURE, Engine(answer), deadline_s=1)
    assert decision == router.decide(UNSURE)


async def test_the_engine_cannot_choose_what_is_not_allowed(router):
    engine = Engine(RoutingDecision(ExpertId("garage"), RouteSource.GATE, 0.9))
    request = RouteRequest(UNSURE.text, allowed=frozenset({GENERAL}), caller_request_count=OLD)
    assert (await router.decide_escalated(request, engine, deadline_s=1)).expert_id == GENERAL


async def test_the_engine_is_believed_when_there_are_no_artefacts(tmp_path):
    router = Router.load(tmp_path, EXPERTS, GENERAL)
    engine = Engine(RoutingDecision(ExpertId("garage"), RouteSource.GATE, 0.9))
    assert (await router.decide_escalated(UNSURE, engine, deadline_s=1)).expert_id == "garage"


async def test_no_text_is_not_worth_a_question(router):
    engine = Engine(None)
    await router.decide_escalated(RouteRequest("?!"), engine, deadline_s=1)
    assert engine.asked == 0


async def ask(handler, *, deadline_s: float = 5.0, request: RouteRequest = UNSURE):
    """Ask a real engine socket whose ``/v1/route`` is `handler`."""
    app = web.Application()
    app.router.add_post("/v1/route", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session:
            client = EngineClient(session, f"http://{host}:{port}/")
            return await client.route(request, deadline_s=deadline_s)
    finally:
        await runner.cleanup()


async def test_the_engine_gets_the_request_and_its_answer_becomes_a_decision():
    seen = {}

    async def handler(request):
        seen.update(await request.json())
        return web.json_response(
            {**ANSWER, "candidates": [{"expert_id": "bakery", "score": 0.8}], "new_field": 1}
        )

    decision = await ask(
        handler,
        request=RouteRequest("bread", ("c:1",), ("bakery",), 3, frozenset({ExpertId("bakery")})),
    )
    assert seen == {
        "text": "bread",
        "concept_ids": ["c:1"],
        "expert_hints": ["bakery"],
        "allowed": ["bakery"],
    }
    assert (decision.expert_id, decision.score, decision.stage) == ("bakery", 0.8, 2)
    assert decision.artefact_version == "s2"
    assert decision.candidates[0].expert_id == "bakery"


async def test_an_answer_in_pieces_is_read_to_its_end():
    async def handler(request):
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for byte in json.dumps(ANSWER).encode():
            await response.write(bytes([byte]))
        await response.write_eof()
        return response

    assert (await ask(handler)).expert_id == "bakery"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (503, json.dumps(ANSWER)),
        (200, "not json"),
        (200, json.dumps({**ANSWER, "score": 7})),
        (200, json.dumps({"expert_id": "bakery"})),
        (200, json.dumps({**ANSWER, "artefact_version": "x" * (ANSWER_BYTES_MAX + 1)})),
    ],
)
async def test_anything_but_a_decision_is_unavailable(status, body):
    async def handler(request):
        return web.Response(status=status, text=body, content_type="application/json")

    with pytest.raises(EngineUnavailable):
        await ask(handler)


async def test_a_redirect_is_not_followed():
    async def handler(request):
        raise web.HTTPFound("/v1/route")

    with pytest.raises(EngineUnavailable, match="302"):
        await ask(handler)


async def test_a_late_engine_is_unavailable_at_the_deadline():
    async def handler(request):
        await asyncio.Event().wait()

    with pytest.raises(EngineUnavailable, match="TimeoutError"):
        await ask(handler, deadline_s=0.05)


async def test_an_engine_that_is_down_is_unavailable(unused_tcp_port):
    async with aiohttp.ClientSession() as session:
        client = EngineClient(session, f"http://127.0.0.1:{unused_tcp_port}")
        with pytest.raises(EngineUnavailable):
            await client.route(UNSURE, deadline_s=5)
