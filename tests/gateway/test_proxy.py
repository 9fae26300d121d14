"""The dialogue of one admitted request: intent, backend, chunks, outcome, last byte; and every way out of it."""

import asyncio
import json

import pytest

from billing.errors import MeteringUnavailable
from billing.holds import customer_scope
from billing.types import CustomerId, Usage, UsageSource, UsageStatus
from gateway.errors import BackendBroken, BackendRefused, BackendTimeout, BackendUnreachable
from gateway.proxy import ChatProxy
from gateway.telemetry import Telemetry
from tests.fakes import FakeAnswer, FakeBackend, FakeMeter
from tests.gateway.pipeline import NOW, Pipeline

USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
COST = 10 * 2_000 + 2 * 4_000 + 100 * 1_000
ANSWER = json.dumps({"choices": [{"message": {"content": "hi"}}], "usage": USAGE}).encode()
STREAM = {"content-type": "text/event-stream"}


def event(**members):
    return b"data: " + json.dumps(members).encode() + b"\n\n"


CONTENT = event(choices=[{"delta": {"content": "h"}}])
FINISH = event(choices=[{"delta": {}, "finish_reason": "stop"}])
REPORT = event(choices=[], usage=USAGE)
DONE = b"data: [DONE]\n\n"


async def never():
    await asyncio.Event().wait()


class Dialogue:
    """Runs one request through a `ChatProxy` between fakes; `sent` is what the client got."""

    def __init__(self, *answers, meter=None):
        self.worker = Pipeline()
        self.meter = meter or FakeMeter()
        self.backend = FakeBackend(*answers)
        self.client_leaves = asyncio.Event()
        self.sent = []

    async def receive(self):
        await self.client_leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.meter.said.append("headers" if "status" in message else "body")
        self.sent.append(message)

    async def run(self, **members):
        telemetry = Telemetry()
        proxy = ChatProxy(
            backend=self.backend, meter=self.meter, holds=self.worker.holds, load=self.worker.load,
            telemetry=telemetry, clock=lambda: NOW, answer_bytes_max=1 << 20,
        )  # fmt: skip
        try:
            context, admission = await self.worker.admitted(receive=self.receive, **members)
            await proxy.run(context, admission, self.send)
        finally:
            telemetry.close()

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def headers(self):
        return dict(self.sent[0]["headers"])

    @property
    def outcome(self):
        """The one outcome, after whose settlement nothing is held."""
        assert self.worker.holds.open_holds == 0
        (outcome,) = self.meter.outcomes
        return outcome

    @property
    def spent(self):
        return self.worker.holds.standing(customer_scope(CustomerId("free")), NOW).spent


async def test_a_whole_answer_is_durable_before_its_first_byte():
    dialogue = Dialogue(FakeAnswer(ANSWER))
    await dialogue.run()
    assert dialogue.meter.said == ["intent", "outcome", "durable", "headers", "body"]
    assert dialogue.body == ANSWER
    assert dialogue.headers[b"content-length"] == str(len(ANSWER)).encode()
    assert dialogue.headers[b"x-base-points"] == str(COST).encode()
    outcome = dialogue.outcome
    assert (outcome.status, outcome.usage) == (UsageStatus.COMPLETED, Usage(10, 2))
    assert dialogue.spent == COST


async def test_a_stream_s_end_waits_until_its_outcome_is_durable():
    dialogue = Dialogue(FakeAnswer(CONTENT, CONTENT + FINISH, REPORT, DONE, headers=STREAM))
    await dialogue.run(stream=True)
    assert dialogue.meter.said == [
        "intent", "headers", "body", "body", "body", "outcome", "durable", "body",
    ]  # fmt: skip
    # The client did not ask for usage, so only the meter sees it.
    assert dialogue.body == CONTENT + CONTENT + FINISH + DONE
    chunk = ["begin", ("done", len(CONTENT), True)]
    assert dialogue.meter.slot.told == [*chunk, *chunk, ("usage", 10, 2)]
    assert dialogue.outcome.delivered_chunks == 2
    assert dialogue.spent == COST


