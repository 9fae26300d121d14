"""Cancels the work on a request when its client leaves, and says that this was the reason."""

import asyncio
from types import TracebackType

from starlette.types import Receive


class ClientWatch:
    """Async context manager: the block is cancelled when the client disconnects.

    A cancellation that the watch caused ends at the end of the block, with `has_left` set; any other goes on
    through. The server reports a half-closed connection as a disconnect too (docs/http-api.md).
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None
        self._watched: asyncio.Task[object] | None = None
        self.has_left = False

    async def __aenter__(self) -> "ClientWatch":
        """Start watching."""
        self._watched = asyncio.current_task()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def _watch(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
        self.has_left = True
        assert self._watched is not None, "the watch was entered"
        self._watched.cancel()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Stop watching; swallow the cancellation that the client's leaving caused."""
        assert self._watched is not None, "the watch was entered"
        assert self._watcher is not None, "the watch was entered"
        if not self.has_left:
            self._watcher.cancel()
            return False
        is_ours = self._watched.uncancel() == 0
        if exc_type is None:
            # The block ended before the cancellation reached it; take it here, not at somebody else's await.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if not is_ours:
                    raise
            return False
        return exc_type is asyncio.CancelledError and is_ours
