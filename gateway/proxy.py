"""Carries an admitted request to its expert and the answer back, and settles what it cost.

Order: intent durable → backend → per chunk: slot, send, slot → outcome durable → last byte. Every admitted request
ends in exactly one outcome, whatever is raised or cancelled on the way; the outcome is enqueued synchronously so
that it also works in a cancelled task's ``finally``.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from starlette.types import Send

from billing.holds import HoldBook
from billing.ports import MeterPort, ProgressSlot
from billing.rating import rate
from billing.types import TOKENS_MAX, MicroPoints, UsageOutcome, UsageStatus
from billing.usage_truth import (
    FLAG_NOT_MONOTONE,
    Evidence,
    ReportedUsage,
    decide,
    latest_report,
)
from gateway import headers
from gateway.admission import Admission, with_replica
from gateway.completion import ChunkReading, read_answer, read_chunk
from gateway.context import RequestContext
from gateway.disconnect import ClientWatch
from gateway.errors import (
    BackendBroken,
    BackendError,
    BackendRefused,
    BackendUnreachable,
)
from gateway.forwarding import forwarded_body
from gateway.load import LoadWindow
from gateway.ports import Backend, BackendAnswer
from gateway.problems import error_event
from gateway.sse import EventParser, EventTooLong
from gateway.telemetry import Telemetry
from gateway.types import AnchorOrigin

log = logging.getLogger("expertgate.gateway")

ERROR_BODY_MAX = 64 << 10
"""Bytes of a backend's error body that are read; the rest is dropped with the connection."""

DRAIN_S = 0.05
"""How long the end of a stream is waited for after its last event, to reuse the connection."""

OUTCOME_TIMEOUT_S = 5.0
"""How long an answer's last byte waits for a disk that doesn't take its outcome."""

CHAT_PATH = "/chat/completions"


@dataclass(slots=True)
class Call:
    """What has happened to one admitted request so far."""

    admission: Admission
    context: RequestContext
    began_ns: int
    status: UsageStatus = UsageStatus.ABORTED
    reported: ReportedUsage = ReportedUsage()
    is_finished: bool = False
    delivered_chunks: int = 0
    delivered_bytes: int = 0
    backend_status: int = 0
    first_byte_ns: int = 0
    outcome: UsageOutcome | None = None
    micropoints: MicroPoints = MicroPoints(0)
    flags: list[str] = field(default_factory=list)

    def note_usage(self, usage: ReportedUsage) -> None:
        """Keep the backend's newest figures; they are never summed."""
        self.reported, agrees = latest_report(self.reported, usage)
        if not agrees and FLAG_NOT_MONOTONE not in self.flags:
            self.flags.append(FLAG_NOT_MONOTONE)


