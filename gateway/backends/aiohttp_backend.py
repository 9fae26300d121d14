"""The `Backend` port on aiohttp: pooled connections per worker, raw bytes, explicit deadlines.

Source of the choice and of the reuse guard: docs/adr/0005. Rebuilds every request from parsed parts: no header of
the client reaches a backend.
"""

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.tracing import Trace

from gateway.errors import BackendBroken, BackendTimeout, BackendUnreachable
from gateway.ports import BackendAnswer
from routing_engine.types import Replica

CONNECTIONS_MAX = 1_024
"""Connections of one worker to all backends; more concurrent requests wait."""

KEEPALIVE_S = 4.0
"""Idle time after which a pooled connection is closed; shorter than common servers' own five seconds."""


@dataclass(frozen=True, slots=True)
class BackendTimeouts:
    """Deadlines of a backend call, in seconds."""

    connect_s: float = 5.0
    idle_s: float = 120.0
    total_s: float = 600.0


class FailingHandler(ResponseHandler):
    """A connection whose answer fails at once when its bytes stop being HTTP in the middle of the body.

    aiohttp's own closes the connection and its timers then, but whoever reads the body waits on, up to the total
    timeout.
    """

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """Fail the connection, and the body that is being read when `exc` says that it can't be parsed."""
        super().set_exception(exc, *cause)
        body = self._payload
        if isinstance(exc, HttpProcessingError) and body is not None and not body.is_eof():
            body.set_exception(aiohttp.ClientPayloadError("the body can't be parsed"))


class GuardedConnector(aiohttp.TCPConnector):
    """A pool that never hands out a connection on which bytes arrived while it was idle.

    Bytes after the end of an answer would otherwise become the next caller's answer.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        handler: type[ResponseHandler] = FailingHandler
        self._factory = functools.partial(handler, loop=self._loop)

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        pooled = self._conns.get(key)
        if pooled:
            clean = deque(entry for entry in pooled if not entry[0].should_close)
            if len(clean) != len(pooled):
                for protocol, _ in pooled:
                    if protocol.should_close:
                        protocol.close()
                self._conns[key] = clean
        return await super()._get(key, traces)


class AiohttpBackend:
    """Talks to replicas; replicas that aren't trusted get a connection of their own per request."""

    def __init__(self, timeouts: BackendTimeouts = BackendTimeouts()) -> None:
        self._timeouts = timeouts
        self._pooled = self._session(
            GuardedConnector(limit=CONNECTIONS_MAX, keepalive_timeout=KEEPALIVE_S)
        )
        self._unpooled = self._session(GuardedConnector(limit=CONNECTIONS_MAX, force_close=True))
        self._request_headers: dict[Replica, dict[str, str]] = {}

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            timeout=aiohttp.ClientTimeout(
                total=self._timeouts.total_s,
                connect=None,
                sock_connect=self._timeouts.connect_s,
                sock_read=self._timeouts.idle_s,
            ),
        )

    async def post(
        self, replica: Replica, path: str, body: bytes, *, request_id: str, event_id: str
    ) -> BackendAnswer:
        """Return the answer to `body`, posted to ``base_url + path``, once its headers are there."""
        session = self._pooled if replica.is_trusted else self._unpooled
        headers = {
            **self._headers(replica),
            "X-Request-Id": request_id,
            "Idempotency-Key": event_id,
        }
        with _translated_errors():
            response = await session.post(
                replica.base_url + path, data=body, headers=headers, allow_redirects=False
            )
        return AiohttpAnswer(response)

    def _headers(self, replica: Replica) -> dict[str, str]:
        known = self._request_headers.get(replica)
        if known is None:
            known = {
                "Content-Type": "application/json",
                "Accept": "application/json, text/event-stream",
                "Accept-Encoding": "identity",
                "User-Agent": "expertgate",
            }
            if replica.api_key:
                known["Authorization"] = f"Bearer {replica.api_key}"
            self._request_headers[replica] = known
        return known

    async def close(self) -> None:
        """Close both pools."""
        await self._pooled.close()
        await self._unpooled.close()


class AiohttpAnswer:
    """A `BackendAnswer` over one aiohttp response."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = {
            name.lower(): value for name, value in response.headers.items()
        }

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives from the socket."""
        with _translated_errors():
            async for chunk in self._response.content.iter_any():
                yield chunk

    async def read(self, size_bytes_max: int) -> bytes:
        """Return the whole body, at most `size_bytes_max` bytes of it."""
        pieces: list[bytes] = []
        size_bytes = 0
        async for chunk in self.chunks():
            size_bytes += len(chunk)
            if size_bytes > size_bytes_max:
                raise BackendBroken(f"the backend's answer is over {size_bytes_max} bytes")
            pieces.append(chunk)
        return b"".join(pieces)

    async def drain(self, timeout_s: float) -> None:
        """Read to the end when that is near, so that the connection goes back to the pool."""
        content = self._response.content
        if content.at_eof():
            return
        with suppress(BackendBroken, BackendTimeout), _translated_errors():
            async with asyncio.timeout(timeout_s):
                async for _ in content.iter_any():
                    continue

    def close(self) -> None:
        """Close the connection unless the body was read to its end, in which case it was pooled."""
        self._response.close()


@contextmanager
def _translated_errors() -> Iterator[Any]:
    """Turn aiohttp's exceptions into ours; none of them crosses the port."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as exc:
        raise BackendUnreachable("no connection to the backend") from exc
    except (TimeoutError, aiohttp.ServerTimeoutError) as exc:
        raise BackendTimeout("the backend did not answer in time") from exc
    except aiohttp.ClientError as exc:
        raise BackendBroken(f"the backend's answer broke off: {type(exc).__name__}") from exc
