"""uvicorn's httptools protocol with the bounds it lacks: size and deadline of a request head.

Without them one client can hold a connection with half a head for ever, or fill memory with one header
(docs/adr/0007). Bodies have their own deadline where they are read.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def bounded_protocol(*, header_bytes_max: int, header_deadline_s: float) -> type[HttpToolsProtocol]:
    """Return a protocol class that drops connections whose request head is too large or too slow."""

    class BoundedHttpProtocol(HttpToolsProtocol):
        """See the module's docstring; one instance per connection."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._head_bytes = 0
            self._is_in_head = True
            self._head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            # uvicorn narrows the argument the same way.
            super().connection_made(transport)
            self._start_head_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_head_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            # In pieces of at most the bound while a head is read, so that the body behind it is never counted.
            while self._is_in_head and data and not self.transport.is_closing():
                if self._head_timer is None:
                    self._start_head_timer()
                piece, data = data[:header_bytes_max], data[header_bytes_max:]
                self._head_bytes += len(piece)
                super().data_received(piece)
                if self._head_bytes > header_bytes_max:
                    self._refuse(b"431 Request Header Fields Too Large")
            if data and not self.transport.is_closing():
                super().data_received(data)

        def on_headers_complete(self) -> None:
            self._is_in_head = False
            self._head_bytes = 0
            self._stop_head_timer()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._is_in_head = True
            super().on_message_complete()

        def _start_head_timer(self) -> None:
            self._head_timer = self.loop.call_later(header_deadline_s, self._head_is_late)

        def _stop_head_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _head_is_late(self) -> None:
            self._head_timer = None
            if not self._is_in_head:
                return
            if self._is_answering():
                # A pipelined head, or a stray line end behind a body: its time counts from the answer's end.
                self._start_head_timer()
            else:
                self._refuse(b"408 Request Timeout")

        def _is_answering(self) -> bool:
            # uvicorn has no cycle before the first request, whatever it declares.
            return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

        def _refuse(self, status: bytes) -> None:
            if self.transport.is_closing():
                return
            # Another answer's bytes would be read as part of the one that is being sent.
            if not self._is_answering():
                self.transport.write(
                    b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                )
            self.transport.close()

    return BoundedHttpProtocol
