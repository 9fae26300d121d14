"""Every request that may have cost something is one event with what was delivered, however it ended."""

import asyncio
import json
from datetime import UTC, datetime

import aiohttp
import pytest

from billing.types import UsageSource, UsageStatus
from tests.integration.conftest import OUTPUT_TOKENS_MAX, cost, free_port
from tests.integration.scripted_backend import (
    DONE,
    FINISH,
    STREAM_HEAD,
    STREAM_TAIL,
    always,
    answer_plainly,
    completion,
    event,
    framed,
    piece,
    response,
    scripted_backend,
    stream_of,
    usage_event,
)

WITHIN_S = 1.0
"""How soon a backend must learn that its client has left, and a revoked key must be dead."""


def assert_nothing_is_held(gateway):
    assert gateway.inner.meter.open_events == 0


async def test_a_stream_costs_what_a_complete_answer_costs(gateway):
    whole = await gateway.chat()
    await gateway.chat(stream=True)
    await gateway.chat(stream=True, stream_options={"include_usage": True})
    events = await gateway.events()
    assert [rated.micropoints for rated in events] == [cost(11, 3)] * 3
    assert [rated.event.intent.streamed for rated in events] == [False, True, True]
    assert {rated.event.outcome.usage_source for rated in events} == {UsageSource.BACKEND}
    assert whole.headers["x-base-points"] == str(cost(11, 3))


# Reported usage; then input and output tokens that are billed (None: our estimate), and the flag.
LIES = {
    "missing": (None, (None, 1), "usage_missing"),
    "negative": ({"prompt_tokens": -10**6, "completion_tokens": 3}, (None, 3), "usage_invalid"),
    "absurd output": ({"prompt_tokens": 11, "completion_tokens": 10**9}, (11, 1), "usage_out_of_bounds"),
    "absurd input": ({"prompt_tokens": 2**64, "completion_tokens": 3}, (None, 3), "usage_out_of_bounds"),
    "one over the cap": (
        {"prompt_tokens": 11, "completion_tokens": OUTPUT_TOKENS_MAX + 1}, (11, 1), "usage_out_of_bounds"),
    "text": ({"prompt_tokens": "11", "completion_tokens": 3.0}, (None, 1), "usage_invalid"),
    "truth values": ({"prompt_tokens": True, "completion_tokens": None}, (None, 1), "usage_invalid"),
    "nothing made": ({"prompt_tokens": 11, "completion_tokens": 0}, (11, 1), "usage_disputed"),
    "a list": ([11, 3], (None, 1), "usage_missing"),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("usage", "billed", "flag"), LIES.values(), ids=LIES.keys())
async def test_usage_that_cannot_be_true_is_flagged_and_not_billed(
    gateway, backend, usage, billed, flag, stream
):
    last = [] if usage is None else [usage_event(usage)]
    backend.script = always(
        stream_of(piece("Hello."), FINISH, *last, DONE)
        if stream
        else response(completion(usage=usage))
    )
    assert (await gateway.chat("Hello", stream=stream)).status == 200
    rated = await gateway.only_event()
    intent, outcome = rated.event.intent, rated.event.outcome
    expected = intent.input_tokens_estimate if billed[0] is None else billed[0]
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (expected, billed[1])
    assert flag in outcome.flags
    assert rated.micropoints == cost(expected, billed[1]) <= intent.hold


async def test_cached_and_reasoning_tokens_are_parts(gateway, backend):
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 15},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    backend.script = always(response(completion(usage=usage)))
    await gateway.chat()
    rated = await gateway.only_event()
    billed = rated.event.outcome.usage
    assert (billed.cached_input_tokens, billed.reasoning_tokens) == (15, 2)
    # The catalog prices no parts, so they cost what their wholes cost.
    assert rated.micropoints == cost(20, 5)


