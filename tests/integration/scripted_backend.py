"""An HTTP server on loopback whose every byte a test writes, and which remembers what it was sent.

A script is a coroutine that gets an `Exchange`: the request as it arrived, and the pen for the answer. It may send
bytes in pieces, wait for events between them, reset the connection, or keep writing after the answer's end. What
goes wrong inside a script is raised when the backend closes, so that a broken script can't pass for a backend.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_TAIL = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


class Exchange:
    """One request that reached the backend, and the pen with which its answer is written.

    `closed` is set when the other side has closed the connection, or we have.
    """

    def __init__(self, connection: "_Connection", path: str, headers: dict[str, str], body: bytes):
        self._connection = connection
        self.path = path
        self.headers = headers
        self.body = body
        self.closed = connection.closed
        self.connection_number = connection.number

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The text of the last message."""
        return self.json["messages"][-1]["content"]

    def send(self, *pieces: bytes) -> None:
        self._connection.transport.write(b"".join(pieces))

    @property
    def unsent_bytes(self) -> int:
        """What was sent and is still in this process, because the other side doesn't read on."""
        return self._connection.transport.get_write_buffer_size()

    def close(self) -> None:
        self._connection.transport.close()

    def reset(self) -> None:
        """End the connection with RST instead of FIN."""
        raw = self._connection.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.transport.abort()


Script = Callable[[Exchange], Awaitable[None]]


class ScriptedBackend:
    """Runs `script` for every request; `exchanges` are all it has got, in order."""

    def __init__(self) -> None:
        self.script: Script = answer_plainly
        self.exchanges: list[Exchange] = []
        self.connection_count = 0
        self.port = 0
        self.arrivals: asyncio.Queue[Exchange] = asyncio.Queue()
        self.tasks: set[asyncio.Task[None]] = set()
        self.connections: set[_Connection] = set()
        self.failures: list[BaseException] = []

    async def next_exchange(self) -> Exchange:
        """The next request that hasn't been returned yet, when it has arrived."""
        return await asyncio.wait_for(self.arrivals.get(), 10)

    def serve(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.arrivals.put_nowait(exchange)
        task = asyncio.get_running_loop().create_task(self.script(exchange))
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.failures.append(failure)


class _Connection(asyncio.Protocol):
    """One connection: cuts requests out of what arrives."""

    def __init__(self, backend: ScriptedBackend) -> None:
        self.backend = backend
        self.closed = asyncio.Event()
        self.number = backend.connection_count
        self._buffer = b""
        backend.connection_count += 1

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.backend.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.backend.connections.discard(self)
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
            pairs = (line.split(":", 1) for line in lines)
            headers = {name.lower(): value.strip() for name, value in pairs}
            start = end + 4
            size = int(headers.get("content-length", 0))
            if len(self._buffer) < start + size:
                return
            body, self._buffer = self._buffer[start : start + size], self._buffer[start + size :]
            self.backend.serve(Exchange(self, first.split()[1], headers, body))


@asynccontextmanager
async def scripted_backend() -> AsyncIterator[ScriptedBackend]:
    """A backend that listens; on leaving, every script that still runs is cancelled."""
    backend = ScriptedBackend()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(backend), "127.0.0.1", 0)
    backend.port = server.sockets[0].getsockname()[1]
    try:
        yield backend
    finally:
        server.close()
        running = list(backend.tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for connection in list(backend.connections):
            connection.transport.abort()
        await server.wait_closed()
    if backend.failures:
        raise ExceptionGroup("scripts failed", backend.failures)


# What scripts are written with.


def completion(content="Hello.", usage=USAGE, **members) -> bytes:
    """The JSON of a complete answer; without usage when it is None."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{**choice, "finish_reason": "stop"}],
        **members,
    }
    return json.dumps(body if usage is None else {**body, "usage": usage}).encode()


def response(body: bytes, *, status="200 OK", headers="", content_type="application/json") -> bytes:
    """A whole HTTP response; `headers` are further lines, each ending in CRLF."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\n{headers}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def framed(*events: bytes) -> bytes:
    """Each of `events` as a chunk of the chunked transfer coding."""
    return b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)


def event(**members) -> bytes:
    """One streamed chunk with the usual members around `members`."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **members}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def piece(text: str) -> bytes:
    """A streamed chunk with content."""
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])


FINISH = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])


def usage_event(usage=USAGE) -> bytes:
    """The streamed chunk that holds only usage."""
    return event(choices=[], usage=usage)


def stream_of(*events: bytes) -> bytes:
    """A whole streamed response."""
    return STREAM_HEAD + framed(*events) + STREAM_TAIL


async def answer_plainly(exchange: Exchange) -> None:
    """Answer as an OpenAI-compatible server does: whole or streamed, with usage when it was asked for."""
    body = exchange.json
    if not body.get("stream"):
        exchange.send(response(completion()))
        return
    options = body.get("stream_options") or {}
    usage = [usage_event()] if options.get("include_usage") else []
    exchange.send(stream_of(piece("one "), piece("two "), piece("three"), FINISH, *usage, DONE))


def always(*answer: bytes) -> Script:
    """A script that sends these bytes whatever it is asked."""

    async def script(exchange: Exchange) -> None:
        exchange.send(*answer)

    return script
