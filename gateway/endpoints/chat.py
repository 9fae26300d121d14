"""``POST /v1/chat/completions``: bare ASGI, because it is the hottest endpoint."""

from starlette.types import Receive, Scope, Send

from gateway.admission import Admitter
from gateway.context import context_of
from gateway.proxy import ChatProxy


class ChatCompletions:
    """Routes, reserves, proxies and meters one chat request; errors are raised for `ProblemResponses`."""

    def __init__(self, admitter: Admitter, proxy: ChatProxy) -> None:
        self._admitter = admitter
        self._proxy = proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request that the middleware has authenticated, normalised and anchored."""
        context = context_of(scope, receive)
        decision = await self._admitter.route(context)
        admission = self._admitter.admit(context, decision)
        await self._proxy.run(context, admission, send)
