"""The engine's HTTP side: a Starlette app over an `EngineRuntime`.

Owns the endpoints and what a disconnect means. A stream is written as it is made; when its client
leaves, its sequence is cancelled before the next step.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from routing_engine.engine.chat import ChatAnswer, plan_chat
from routing_engine.engine.errors import BadEngineRequest, EngineBusy, GenerationFailed
from routing_engine.engine.generation import Event, Failed, GenerationRequest, Preheated
from routing_engine.engine.metrics import METRICS_CONTENT_TYPE
from routing_engine.engine.requests import (
    BODY_BYTES_MAX,
    ChatBody,
    PreheatBody,
    RouteBody,
    read_body,
)
from routing_engine.engine.responses import error_body, error_of
from routing_engine.engine.runtime import EngineRuntime, LoadingStage
from routing_engine.errors import RoutingError

logger = logging.getLogger(__name__)

ROUTES_WAITING_MAX = 64
"""Routing questions at a time; at 50 ms each more would outlive every deadline."""

ROUTE_RETRY_AFTER_S = 1
BODY_TIMEOUT_S = 30.0

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(runtime: EngineRuntime) -> Starlette:
    """Return the app. Its lifespan starts loading the model and ends generation."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        runtime.load_in_background()
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(runtime.close)

    endpoints = _Endpoints(runtime)
    table: list[tuple[str, str, Endpoint]] = [
        ("POST", "/v1/chat/completions", endpoints.chat),
        ("POST", "/v1/route", endpoints.route),
        ("POST", "/v1/preheat", endpoints.preheat),
        ("GET", "/v1/experts", endpoints.experts),
        ("GET", "/v1/models", endpoints.models),
        ("GET", "/healthz", endpoints.healthz),
        ("GET", "/readyz", endpoints.readyz),
        ("GET", "/metrics", endpoints.metrics),
    ]
    return Starlette(
        routes=[
            Route(path, _counted(runtime, path, endpoint), methods=[method])
            for method, path, endpoint in table
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error},
    )