async def test_usage_in_every_chunk_is_never_summed(gateway, backend):
    finish = event(
        choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}],
        usage={"prompt_tokens": 11, "completion_tokens": 2},
    )
    early = usage_event({"prompt_tokens": 11, "completion_tokens": 1})
    backend.script = always(stream_of(piece("a"), early, finish, DONE))
    answer = await gateway.chat(stream=True)
    # Usage beside choices stays where it is; only the chunk that holds nothing else is hidden.
    assert answer.body == piece("a") + finish + DONE
    assert (await gateway.only_event()).micropoints == cost(11, 2)


@pytest.mark.parametrize("reported", [False, True], ids=["counted", "reported"])
async def test_who_leaves_mid_stream_pays_what_arrived(gateway, backend, reported):
    async def drip(exchange):
        early = [usage_event({"prompt_tokens": 11, "completion_tokens": 90})] if reported else []
        exchange.send(STREAM_HEAD, framed(*early, *(piece(f"word{n} ") for n in range(3))))
        await exchange.closed.wait()

    backend.script = drip
    async with gateway.open_chat(stream=True) as got:
        seen = b""
        while b"word2" not in seen:
            seen += await got.content.readany()
        got.close()
    exchange = await backend.next_exchange()
    await asyncio.wait_for(exchange.closed.wait(), WITHIN_S)
    rated = await gateway.only_event()
    outcome = rated.event.outcome
    assert (outcome.status, outcome.usage_source) == (
        UsageStatus.CLIENT_CANCELLED,
        UsageSource.COUNTED,
    )
    assert outcome.delivered_chunks == outcome.usage.output_tokens == 3
    input_tokens = 11 if reported else rated.event.intent.input_tokens_estimate
    assert rated.micropoints == cost(input_tokens, 3)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("has_head", [False, True], ids=["no head", "head"])
async def test_who_leaves_before_the_first_byte_pays_nothing(gateway, backend, stream, has_head):
    async def silent(exchange):
        if has_head:
            exchange.send(STREAM_HEAD if stream else response(completion())[:150])
        await exchange.closed.wait()

    backend.script = silent
    asking = asyncio.create_task(gateway.chat(stream=stream))
    exchange = await backend.next_exchange()
    asking.cancel()
    await asyncio.wait_for(exchange.closed.wait(), WITHIN_S)
    rated = await gateway.only_event()
    assert (rated.micropoints, rated.event.outcome.status) == (0, UsageStatus.CLIENT_CANCELLED)


async def test_many_clients_that_leave_are_one_event_each(gateway, backend):
    async def silent(exchange):
        exchange.send(STREAM_HEAD, framed(piece("a ")))
        await exchange.closed.wait()

    backend.script = silent

    async def leave(number):
        async with gateway.open_chat(stream=True) as got:
            if number % 2:
                await got.content.readany()
            got.close()

    await asyncio.gather(*(leave(number) for number in range(30)))
    for _ in range(30):
        exchange = await backend.next_exchange()
        await asyncio.wait_for(exchange.closed.wait(), 5)
    async with asyncio.timeout(10):
        while gateway.inner.meter.open_events:
            await gateway.get("/healthz")
    events = await gateway.events()
    assert len({rated.event.intent.event_id for rated in events}) == len(events) == 30
    assert {rated.event.outcome.status for rated in events} == {UsageStatus.CLIENT_CANCELLED}


async def test_a_reset_mid_stream_ends_with_an_error_event_and_no_done(gateway, backend):
    is_read = asyncio.Event()

    async def resets(exchange):
        exchange.send(STREAM_HEAD, framed(piece("one "), piece("two ")))
        await is_read.wait()
        exchange.reset()

    backend.script = resets
    async with gateway.open_chat(stream=True) as got:
        assert got.status == 200
        body = b""
        while b"two" not in body:
            body += await got.content.readany()
        is_read.set()
        body += await got.content.read()
    *delivered, last = [json.loads(each[6:]) for each in body.split(b"\n\n") if each]
    assert [chunk["choices"][0]["delta"]["content"] for chunk in delivered] == ["one ", "two "]
    assert (last["error"]["type"], last["error"]["code"]) == ("backend_error", "backend_broken")
    assert b"[DONE]" not in body
    outcome = (await gateway.only_event()).event.outcome
    assert (outcome.status, outcome.usage.output_tokens) == (UsageStatus.BACKEND_ERROR, 2)


