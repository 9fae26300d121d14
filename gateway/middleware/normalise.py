"""Middleware: dictionary terms in the human-written parts of a chat request become their preferred forms."""

from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.chat import rewrite_text, role_of
from gateway.context import BodyLimits, RequestContext, context_of
from gateway.errors import GatewayError
from gateway.problems import send_problem
from term_db.types import NormalisedText, TermMatch

Normalise = Callable[[str], NormalisedText]

MATCHES_MAX = 1_000
"""Matches that are kept for one request; more add nothing to routing."""


class NormaliseTerms:
    """Rewrites user messages and keeps the matches of the newest one for the router.

    Args:
        terms: returns the normalising function in force and its dictionary version; asked once per request, so
            that a request uses one version throughout.
        paths: POST paths whose bodies are chat requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        terms: Callable[[], tuple[Normalise, int]],
        paths: Collection[str],
        limits: BodyLimits = BodyLimits(),
    ) -> None:
        self.app = app
        self._terms = terms
        self._paths = frozenset(paths)
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Normalise the body of a chat request, then run the application inside."""
        if not is_chat(scope, self._paths):
            await self.app(scope, receive, send)
            return
        context = context_of(scope, receive)
        try:
            await context.read_chat(scope, self._limits)
            self._normalise(context)
        except GatewayError as exc:
            await send_problem(send, exc)
            return
        await self.app(context.scope_behind(scope), context.replay(), send)

    def _normalise(self, context: RequestContext) -> None:
        assert context.chat is not None, "read_chat comes first"
        normalise, context.dictionary_version = self._terms()
        messages = list(context.chat.messages)
        newest: list[TermMatch] = []
        is_changed = False

        def rewrite(text: str) -> str:
            normalised = normalise(text)
            newest.extend(normalised.matches)
            return normalised.text

        for index, message in enumerate(messages):
            if role_of(message) != "user":
                continue
            newest.clear()
            changed = rewrite_text(message, index, rewrite)
            if changed is not None:
                messages[index] = changed
                is_changed = True
        context.matches = tuple(newest[:MATCHES_MAX])
        if is_changed:
            context.rewrite_messages(tuple(messages))


def is_chat(scope: Scope, paths: frozenset[str]) -> bool:
    """Return whether a request is a POST to one of `paths`."""
    return scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in paths