async def test_a_disk_that_takes_its_time_holds_the_last_byte_back():
    meter = FakeMeter(is_durable=False)
    dialogue = Dialogue(FakeAnswer(CONTENT, FINISH + DONE, headers=STREAM), meter=meter)
    running = asyncio.create_task(dialogue.run(stream=True))
    async with asyncio.timeout(5):
        while "outcome" not in meter.said:
            await asyncio.sleep(0)
    assert dialogue.body == CONTENT + FINISH
    meter.is_durable.set()
    await running
    assert dialogue.body == CONTENT + FINISH + DONE


async def test_usage_that_the_client_asked_for_is_passed_on():
    dialogue = Dialogue(FakeAnswer(CONTENT + FINISH + REPORT + DONE, headers=STREAM))
    await dialogue.run(stream=True, stream_options={"include_usage": True})
    assert dialogue.body == CONTENT + FINISH + REPORT + DONE


async def test_the_last_usage_wins_and_figures_that_fall_are_marked():
    reports = [
        event(
            choices=[{"delta": {"content": "x"}}],
            usage={"prompt_tokens": 10, "completion_tokens": n},
        )
        for n in (1, 2)
    ]
    dialogue = Dialogue(FakeAnswer(*reports, FINISH, DONE, headers=STREAM))
    await dialogue.run(stream=True)
    assert (dialogue.outcome.usage, dialogue.outcome.flags) == (Usage(10, 2), ())
    falling = Dialogue(FakeAnswer(*reversed(reports), FINISH, DONE, headers=STREAM))
    await falling.run(stream=True)
    assert falling.outcome.usage == Usage(10, 2)
    assert "not_monotone" in " ".join(falling.outcome.flags)


async def test_no_intent_no_call():
    dialogue = Dialogue(FakeAnswer(ANSWER), meter=FakeMeter(is_available=False))
    with pytest.raises(MeteringUnavailable):
        await dialogue.run()
    assert (dialogue.backend.calls, dialogue.meter.outcomes, dialogue.sent) == ([], [], [])
    assert (dialogue.worker.holds.open_holds, dialogue.spent) == (0, 0)
    assert dialogue.worker.load.loads(10**18) == {"a": 0.0}


async def test_a_mirror_answers_when_nothing_was_sent_to_the_first():
    dialogue = Dialogue(BackendUnreachable("no"), FakeAnswer(ANSWER))
    await dialogue.run(model="expert/b")
    assert [call[0] for call in dialogue.backend.calls] == ["b/0", "b/1"]
    assert "failover:b/1" in dialogue.outcome.flags
    assert dialogue.body == ANSWER


@pytest.mark.parametrize(
    "answers",
    [
        [BackendTimeout("late"), FakeAnswer(ANSWER)],
        [BackendBroken("cut"), FakeAnswer(ANSWER)],
        [FakeAnswer(b"{}", status=503), FakeAnswer(ANSWER)],
        [BackendUnreachable("no"), BackendUnreachable("no")],
    ],
    ids=["timeout", "broken", "refused", "both down"],
)
async def test_what_may_have_been_done_is_not_done_twice_and_costs_nothing(answers):
    dialogue = Dialogue(*answers)
    expected = (BackendTimeout, BackendBroken, BackendRefused, BackendUnreachable)
    with pytest.raises(expected):
        await dialogue.run(model="expert/b")
    down = sum(isinstance(each, BackendUnreachable) for each in answers)
    assert len(dialogue.backend.calls) == max(1, down)
    outcome = dialogue.outcome
    assert (outcome.status, outcome.usage, outcome.usage_source, outcome.billed_calls) == (
        UsageStatus.BACKEND_ERROR, Usage(0, 0), UsageSource.NONE, 0,
    )  # fmt: skip
    assert (dialogue.sent, dialogue.spent) == ([], 0)