# Streams that begin well; what follows the first delivered chunk.
BREAKS = {
    "an end without finish": STREAM_TAIL,
    "half an event": framed(b'data: {"cho') + STREAM_TAIL,
    "an event that isn't JSON": framed(b"data: oops\n\n"),
    "an error event": framed(event(error={"message": "out of memory"})),
    "an error event of text": framed(b'data: {"error":"out of memory"}\n\n'),
    "a bad chunk size": b"zz\r\n",
}


@pytest.mark.parametrize("rest", BREAKS.values(), ids=BREAKS.keys())
async def test_a_stream_that_goes_wrong_ends_with_an_error_event(gateway, backend, rest):
    is_read = asyncio.Event()

    async def script(exchange):
        exchange.send(STREAM_HEAD, framed(piece("one ")))
        await is_read.wait()
        exchange.send(rest)

    backend.script = script
    async with gateway.open_chat(stream=True) as got:
        body = await got.content.readany()
        is_read.set()
        body += await got.content.read()
    assert body.startswith(piece("one ") + b"data: ")
    error = json.loads(body.removeprefix(piece("one "))[6:])
    assert error["error"]["code"] == "backend_broken"
    outcome = (await gateway.only_event()).event.outcome
    assert (outcome.status, outcome.usage.output_tokens) == (UsageStatus.BACKEND_ERROR, 1)


async def test_a_stream_that_finished_needs_no_done(gateway, backend):
    backend.script = always(stream_of(piece("one"), FINISH, usage_event()))
    answer = await gateway.chat(stream=True)
    assert answer.body == piece("one") + FINISH
    rated = await gateway.only_event()
    assert (rated.event.outcome.status, rated.micropoints) == (UsageStatus.COMPLETED, cost(11, 3))


def ends_early(answer: bytes):
    async def script(exchange):
        exchange.send(answer)
        exchange.close()

    return script