class ChatProxy:
    """Runs admitted chat requests; one per worker, shared by all requests."""

    def __init__(
        self,
        *,
        backend: Backend,
        meter: MeterPort,
        holds: HoldBook,
        load: LoadWindow,
        telemetry: Telemetry,
        clock: Callable[[], datetime],
        answer_bytes_max: int,
    ) -> None:
        self._backend = backend
        self._meter = meter
        self._holds = holds
        self._load = load
        self._telemetry = telemetry
        self._clock = clock
        self._answer_bytes_max = answer_bytes_max

    async def run(self, context: RequestContext, admission: Admission, send: Send) -> None:
        """Serve the request; returns when the client has its answer or has left.

        Raises:
            BackendError: the backend failed before the first byte went to the client.
            MeteringUnavailable: the intent can't be made durable; nothing was sent to the backend.
        """
        call = Call(admission, context, time.perf_counter_ns())
        try:
            slot = await self._meter.begin(admission.intent)
        except BaseException:
            # No intent, no usage: the hold goes back whole.
            self._holds.release(admission.event_id)
            self._load.ended(admission.expert.expert_id, time.perf_counter_ns())
            raise
        self._telemetry.request_started(admission.decision)
        try:
            async with ClientWatch(context.receive) as watch:
                await self._exchange(call, slot, send)
            if watch.has_left and call.outcome is None:
                call.status = UsageStatus.CLIENT_CANCELLED
        except BackendError as exc:
            call.status = UsageStatus.BACKEND_ERROR
            log.warning(
                "backend_failed",
                extra={
                    "request_id": context.request_id,
                    "expert_id": admission.expert.expert_id,
                    "replica_id": call.admission.replica.replica_id,
                    "base_url": call.admission.replica.base_url,
                    "backend_status": call.backend_status,
                    "error": f"{type(exc).__name__}: {exc}",
                },
            )
            raise
        finally:
            self._conclude(call)
            self._report(call)

    async def _exchange(self, call: Call, slot: ProgressSlot, send: Send) -> None:
        answer = await self._open(call)
        try:
            call.backend_status = answer.status
            if answer.status >= 300:
                body = await self._read_error(answer)
                raise BackendRefused(answer.status, body, answer.headers)
            media = answer.headers.get("content-type", "")
            if (
                "content-encoding" in answer.headers
                and answer.headers["content-encoding"] != "identity"
            ):
                raise BackendBroken("the backend encoded its answer although it was asked not to")
            chat = call.context.chat
            assert chat is not None, "admitted requests have been read"
            if chat.is_stream and "text/event-stream" in media:
                await self._relay_stream(call, slot, answer, send, not chat.wants_usage_chunk)
            else:
                await self._relay_answer(call, slot, answer, send)
        finally:
            answer.close()

    async def _open(self, call: Call) -> BackendAnswer:
        """Return the answer of the first replica that takes the connection.

        Only a refused or timed-out *connection* moves on to the next mirror: nothing was sent, so nothing can
        be done twice.
        """
        context, admission = call.context, call.admission
        assert context.document is not None, "admitted requests have been read"
        assert context.chat is not None, "admitted requests have been read"
        context.current_body()
        anchor = context.anchor.anchor
        origin: AnchorOrigin | None = None if anchor is None else anchor.origin
        failure: BackendUnreachable | None = None
        for replica in admission.expert.replicas:
            if replica is not admission.replica:
                call.admission = with_replica(admission, replica)
                call.flags.append(f"failover:{replica.replica_id}")
            body = forwarded_body(context.document, context.chat, admission.expert, replica, origin)
            began_ns = time.perf_counter_ns()
            try:
                return await self._backend.post(
                    replica,
                    CHAT_PATH,
                    body,
                    request_id=context.request_id,
                    event_id=admission.event_id,
                )
            except BackendUnreachable as exc:
                failure = exc
            finally:
                context.backend_wait_ns += time.perf_counter_ns() - began_ns
        assert failure is not None, "an expert has at least one replica"
        raise failure

    async def _read_error(self, answer: BackendAnswer) -> bytes:
        pieces: list[bytes] = []
        size_bytes = 0
        async for chunk in answer.chunks():
            pieces.append(chunk)
            size_bytes += len(chunk)
            if size_bytes >= ERROR_BODY_MAX:
                break
        return b"".join(pieces)[:ERROR_BODY_MAX]

    async def _relay_answer(
        self, call: Call, slot: ProgressSlot, answer: BackendAnswer, send: Send
    ) -> None:
        """Read the whole answer, make its outcome durable, then send it."""
        began_ns = time.perf_counter_ns()
        body = await answer.read(self._answer_bytes_max)
        call.context.backend_wait_ns += time.perf_counter_ns() - began_ns
        call.reported = read_answer(body)
        _note_usage(slot, call.reported)
        call.first_byte_ns = time.perf_counter_ns()
        call.delivered_chunks = 1
        call.delivered_bytes = len(body)
        call.status = UsageStatus.COMPLETED
        self._conclude(call)
        await self._durable(call)
        slot.begin_chunk()
        await send(self._start(call, answer, len(body)))
        await send({"type": "http.response.body", "body": body})
        slot.chunk_done(len(body), is_content=True)

    async def _relay_stream(
        self, call: Call, slot: ProgressSlot, answer: BackendAnswer, send: Send, hides_usage: bool
    ) -> None:
        """Forward whole events as they arrive; hold the end back until the outcome is durable."""
        parser = EventParser()
        is_started = False
        held_back = b""
        is_done = False
        try:
            wait_ns = time.perf_counter_ns()
            async for chunk in answer.chunks():
                if not is_started:
                    call.first_byte_ns = time.perf_counter_ns()
                    call.context.backend_wait_ns += call.first_byte_ns - wait_ns
                for event in parser.feed(chunk):
                    reading = read_chunk(event.data)
                    if not is_started:
                        _refuse_error_first(reading)
                    _note(call, slot, reading)
                    if reading.is_done:
                        held_back, is_done = event.raw, True
                        break
                    if reading.is_usage_only and hides_usage:
                        continue
                    if not is_started:
                        await send(self._start(call, answer, None))
                        is_started = True
                    await self._deliver(call, slot, event.raw, reading.content_count, send)
                if is_done:
                    break
            if not is_done and not call.is_finished:
                raise BackendBroken("the backend's stream ended before it was complete")
        except (BackendError, EventTooLong) as exc:
            error = exc if isinstance(exc, BackendError) else BackendBroken("an event has no end")
            if not is_started:
                raise error from exc
            await self._break_off(call, error, send)
            return
        call.status = UsageStatus.COMPLETED
        self._conclude(call)
        await self._durable(call)
        if not is_started:
            await send(self._start(call, answer, None))
        await send({"type": "http.response.body", "body": held_back, "more_body": False})
        await answer.drain(DRAIN_S)

    async def _deliver(
        self, call: Call, slot: ProgressSlot, raw: bytes, content_count: int, send: Send
    ) -> None:
        """Send one event; its chunks are counted around it, so that a kill is off by one event at most."""
        if content_count:
            slot.begin_chunk()
        await send({"type": "http.response.body", "body": raw, "more_body": True})
        # The bytes belong to the first choice of an event with several. A slot with more than one chunk begun and
        # not done would count as damaged.
        for index in range(content_count):
            if index:
                slot.begin_chunk()
            slot.chunk_done(len(raw) if index == 0 else 0, is_content=True)
        call.delivered_chunks += content_count
        call.delivered_bytes += len(raw)

    async def _break_off(self, call: Call, error: BackendError, send: Send) -> None:
        """End a stream that failed after its first byte: outcome, error event, end; no `[DONE]`."""
        call.status = UsageStatus.BACKEND_ERROR
        call.flags.append(type(error).__name__)
        self._conclude(call)
        await self._durable(call)
        log.warning(
            "stream_broken",
            extra={"request_id": call.context.request_id, "error": type(error).__name__},
        )
        await send({"type": "http.response.body", "body": error_event(error), "more_body": False})

    async def _durable(self, call: Call) -> None:
        """Return when the outcome is durable, or after `OUTCOME_TIMEOUT_S`.

        Past the deadline the answer goes out all the same: the intent is durable and the progress slot holds the
        usage, so that the event is billed right even if this process dies before the disk takes the outcome.
        """
        try:
            async with asyncio.timeout(OUTCOME_TIMEOUT_S):
                await self._meter.finished(call.admission.event_id)
        except TimeoutError:
            log.error("outcome_late", extra={"event_id": call.admission.event_id})

    def _start(self, call: Call, answer: BackendAnswer, size_bytes: int | None) -> dict[str, Any]:
        response_headers = [
            (
                headers.CONTENT_TYPE,
                headers.JSON if size_bytes is not None else headers.EVENT_STREAM,
            ),
            *decision_headers(call.context, call.admission),
            (headers.EVENT_ID, call.admission.event_id.encode()),
            (headers.OVERHEAD_MS, _overhead_ms(call).encode()),
        ]
        if size_bytes is None:
            response_headers.append((b"cache-control", b"no-cache"))
        else:
            response_headers.append((headers.CONTENT_LENGTH, str(size_bytes).encode()))
            response_headers.append((headers.BASE_POINTS, str(call.micropoints).encode()))
        return {
            "type": "http.response.start",
            "status": answer.status,
            "headers": response_headers,
        }

    def _conclude(self, call: Call) -> None:
        """Enqueue the outcome and settle the hold, once."""
        if call.outcome is not None:
            return
        admission = call.admission
        billed = decide(
            admission.intent,
            Evidence(
                status=call.status, delivered_chunks=call.delivered_chunks, reported=call.reported
            ),
        )
        now_ns = time.perf_counter_ns()
        call.micropoints = rate(billed.usage, admission.rate_card.rates, billed.billed_calls)
        call.outcome = UsageOutcome(
            event_id=admission.event_id,
            status=call.status,
            usage=billed.usage,
            usage_source=billed.source,
            ended_at=self._clock(),
            delivered_chunks=call.delivered_chunks,
            delivered_bytes=call.delivered_bytes,
            reported_input_tokens=billed.reported_input_tokens,
            reported_output_tokens=billed.reported_output_tokens,
            backend_status=call.backend_status,
            time_to_first_byte_us=_us(call.first_byte_ns - call.began_ns),
            duration_us=_us(now_ns - call.began_ns),
            flags=(*call.flags, *billed.flags),
            billed_calls=billed.billed_calls,
        )
        self._meter.finish(call.outcome)
        self._holds.settle(admission.event_id, call.micropoints)
        self._load.ended(admission.expert.expert_id, now_ns)

    def _report(self, call: Call) -> None:
        outcome = call.outcome
        assert outcome is not None, "concluded"
        decision = call.admission.decision
        self._telemetry.request_ended(
            decision,
            status=outcome.status.value,
            usage=outcome.usage,
            micropoints=call.micropoints,
            duration_s=outcome.duration_us / 1e6,
            overhead_s=_overhead_ns(call) / 1e9,
            first_byte_s=outcome.time_to_first_byte_us / 1e6 if call.first_byte_ns else None,
        )
        log.info(
            "request_completed",
            extra={
                "request_id": call.context.request_id,
                "event_id": outcome.event_id,
                "customer_id": call.admission.intent.customer_id,
                "expert_id": decision.expert_id,
                "route_source": decision.source.value,
                "status": outcome.status.value,
                "input_tokens": outcome.usage.input_tokens,
                "output_tokens": outcome.usage.output_tokens,
                "micropoints": call.micropoints,
                "duration_us": outcome.duration_us,
            },
        )


