"""Middleware: who sends the request. One extractor for every credential, digests only, no database."""

from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import headers
from gateway.context import context_of
from gateway.errors import BadRequest, GatewayError, Unauthenticated
from gateway.problems import send_problem
from gateway.types import Principal

KEY_LENGTH_MAX = 256
"""Longest credential that is looked at; ours have about 60 characters."""

Lookup = Callable[[str], Principal | None]


class Authenticate:
    """Puts the request's `Principal` into its context, or refuses the request.

    Args:
        lookup: returns the principal of a valid key, None for any other; called with the key as sent.
        public_paths: paths that need no key.
    """

    def __init__(self, app: ASGIApp, *, lookup: Lookup, public_paths: Collection[str] = ()) -> None:
        self.app = app
        self._lookup = lookup
        self._public_paths = frozenset(public_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate, then run the application inside."""
        if scope["type"] == "http" and scope["path"] not in self._public_paths:
            context = context_of(scope, receive)
            try:
                context.principal = self._principal(scope["headers"])
            except GatewayError as exc:
                await send_problem(send, exc)
                return
        await self.app(scope, receive, send)

    def _principal(self, request_headers: list[tuple[bytes, bytes]]) -> Principal:
        key = credential_of(request_headers)
        principal = self._lookup(key)
        if principal is None:
            raise Unauthenticated(
                "the key isn't valid; ask whoever runs this gateway for another one"
            )
        return principal


def credential_of(request_headers: list[tuple[bytes, bytes]]) -> str:
    """Return the key a request carries in `Authorization: Bearer` or `x-api-key`.

    Raises:
        Unauthenticated: there is none, or it can't be one of ours.
        BadRequest: there are several that differ.
    """
    found = {
        parts[1].strip()
        for value in headers.find_headers(request_headers, headers.AUTHORIZATION)
        if len(parts := value.split(None, 1)) == 2 and parts[0].lower() == b"bearer"
    }
    found.update(value.strip() for value in headers.find_headers(request_headers, headers.API_KEY))
    found.discard(b"")
    if not found:
        raise Unauthenticated("no key: send one as 'Authorization: Bearer eg_…'")
    if len(found) > 1:
        raise BadRequest("the request carries several different keys; send one")
    key = found.pop()
    if len(key) > KEY_LENGTH_MAX or not key.isascii():
        raise Unauthenticated("the key isn't valid; ask whoever runs this gateway for another one")
    return key.decode("ascii")
