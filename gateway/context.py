"""What is known about one request on its way through the middleware; lives in ``scope["expertgate"]``.

Each middleware creates the context when it is the first of ours, so each works alone in any Starlette
application. The body is read and parsed at most once and replayed to whatever stands behind us.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field, replace

from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope

from gateway import headers
from gateway.anchors import AnchorReading
from gateway.chat import ChatRequest, Message, lift_text, parse_chat
from gateway.errors import BadRequest, BodyTooLarge, UnsupportedMedia
from gateway.json_document import JsonDocument
from gateway.types import Principal
from term_db.types import TermMatch

SCOPE_KEY = "expertgate"

# Request ids are names, not secrets; the system source keeps them distinct across forked workers.
_RANDOM = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bounds on reading a request body."""

    size_bytes_max: int = 8 << 20
    deadline_s: float = 30.0


@dataclass(slots=True)
class RequestContext:
    """State of one request; `receive` is the server's own, which alone reports the client's leaving."""

    receive: Receive
    request_id: str
    started_ns: int
    principal: Principal | None = None
    document: JsonDocument | None = None
    chat: ChatRequest | None = None
    is_rewritten: bool = False
    matches: tuple[TermMatch, ...] = ()
    dictionary_version: int = 0
    anchor: AnchorReading = AnchorReading(None)
    response_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    backend_wait_ns: int = 0
    body_wait_ns: int = 0

    async def read_chat(self, scope: Scope, limits: BodyLimits) -> ChatRequest:
        """Return the validated chat request, reading the body the first time.

        Raises:
            BadRequest: the body is too large, of another media type, not strict JSON, or not a chat request.
        """
        if self.chat is None:
            body = await self._read_body(scope, limits)
            self.document = JsonDocument.parse(body)
            lift_text(self.document)
            self.chat = parse_chat(self.document)
        return self.chat

    def rewrite_messages(self, messages: tuple[Message, ...]) -> None:
        """Replace the messages; encoded only when the body is next needed."""
        assert self.chat is not None, "read_chat comes first"
        self.chat = replace(self.chat, messages=messages)
        self.is_rewritten = True

    def current_body(self) -> bytes:
        """Return the body as it stands after every rewrite so far."""
        assert self.document is not None, "read_chat comes first"
        assert self.chat is not None, "read_chat comes first"
        if self.is_rewritten:
            self.document.set("messages", self.chat.messages)
            self.is_rewritten = False
        return self.document.encode()

    def scope_behind(self, scope: Scope) -> Scope:
        """Return the scope for whatever stands behind us: with the length of the body it will read."""
        assert self.document is not None, "read_chat comes first"
        if not (self.is_rewritten or self.document.is_changed):
            return scope
        length = str(len(self.current_body())).encode()
        framing = (headers.CONTENT_LENGTH, b"transfer-encoding")
        kept = [pair for pair in scope["headers"] if pair[0] not in framing]
        return {**scope, "headers": [*kept, (headers.CONTENT_LENGTH, length)]}

    def replay(self) -> Receive:
        """Return a `receive` that yields the current body once, then whatever the server says."""
        is_sent = False

        async def receive() -> AsgiMessage:
            nonlocal is_sent
            if not is_sent and self.document is not None:
                is_sent = True
                return {"type": "http.request", "body": self.current_body(), "more_body": False}
            return await self.receive()

        return receive

    async def _read_body(self, scope: Scope, limits: BodyLimits) -> bytes:
        began_ns = time.perf_counter_ns()
        _refuse_unreadable(scope["headers"], limits)
        pieces: list[bytes] = []
        size_bytes = 0
        try:
            async with asyncio.timeout(limits.deadline_s):
                while True:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    piece = message.get("body", b"")
                    size_bytes += len(piece)
                    if size_bytes > limits.size_bytes_max:
                        raise BodyTooLarge(limits.size_bytes_max)
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        break
        except TimeoutError as exc:
            raise BadRequest(
                f"the request body did not arrive within {limits.deadline_s:g} seconds"
            ) from exc
        self.body_wait_ns += time.perf_counter_ns() - began_ns
        return b"".join(pieces)


class ClientGone(Exception):
    """The client left before its request was complete: nothing to answer, nothing to bill."""


def context_of(scope: Scope, receive: Receive) -> RequestContext:
    """Return the context of a request, creating it for the first of our middlewares."""
    context = scope.get(SCOPE_KEY)
    if context is None:
        context = RequestContext(
            receive=receive, request_id=_new_request_id(), started_ns=time.perf_counter_ns()
        )
        scope[SCOPE_KEY] = context
    assert isinstance(context, RequestContext)
    return context


def _new_request_id() -> str:
    # Server-made and never the client's: two clients may send the same id (docs/adr/0004).
    return f"req_{time.time_ns():x}{_random_suffix()}"


def _random_suffix() -> str:
    return _RANDOM.getrandbits(48).to_bytes(6, "big").hex()


def _refuse_unreadable(request_headers: list[tuple[bytes, bytes]], limits: BodyLimits) -> None:
    encoding = headers.find_header(request_headers, headers.CONTENT_ENCODING)
    if encoding is not None and encoding.lower() != b"identity":
        raise UnsupportedMedia(
            "send the body without a content-encoding; compressed bodies aren't read"
        )
    media = headers.find_header(request_headers, headers.CONTENT_TYPE)
    if media is not None and b"json" not in media.lower():
        raise UnsupportedMedia("send the body as application/json")
    length = headers.find_header(request_headers, headers.CONTENT_LENGTH)
    if length is not None and length.isdigit() and int(length) > limits.size_bytes_max:
        raise BodyTooLarge(limits.size_bytes_max)
