"""Every request that reached a backend is one event with what was delivered, however it ended."""

import asyncio
import json

import pytest
import pytest_asyncio

from billing.types import KeyId, UsageSource, UsageStatus
from tests.integration.harness import (
    DONE,
    FINISH,
    STREAM_HEAD,
    STREAM_TAIL,
    add_customer,
    answer_bytes,
    cost,
    event,
    framed,
    free_port,
    piece,
    running_gateway,
    scripted_backend,
    usage_event,
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


async def one_event(gateway):
    (rated,) = await gateway.settled(1)
    assert gateway.gateway.meter.open_events == 0
    return rated


async def test_a_stream_is_billed_like_a_complete_answer(gateway):
    _, headers, _ = await gateway.chat()
    await gateway.chat(stream=True)
    await gateway.chat(stream=True, stream_options={"include_usage": True})
    events = await gateway.settled(3)
    assert [rated.micropoints for rated in events] == [cost(11, 3)] * 3
    assert headers["x-base-points"] == str(cost(11, 3))
    assert {rated.event.outcome.usage_source for rated in events} == {UsageSource.BACKEND}


@pytest.mark.parametrize(
    ("usage", "billed", "flag"),
    [
        (None, (None, 1), "usage_missing"),
        ({"prompt_tokens": -1_000_000, "completion_tokens": 3}, (None, 3), "usage_invalid"),
        ({"prompt_tokens": 11, "completion_tokens": 10**9}, (11, 1), "usage_out_of_bounds"),
        ({"prompt_tokens": "11", "completion_tokens": 3.0}, (None, 1), "usage_invalid"),
        ({"prompt_tokens": True, "completion_tokens": None}, (None, 1), "usage_invalid"),
        ({"prompt_tokens": 11, "completion_tokens": 0}, (11, 1), "usage_disputed"),
        ({"prompt_tokens": 2**64, "completion_tokens": 3}, (None, 3), "usage_out_of_bounds"),
    ],
)
async def test_unbelievable_usage_is_flagged_and_never_billed(
    gateway, backend, usage, billed, flag
):
    async def lie(received, writer):
        writer.write(whole(answer_bytes(usage=usage)))

    backend.script = lie
    assert (await gateway.chat("Hello"))[0] == 200
    outcome = (await one_event(gateway)).event.outcome
    intent = (await gateway.events())[0].event.intent
    expected_in = intent.input_tokens_estimate if billed[0] is None else billed[0]
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (expected_in, billed[1])
    assert flag in outcome.flags


async def test_cached_tokens_are_a_part(gateway, backend):
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 15},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }

    async def script(received, writer):
        writer.write(whole(answer_bytes(usage=usage)))

    backend.script = script
    await gateway.chat()
    rated = await one_event(gateway)
    assert rated.event.outcome.usage.cached_input_tokens == 15
    assert rated.event.outcome.usage.reasoning_tokens == 2
    # The catalog gives no rates of their own to the parts, so they cost what their wholes cost.
    assert rated.micropoints == cost(20, 5)


async def test_usage_in_a_chunk_with_choices_counts_and_the_last_one_wins(gateway, backend):
    async def script(received, writer):
        events = [
            piece("a"),
            usage_event({"prompt_tokens": 11, "completion_tokens": 1}),
            event(
                choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}],
                usage={"prompt_tokens": 11, "completion_tokens": 2},
            ),
            DONE,
        ]
        writer.write(STREAM_HEAD + b"".join(map(framed, events)) + STREAM_TAIL)

    backend.script = script
    _, _, body = await gateway.chat(stream=True)
    assert body.count(b'"usage"') == 1
    assert (await one_event(gateway)).micropoints == cost(11, 2)