class _Endpoints:
    """One method for each endpoint."""

    def __init__(self, runtime: EngineRuntime) -> None:
        self._runtime = runtime
        self._routes_waiting = 0
        # The encoder takes one text at a time, so more threads would only wait.
        self._route_limiter = anyio.CapacityLimiter(1)

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        body = read_body(await _read(request), ChatBody)
        loaded = self._runtime.loaded()
        # Tokenising a long prompt takes a while; the event loop serves others meanwhile.
        chat = await anyio.to_thread.run_sync(plan_chat, self._runtime, loaded.model, body)
        answer = ChatAnswer(
            chat, completion_id=f"chatcmpl-{secrets.token_hex(12)}", created=int(time.time())
        )
        events = _Events()
        sequence = loaded.scheduler.submit(chat.generation, events.put)
        return _AnswerResponse(answer, events, lambda: loaded.scheduler.cancel(sequence))

    async def route(self, request: Request) -> Response:
        """Say which expert should answer a text."""
        body = read_body(await _read(request), RouteBody)
        if self._routes_waiting >= ROUTES_WAITING_MAX:
            raise EngineBusy("routing questions", ROUTES_WAITING_MAX, ROUTE_RETRY_AFTER_S)
        self._routes_waiting += 1
        started_s = time.monotonic()
        try:
            decision = await anyio.to_thread.run_sync(
                self._runtime.second_stage.decide,
                body.request,
                self._runtime.loads(),
                limiter=self._route_limiter,
            )
        finally:
            self._routes_waiting -= 1
        self._runtime.metrics.route_seconds.observe(time.monotonic() - started_s)
        return _json(
            {
                "expert_id": decision.expert_id,
                "score": decision.score,
                "candidates": [
                    {"expert_id": candidate.expert_id, "score": candidate.score}
                    for candidate in decision.candidates
                ],
                "artefact_version": decision.artefact_version,
            }
        )

    async def preheat(self, request: Request) -> Response:
        """Read experts' directives now, so that their next answer begins sooner."""
        body = read_body(await _read(request), PreheatBody)
        loaded = self._runtime.loaded()
        experts = [self._runtime.registry.get(expert_id) for expert_id in body.expert_ids]
        done = []
        for expert in experts:
            prefix_ids = self._runtime.prefix_of(expert)
            events = _Events()
            sequence = loaded.scheduler.submit(
                GenerationRequest(expert.expert_id, prefix_ids, 0, prefix_ids=prefix_ids),
                events.put,
            )
            try:
                event = await events.get()
            finally:
                loaded.scheduler.cancel(sequence)
            if not isinstance(event, Preheated):
                raise GenerationFailed(event.message if isinstance(event, Failed) else "")
            done.append(
                {
                    "expert_id": expert.expert_id,
                    "tokens": event.token_count,
                    "was_warm": event.was_warm,
                }
            )
        return _json({"preheated": done})

    async def experts(self, _: Request) -> Response:
        """List the experts."""
        loads = self._runtime.loads()
        experts = [
            {
                "expert_id": expert.expert_id,
                "number": expert.number,
                "domain": expert.domain,
                "temperature": expert.temperature,
                "max_tokens": expert.max_tokens,
                "load": round(loads.get(expert.expert_id, 0.0), 4),
            }
            for expert in self._runtime.registry.experts
        ]
        return _json({"experts": experts})

    async def models(self, _: Request) -> Response:
        """List the model names that a request may use."""
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "expertgate"}
            for name in self._runtime.registry.model_names
        ]
        return _json({"object": "list", "data": data})

    async def healthz(self, _: Request) -> Response:
        """Say that the process is up."""
        return _json({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        """Say whether the model is loaded, or how far loading has come."""
        runtime = self._runtime
        is_ready = runtime.stage is LoadingStage.READY
        body = {
            "ready": is_ready,
            "stage": runtime.stage,
            "detail": runtime.detail,
            "second_stage": runtime.second_stage.is_there,
        }
        return _json(body, 200 if is_ready else 503)

    async def metrics(self, _: Request) -> Response:
        """Return the measurements in Prometheus' text format."""
        return Response(self._runtime.metrics.render(), media_type=METRICS_CONTENT_TYPE)


class _Events:
    """Carries events from the worker thread into the event loop it was made in.

    At most one event for each token of an answer waits here, so the context of the model bounds it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def put(self, event: Event) -> None:
        """Add an event; called in the worker thread. After the loop has ended nobody listens."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def get(self) -> Event:
        """Return the next event."""
        return await self._queue.get()


class _AnswerResponse(Response):
    """Writes one answer, streamed or whole, and cancels it when the client leaves."""

    def __init__(self, answer: ChatAnswer, events: _Events, cancel: Callable[[], None]) -> None:
        super().__init__()
        self._answer, self._events, self._cancel = answer, events, cancel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write, send, tasks.cancel_scope)
                await self._wait_for_disconnect(receive)
                tasks.cancel_scope.cancel()
        finally:
            # Cancelling what has ended changes nothing; what hasn't is dropped by its next step.
            self._cancel()

    async def _wait_for_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _write(self, send: Send, scope: anyio.CancelScope) -> None:
        if self._answer.is_stream:
            await self._write_stream(send)
        else:
            await self._write_whole(send)
        scope.cancel()

    async def _write_stream(self, send: Send) -> None:
        # The head is sent with the first event, so that a failure before it is a proper error.
        event = await self._events.get()
        if isinstance(event, Failed):
            await self._send_error(send, event.message)
            return
        self.status_code = 200
        await _send_head(send, 200, "text/event-stream; charset=utf-8")
        await _send_body(send, self._answer.opening())
        while True:
            data, is_last = self._answer.stream_event(event)
            if data:
                await _send_body(send, data)
            if is_last:
                break
            event = await self._events.get()
        await _send_body(send, b"", has_more=False)

    async def _write_whole(self, send: Send) -> None:
        while True:
            event = await self._events.get()
            if isinstance(event, Failed):
                await self._send_error(send, event.message)
                return
            body = self._answer.whole_event(event)
            if body is not None:
                await _send_head(send, 200, "application/json")
                await _send_body(send, body, has_more=False)
                return

    async def _send_error(self, send: Send, message: str) -> None:
        status, _, body = error_of(GenerationFailed(message))
        await _send_head(send, status, "application/json")
        await _send_body(send, body, has_more=False)


async def _send_head(send: Send, status: int, content_type: str) -> None:
    headers = [(b"content-type", content_type.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_body(send: Send, body: bytes, *, has_more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": has_more})


async def _read(request: Request) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size_bytes += len(part)
                if size_bytes > BODY_BYTES_MAX:
                    raise BadEngineRequest(
                        f"the body is over the limit of {BODY_BYTES_MAX} bytes",
                        code="body_too_large",
                    )
                parts.append(part)
    except TimeoutError as exc:
        raise BadEngineRequest("the body did not arrive in time", code="body_timeout") from exc
    return b"".join(parts)


def _json(value: Any, status: int = 200) -> Response:  # noqa: ANN401 -- whatever JSON can hold
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _counted(runtime: EngineRuntime, path: str, endpoint: Endpoint) -> Endpoint:
    """Return `endpoint` with errors of ours as answers, and every answer counted and logged."""

    async def handle(request: Request) -> Response:
        started_s = time.monotonic()
        try:
            response = await endpoint(request)
        except RoutingError as exc:
            status, headers, body = error_of(exc)
            response = Response(body, status, headers, "application/json")
        except ClientDisconnect:
            # Nobody reads this; 499 is what proxies write into their logs for it.
            response = Response(status_code=499)
        runtime.metrics.requests.labels(path, str(response.status_code)).inc()
        if request.method == "POST":
            logger.info(
                "request_accepted" if response.status_code == 200 else "request_refused",
                extra={
                    "endpoint": path,
                    "status": response.status_code,
                    "seconds": round(time.monotonic() - started_s, 4),
                },
            )
        return response

    return handle


def _http_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    body = error_body(exc.detail, "invalid_request_error", code="not_found")
    return Response(body, exc.status_code, exc.headers, "application/json")
