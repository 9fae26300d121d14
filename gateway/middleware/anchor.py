"""Middleware: binds a chat request to the expert that its anchor names."""

from collections.abc import Callable, Collection, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import headers
from gateway.anchors import NearMatches, read_anchor
from gateway.context import BodyLimits, RequestContext, context_of
from gateway.errors import GatewayError
from gateway.middleware.normalise import is_chat
from gateway.problems import send_problem
from routing_engine.types import Expert, ExpertId


class BindAnchor:
    """Reads the expert anchor of a chat request into its context; refuses unknown ids in header or field.

    Args:
        experts: returns the registered experts; asked once per request.
        near_matches: returns registered ids that look like an unknown one.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        experts: Callable[[], Mapping[ExpertId, Expert]],
        near_matches: NearMatches,
        paths: Collection[str],
        limits: BodyLimits = BodyLimits(),
    ) -> None:
        self.app = app
        self._experts = experts
        self._near_matches = near_matches
        self._paths = frozenset(paths)
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the anchor of a chat request, then run the application inside."""
        if not is_chat(scope, self._paths):
            await self.app(scope, receive, send)
            return
        context = context_of(scope, receive)
        try:
            await context.read_chat(scope, self._limits)
            self._bind(context, scope)
        except GatewayError as exc:
            await send_problem(send, exc)
            return
        await self.app(context.scope_behind(scope), context.replay(), send)

    def _bind(self, context: RequestContext, scope: Scope) -> None:
        assert context.chat is not None, "read_chat comes first"
        assert context.document is not None, "read_chat comes first"
        header = headers.find_header(scope["headers"], headers.EXPERT_ANCHOR)
        context.anchor = read_anchor(
            header=None if header is None else header.decode("utf-8", "replace"),
            field=context.document.get("expert_anchor", str, "a string"),
            messages=context.chat.messages,
            experts=self._experts(),
            near_matches=self._near_matches,
        )
        # The field is ours; no backend would know it.
        context.document.drop("expert_anchor")
        if context.anchor.ignored is not None:
            context.response_headers.append(
                (headers.ANCHOR_IGNORED, context.anchor.ignored.encode("ascii", "replace"))
            )