# What a backend sends; then what the client gets: status and code.
FAILURES = {
    "refused": (response(b'{"error":{"message":"no"}}', status="404 Not Found"), 404, "backend_refused"),
    "our credential": (
        response(b'{"error":{"message":"sk-123 is wrong"}}', status="401 Unauthorized"), 502, "backend_refused"),
    "forbidden": (response(b"sk-123", status="403 Forbidden"), 502, "backend_refused"),
    "failed": (response(b"oops", status="500 Internal Server Error"), 502, "backend_refused"),
    "overloaded": (response(b"{}", status="503 Service Unavailable"), 503, "backend_refused"),
    "moved": (
        response(b"", status="307 Temporary Redirect", headers="location: http://127.0.0.1:1/\r\n"),
        502, "backend_refused"),
    "an error inside a success": (response(b'{"error":{"message":"sk-123"}}'), 502, "backend_broken"),
    "an error as the first event": (
        stream_of(event(error={"message": "sk-123"}), DONE), 502, "backend_broken"),
    "not JSON": (response(b"not json"), 502, "backend_broken"),
    "an array": (response(b"[]"), 502, "backend_broken"),
    "truncated": (response(completion())[:-20], 502, "backend_broken"),
    "truncated in a chunk": (STREAM_HEAD + b"ff\r\ndata: ", 502, "backend_broken"),
    "encoded": (
        response(b"abc", headers="content-encoding: gzip\r\n"), 502, "backend_broken"),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", 502, "backend_broken"),
    "nothing": (b"", 502, "backend_broken"),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_failed_backend_costs_nothing_and_spoils_nothing(gateway, backend, stream):
    for name, (answer_bytes, status, code) in FAILURES.items():
        backend.script = ends_early(answer_bytes)
        answer = await gateway.chat(stream=stream)
        assert (answer.status, answer.error["code"]) == (status, code), name
        assert b"sk-123" not in answer.body
        assert answer.headers["content-type"] == "application/json"
    backend.script = answer_plainly
    assert (await gateway.chat(stream=stream)).status == 200
    *failed, last = await gateway.events()
    assert len(failed) == len(FAILURES) == len(backend.exchanges) - 1
    assert {(each.micropoints, each.event.outcome.status) for each in failed} == {
        (0, UsageStatus.BACKEND_ERROR)
    }
    assert last.micropoints == cost(11, 3)
    assert_nothing_is_held(gateway)


@pytest.mark.parametrize("retry_after", ["7", "0"])
async def test_retry_after_is_passed_on(gateway, backend, retry_after):
    body = b'{"error":{"message":"slow down"}}'
    headers = f"retry-after: {retry_after}\r\n"
    backend.script = always(response(body, status="429 Too Many Requests", headers=headers))
    answer = await gateway.chat()
    assert (answer.status, answer.headers["retry-after"]) == (429, retry_after)
    assert answer.headers["x-should-retry"] == "true"
    assert (answer.error["type"], answer.error["code"]) == ("rate_limit_error", "backend_refused")
    assert "slow down" in answer.error["message"]
    assert (await gateway.only_event()).micropoints == 0


async def test_a_backend_that_is_down_costs_nothing_and_frees_the_hold(start_gateway):
    gateway = await start_gateway(free_port())
    answer = await gateway.chat()
    assert (answer.status, answer.error["code"]) == (503, "backend_unreachable")
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["x-should-retry"] == "true"
    rated = await gateway.only_event()
    assert (rated.micropoints, rated.event.outcome.status) == (0, UsageStatus.BACKEND_ERROR)
    # With a budget for one call, each further call fails for the backend's sake, not for want of budget.
    await gateway.set_budget(gateway.caller, rated.event.intent.hold)
    assert [(await gateway.chat()).status for _ in range(3)] == [503] * 3


async def test_the_second_replica_answers_when_the_first_is_down(start_gateway, backend):
    gateway = await start_gateway(free_port(), backend.port)
    for stream in (False, True):
        assert (await gateway.chat(stream=stream)).status == 200
    events = await gateway.events()
    assert [rated.micropoints for rated in events] == [cost(11, 3)] * 2
    for rated in events:
        assert [flag for flag in rated.event.outcome.flags if flag.startswith("failover:")]
    assert len(backend.exchanges) == 2


async def test_a_replica_that_took_the_request_is_not_followed_by_another(start_gateway, backend):
    async with scripted_backend() as mirror:

        async def dies(exchange):
            exchange.reset()

        backend.script = dies
        gateway = await start_gateway(backend.port, mirror.port)
        assert (await gateway.chat()).status == 502
        assert mirror.exchanges == []
        assert len(await gateway.events()) == 1


async def test_a_budget_is_never_overshot_by_parallel_calls(gateway, backend):
    await gateway.chat()
    hold = (await gateway.only_event()).event.intent.hold
    # Room for five holds at once; every call costs less than its hold, so a sixth may follow, never one too many.
    budget = 5 * hold
    poor = await gateway.add_caller("poor", budget=budget)
    release = asyncio.Event()

    async def waits(exchange):
        await release.wait()
        await answer_plainly(exchange)

    backend.script = waits
    calls = [
        asyncio.create_task(gateway.chat(key=poor.key, stream=number % 2 == 0))
        for number in range(50)
    ]
    refused, admitted = [], set(calls)
    while len(admitted) > 5:
        done, admitted = await asyncio.wait(
            admitted, timeout=10, return_when=asyncio.FIRST_COMPLETED
        )
        refused += [call.result() for call in done]
    assert {answer.status for answer in refused} == {429}
    assert len(refused) == 45
    error = refused[0].error
    assert (error["type"], error["code"]) == ("insufficient_quota", "budget_exceeded")
    assert refused[0].headers["x-should-retry"] == "false"
    release.set()
    assert [(await call).status for call in admitted] == [200] * 5

    async def until_refused():
        while (await gateway.chat(key=poor.key)).status == 200:
            pass

    await asyncio.gather(*(until_refused() for _ in range(10)))
    events = await gateway.events(poor)
    assert len(events) == len(backend.exchanges) - 1 > 5
    assert budget - hold < sum(rated.micropoints for rated in events) <= budget
    assert_nothing_is_held(gateway)


async def test_a_package_that_refuses_overage_stops_at_its_allowance(gateway):
    student = await gateway.add_caller("student", package="programming")
    allowance = 100_000_000
    # One point and more per call: 200 × 10 choices of 100 tokens are held as 4,000 milli-points each.
    asked = await asyncio.gather(
        *(gateway.chat("x" * 12_000, key=student.key, n=16) for _ in range(12))
    )
    assert {answer.status for answer in asked} == {200, 429}
    events = await gateway.events(student)
    assert sum(rated.micropoints for rated in events) <= allowance


async def test_a_revoked_key_is_dead_within_a_second_and_its_stream_ends_well(gateway, backend):
    release = asyncio.Event()

    async def waits(exchange):
        exchange.send(STREAM_HEAD, framed(piece("one ")))
        await release.wait()
        exchange.send(framed(FINISH, usage_event(), DONE), STREAM_TAIL)

    backend.script = waits
    async with gateway.open_chat(stream=True) as got:
        body = await got.content.readany()
        await asyncio.to_thread(
            gateway.accounts.revoke_key,
            gateway.caller.key_id,
            now=datetime.now(UTC),
            actor="test",
        )
        async with asyncio.timeout(WITHIN_S):
            while (await gateway.list_models(gateway.caller)).status != 401:
                pass
        assert (await gateway.chat()).status == 401
        release.set()
        body += await got.content.read()
    assert body.endswith(DONE)
    assert (await gateway.only_event()).micropoints == cost(11, 3)


async def test_the_output_cap_that_the_hold_was_made_from_is_sent(gateway, backend):
    for members, cap in (
        ({}, {"max_tokens": OUTPUT_TOKENS_MAX}),
        ({"max_tokens": 7}, {"max_tokens": 7}),
        ({"max_tokens": 10_000}, {"max_tokens": OUTPUT_TOKENS_MAX}),
        ({"max_completion_tokens": 7}, {"max_completion_tokens": 7}),
        ({"max_completion_tokens": 10_000}, {"max_completion_tokens": OUTPUT_TOKENS_MAX}),
    ):
        await gateway.chat(**members)
        sent = backend.exchanges[-1].json
        assert {name: sent[name] for name in sent if name.startswith("max_")} == cap


async def test_a_client_that_reads_slowly_is_billed_for_what_it_gets(gateway, backend):
    """The backend sends far more than fits into any socket's buffer; the client reads it all, late."""
    text = "x" * 1_000
    backend.script = always(
        STREAM_HEAD,
        *(framed(piece(text)) for _ in range(3_000)),
        framed(FINISH, usage_event({"prompt_tokens": 11, "completion_tokens": 90}), DONE),
        STREAM_TAIL,
    )
    async with gateway.open_chat(stream=True) as got:
        await gateway.get("/healthz")
        body = await got.content.read()
    assert body == piece(text) * 3_000 + FINISH + DONE
    assert (await gateway.only_event()).micropoints == cost(11, 90)


async def test_a_client_that_stops_reading_and_leaves_frees_the_backend(gateway, backend):
    async def pours(exchange):
        exchange.send(STREAM_HEAD)
        while not exchange.closed.is_set():
            exchange.send(framed(piece("x" * 10_000)))
            await asyncio.sleep(0)

    backend.script = pours
    session = aiohttp.ClientSession(read_bufsize=1024)
    body = {"model": "auto", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    got = await session.post(
        f"{gateway.url}/v1/chat/completions", json=body, headers=gateway.headers()
    )
    await got.content.readany()
    got.close()
    await session.close()
    exchange = await backend.next_exchange()
    await asyncio.wait_for(exchange.closed.wait(), WITHIN_S)
    assert (await gateway.only_event()).event.outcome.status is UsageStatus.CLIENT_CANCELLED
