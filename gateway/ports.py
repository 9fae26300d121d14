"""What the data plane needs from outside: the `Backend` port and its answer.

Adapters live in `gateway/backends/`; every one passes the same contract suite.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from routing_engine.types import Replica


class BackendAnswer(Protocol):
    """An answer whose status and headers have arrived; the body comes in pieces.

    `headers` has lower-case names. Whoever holds an answer closes it, on every path.
    """

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            BackendBroken: the connection ended before the body did.
            BackendTimeout: nothing arrived for the idle time.
        """

    async def read(self, size_bytes_max: int) -> bytes:
        """Return the whole body.

        Raises:
            BackendBroken: it is longer than `size_bytes_max` or truncated.
            BackendTimeout: nothing arrived for the idle time.
        """

    async def drain(self, timeout_s: float) -> None:
        """Read what is left to the end, so that the connection can be used again; give up after `timeout_s`."""

    def close(self) -> None:
        """Drop the answer at once, without awaiting; safe to call twice and from a ``finally``."""


class Backend(Protocol):
    """Sends a request to a replica."""

    async def post(
        self, replica: Replica, path: str, body: bytes, *, request_id: str, event_id: str
    ) -> BackendAnswer:
        """Return the answer as soon as its headers are there.

        Raises:
            BackendUnreachable: no connection, or none in time; nothing was sent.
            BackendTimeout: no answer in time.
            BackendBroken: what came isn't HTTP.
        """

    async def close(self) -> None:
        """Close every connection."""