@pytest.mark.parametrize(
    ("answer", "members"),
    [
        (FakeAnswer(b"not json"), {}),
        (FakeAnswer(b'{"error":{"message":"inside a 200"}}'), {}),
        (FakeAnswer(ANSWER[:9], BackendBroken("cut")), {}),
        (FakeAnswer(ANSWER, headers={"content-encoding": "gzip"}), {}),
        (FakeAnswer(event(error={"message": "x"}), headers=STREAM), {"stream": True}),
        (FakeAnswer(b"data: {oops\n\n", headers=STREAM), {"stream": True}),
        (FakeAnswer(headers=STREAM), {"stream": True}),
        (FakeAnswer(BackendTimeout("idle"), headers=STREAM), {"stream": True}),
        (FakeAnswer(b"x" * ((1 << 20) + 1), headers=STREAM), {"stream": True}),
    ],
    ids=["no json", "error", "cut", "gzip", "error event", "no event", "empty", "idle", "endless"],
)
async def test_a_failure_before_the_first_byte_is_an_error_and_free(answer, members):
    dialogue = Dialogue(answer)
    with pytest.raises((BackendBroken, BackendTimeout)):
        await dialogue.run(**members)
    assert answer.is_closed
    assert dialogue.outcome.status is UsageStatus.BACKEND_ERROR
    assert (dialogue.sent, dialogue.spent) == ([], 0)


@pytest.mark.parametrize(
    "rest",
    [
        [],
        [BackendBroken("cut")],
        [BackendTimeout("idle")],
        [event(error="x")],
        [b"data: {oops\n\n"],
    ],
    ids=["no end", "cut", "idle", "error event", "no chunk"],
)
async def test_a_failure_after_the_first_byte_ends_in_an_error_event_and_is_paid_as_delivered(rest):
    dialogue = Dialogue(FakeAnswer(CONTENT, CONTENT, *rest, headers=STREAM))
    await dialogue.run(stream=True)
    head, _, tail = dialogue.body.partition(CONTENT + CONTENT)
    assert head == b""
    assert tail.startswith(b'data: {"error":{"message":')
    assert b"[DONE]" not in dialogue.body
    assert dialogue.sent[-1]["more_body"] is False
    outcome = dialogue.outcome
    assert (outcome.status, outcome.delivered_chunks) == (UsageStatus.BACKEND_ERROR, 2)
    assert outcome.usage.output_tokens == 2
    assert dialogue.meter.said[-2:] == ["durable", "body"]


@pytest.mark.parametrize("delivered", [0, 3])
async def test_a_client_that_leaves_pays_what_it_got_and_the_call_is_ended(delivered):
    answer = FakeAnswer(*[CONTENT] * delivered, never, headers=STREAM)
    dialogue = Dialogue(answer)
    running = asyncio.create_task(dialogue.run(stream=True))
    async with asyncio.timeout(5):
        while not dialogue.backend.calls or len(dialogue.sent) < min(delivered, 1) + delivered:
            await asyncio.sleep(0)
    dialogue.client_leaves.set()
    await running
    assert answer.is_closed
    outcome = dialogue.outcome
    assert (outcome.status, outcome.delivered_chunks) == (UsageStatus.CLIENT_CANCELLED, delivered)
    assert outcome.usage.output_tokens == delivered
    assert (dialogue.spent > 0) is (delivered > 0)


async def test_a_worker_that_is_stopped_still_concludes():
    dialogue = Dialogue(FakeAnswer(CONTENT, never, headers=STREAM))
    running = asyncio.create_task(dialogue.run(stream=True))
    async with asyncio.timeout(5):
        while len(dialogue.sent) < 2:
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert dialogue.outcome.status is UsageStatus.ABORTED
    assert dialogue.outcome.delivered_chunks == 1


async def test_a_backend_that_streams_to_nobody_s_wish_is_answered_whole():
    dialogue = Dialogue(FakeAnswer(ANSWER))
    await dialogue.run(stream=True)
    assert dialogue.body == ANSWER
    assert dialogue.headers[b"content-type"] == b"application/json"