async def test_a_client_that_leaves_mid_stream_pays_what_it_got(gateway, backend):
    async def drip(received, writer):
        writer.write(STREAM_HEAD)
        for number in range(3):
            writer.write(framed(piece(f"word{number} ")))
        await writer.drain()
        await received.is_closed.wait()

    backend.script = drip
    sent = {"authorization": f"Bearer {gateway.key}", "content-type": "application/json"}
    body = {"model": "auto", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with gateway.session.post(
        f"{gateway.url}/v1/chat/completions", json=body, headers=sent
    ) as response:
        seen = b""
        async for chunk in response.content.iter_any():
            seen += chunk
            if b"word2" in seen:
                break
        response.close()
    await asyncio.wait_for(backend.received[0].is_closed.wait(), 1)
    outcome = (await one_event(gateway)).event.outcome
    assert outcome.status is UsageStatus.CLIENT_CANCELLED
    assert (outcome.usage.output_tokens, outcome.usage_source) == (3, UsageSource.COUNTED)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_byte_costs_nothing(gateway, backend, stream):
    reached = asyncio.Event()

    async def silent(received, writer):
        reached.set()
        await received.is_closed.wait()

    backend.script = silent
    asking = asyncio.create_task(gateway.chat(stream=stream))
    await asyncio.wait_for(reached.wait(), 5)
    asking.cancel()
    await asyncio.wait_for(backend.received[0].is_closed.wait(), 1)
    rated = await one_event(gateway)
    assert (rated.micropoints, rated.event.outcome.status) == (0, UsageStatus.CLIENT_CANCELLED)


async def test_a_stream_that_breaks_off_ends_with_an_error_and_no_done(gateway, backend):
    async def breaks(received, writer):
        writer.write(STREAM_HEAD + framed(piece("one ")) + framed(piece("two ")))
        await writer.drain()
        writer.transport.abort()

    backend.script = breaks
    status, _, body = await gateway.chat(stream=True)
    events = [json.loads(each[6:]) for each in body.split(b"\n\n") if each]
    assert status == 200
    assert events[-1]["error"]["type"] == "backend_error"
    assert b"[DONE]" not in body
    outcome = (await one_event(gateway)).event.outcome
    assert (outcome.status, outcome.usage.output_tokens) == (UsageStatus.BACKEND_ERROR, 2)


async def test_half_an_event_at_the_end_is_not_forwarded(gateway, backend):
    async def half(received, writer):
        writer.write(STREAM_HEAD + framed(piece("one ")) + framed(b'data: {"cho') + STREAM_TAIL)

    backend.script = half
    _, _, body = await gateway.chat(stream=True)
    assert b'{"cho\n' not in body
    assert body.rstrip().endswith(b"}}")
    assert (await one_event(gateway)).event.outcome.status is UsageStatus.BACKEND_ERROR


async def test_a_stream_without_done_but_finished_is_complete(gateway, backend):
    async def finished(received, writer):
        events = [piece("one"), FINISH, usage_event()]
        writer.write(STREAM_HEAD + b"".join(map(framed, events)) + STREAM_TAIL)

    backend.script = finished
    assert (await gateway.chat(stream=True))[0] == 200
    rated = await one_event(gateway)
    assert (rated.event.outcome.status, rated.micropoints) == (UsageStatus.COMPLETED, cost(11, 3))


FAILURES = [
    (whole(b'{"error":{"message":"no such thing"}}', status="404 Not Found"), 404, "backend_refused"),
    (whole(b'{"error":{"message":"key sk-123 wrong"}}', status="401 Unauthorized"), 502, "backend_refused"),
    (whole(b"oops", status="500 Internal Server Error"), 502, "backend_refused"),
    (whole(b"oops", status="307 Temporary Redirect", headers="location: http://127.0.0.1:1/\r\n"), 502, "backend_refused"),
    (whole(b'{"error":{"message":"inside a 200"}}'), 502, "backend_broken"),
    (whole(b"not json"), 502, "backend_broken"),
    (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\nabc", 502, "backend_broken"),
    (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc", 502, "backend_broken"),
    (b"garbage\r\n\r\n", 502, "backend_broken"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("raw", "expected", "code"), FAILURES)
async def test_a_failed_backend_costs_nothing(gateway, backend, raw, expected, code, stream):
    async def fail(received, writer):
        writer.write(raw)
        await writer.drain()
        writer.close()

    backend.script = fail
    status, _, body = await gateway.chat(stream=stream)
    assert (status, json.loads(body)["error"]["code"]) == (expected, code)
    assert b"sk-123" not in body
    rated = await one_event(gateway)
    assert (rated.micropoints, rated.event.outcome.status) == (0, UsageStatus.BACKEND_ERROR)
    backend.script = await _default()
    assert (await gateway.chat())[0] == 200


async def _default():
    from tests.integration.harness import plain_answer

    return plain_answer


async def test_retry_after_is_passed_on(gateway, backend):
    async def busy(received, writer):
        body = b'{"error":{"message":"slow down"}}'
        writer.write(whole(body, status="429 Too Many Requests", headers="retry-after: 7\r\n"))

    backend.script = busy
    status, headers, body = await gateway.chat()
    assert (status, headers["retry-after"], headers["x-should-retry"]) == (429, "7", "true")
    assert "slow down" in json.loads(body)["error"]["message"]


async def test_a_backend_that_is_down_gives_503_and_frees_the_hold(tmp_path):
    async with running_gateway(tmp_path, [free_port()]) as gateway:
        status, headers, body = await gateway.chat()
        assert (status, json.loads(body)["error"]["code"]) == (503, "backend_unreachable")
        assert headers["retry-after"]
        rated = await one_event(gateway)
        assert rated.micropoints == 0


async def test_the_mirror_answers_when_the_first_replica_is_down(tmp_path, backend):
    async with running_gateway(tmp_path, [free_port(), backend.port]) as gateway:
        assert (await gateway.chat())[0] == 200
        rated = await one_event(gateway)
        assert rated.micropoints == cost(11, 3)
        assert any(flag.startswith("failover:") for flag in rated.event.outcome.flags)


async def test_a_budget_is_never_overshot_by_parallel_calls(gateway):
    # A call holds at most (message bytes + template + directive) and 100 output tokens: far below 1.2 points.
    budget = 1_200_000
    key = add_customer(gateway.accounts, gateway.pepper, "poor", budget=budget)
    await wait_for_key(gateway, key)
    answers = await asyncio.gather(*(gateway.chat(key=key) for _ in range(50)))
    statuses = [status for status, _, _ in answers]
    admitted = statuses.count(200)
    assert set(statuses) == {200, 429}
    events = await gateway.settled(admitted)
    assert len(events) == admitted
    assert 0 < sum(rated.micropoints for rated in events) <= budget
    refusal = next(json.loads(body)["error"] for status, _, body in answers if status == 429)
    assert (refusal["type"], refusal["code"]) == ("insufficient_quota", "budget_exceeded")


async def test_a_revoked_key_is_dead_within_a_second(gateway):
    from datetime import UTC, datetime

    gateway.accounts.revoke_key(KeyId("acme-key"), now=datetime.now(UTC), actor="test")
    async with asyncio.timeout(1):
        while (await gateway.chat())[0] != 401:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("trusted", [True, False])
async def test_bytes_after_an_answer_never_reach_another_caller(tmp_path, backend, trusted):
    async def extra(received, writer):
        writer.write(whole(answer_bytes("mine")) + whole(answer_bytes("SOMEBODY ELSE'S")))

    backend.script = extra
    async with running_gateway(tmp_path, [backend.port], trusted=trusted) as gateway:
        for _ in range(20):
            status, _, body = await gateway.chat()
            assert b"SOMEBODY" not in body
            assert status in (200, 502)