def decision_headers(context: RequestContext, admission: Admission) -> list[tuple[bytes, bytes]]:
    """Return the headers that say how a request was routed."""
    decision = admission.decision
    return [
        (headers.EXPERT_ID, decision.expert_id.encode("ascii", "replace")),
        (headers.ROUTE_SOURCE, decision.source.value.encode()),
        (headers.ROUTE_SCORE, f"{decision.score:.4f}".encode()),
        (headers.ROUTE_REASON, decision.reason.encode("ascii", "replace")),
        (headers.TERMS_MATCHED, str(len(context.matches)).encode()),
        *context.response_headers,
    ]


def _note(call: Call, slot: ProgressSlot, reading: ChunkReading) -> None:
    """Keep what a chunk says of usage and ending.

    Raises:
        BackendBroken: it is an error.
    """
    if reading.usage is not None:
        call.note_usage(reading.usage)
        _note_usage(slot, reading.usage)
    call.is_finished = call.is_finished or reading.is_finish
    if reading.error is not None:
        raise BackendBroken("the backend reported an error in its stream")


def _refuse_error_first(reading: ChunkReading) -> None:
    """A stream whose first event is an error is a failed request, not a stream."""
    if reading.error is not None:
        raise BackendBroken("the backend answered with an error inside a success")


def _note_usage(slot: ProgressSlot, usage: ReportedUsage) -> None:
    tokens_in, tokens_out = usage.input_tokens, usage.output_tokens
    if type(tokens_in) is not int or type(tokens_out) is not int:
        return
    if 0 <= tokens_in <= TOKENS_MAX and 0 <= tokens_out <= TOKENS_MAX:
        slot.usage_seen(tokens_in, tokens_out)


def _overhead_ns(call: Call) -> int:
    """Return the time spent in the gateway until the first byte, without waiting for client or backend."""
    until_ns = call.first_byte_ns or time.perf_counter_ns()
    context = call.context
    return max(0, until_ns - context.started_ns - context.backend_wait_ns - context.body_wait_ns)


def _overhead_ms(call: Call) -> str:
    return f"{_overhead_ns(call) / 1e6:.3f}"


def _us(duration_ns: int) -> int:
    return max(0, duration_ns) // 1000
