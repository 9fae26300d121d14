"""Outermost middleware: gives the request its context and answers every error in OpenAI's shape."""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import headers
from gateway.context import ClientGone, context_of
from gateway.problems import INTERNAL, problem_of, send_problem

log = logging.getLogger("expertgate.gateway")


class ProblemResponses:
    """Answers exceptions from inside as JSON problems and stamps `x-request-id` on every answer.

    An error after the first byte can't be answered any more: it is logged and re-raised, which makes the server
    cut the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application inside; answer what it raises."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        context = context_of(scope, receive)
        request_id = (headers.REQUEST_ID, context.request_id.encode())
        is_started = False

        async def send_stamped(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                if message["status"] >= 400:
                    log.info(
                        "request_refused",
                        extra={
                            "request_id": context.request_id,
                            "path": scope["path"],
                            "status": message["status"],
                        },
                    )
                message["headers"] = [*message.get("headers", ()), request_id]
            await send(message)

        try:
            await self.app(scope, receive, send_stamped)
        except ClientGone:
            log.info("client_left_early", extra={"request_id": context.request_id})
        except Exception as exc:
            problem = problem_of(exc)
            if problem is INTERNAL or is_started:
                log.exception(
                    "request_failed",
                    extra={"request_id": context.request_id, "path": scope["path"]},
                )
            elif problem.status >= 500:
                log.warning(
                    "request_not_served",
                    extra={
                        "request_id": context.request_id,
                        "error": type(exc).__name__,
                        "reason": str(exc),
                    },
                )
            if is_started:
                raise
            await send_problem(
                send_stamped, exc, extra_headers=context.response_headers, problem=problem
            )
