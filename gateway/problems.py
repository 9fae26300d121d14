"""Which status, type and code each error has, and how an error is written. The only home of status codes.

`/v1` answers in OpenAI's shape so that SDKs raise the right class. Messages name the field or id at fault and the
way out; they never hold keys, prompts or traces.
"""

from dataclasses import dataclass

import msgspec
from starlette.types import Send

from billing import errors as billing_errors
from gateway import errors, headers
from routing_engine import errors as routing_errors


@dataclass(frozen=True, slots=True)
class Problem:
    """How one class of errors is answered; `should_retry` tells SDKs whether another try can help."""

    status: int
    type: str
    code: str | None
    should_retry: bool = False
    retry_after_s: int | None = None


PROBLEMS: dict[type[Exception], Problem] = {
    errors.BadRequest: Problem(400, "invalid_request_error", None),
    errors.InvalidJson: Problem(400, "invalid_request_error", "invalid_json"),
    errors.BodyTooLarge: Problem(413, "invalid_request_error", "body_too_large"),
    errors.UnsupportedMedia: Problem(415, "invalid_request_error", "unsupported_media_type"),
    errors.UnknownModel: Problem(404, "invalid_request_error", "model_not_found"),
    errors.UnknownAnchor: Problem(400, "invalid_request_error", "unknown_expert_anchor"),
    errors.Unauthenticated: Problem(401, "authentication_error", "invalid_api_key"),
    errors.BackendUnreachable: Problem(503, "backend_error", "backend_unreachable", True, 2),
    errors.BackendTimeout: Problem(504, "backend_error", "backend_timeout", True),
    errors.BackendRefused: Problem(502, "backend_error", "backend_refused"),
    errors.BackendBroken: Problem(502, "backend_error", "backend_broken"),
    errors.BackendError: Problem(502, "backend_error", "backend_error"),
    billing_errors.BudgetExceeded: Problem(429, "insufficient_quota", "budget_exceeded"),
    billing_errors.ExpertNotEntitled: Problem(403, "permission_error", "expert_not_entitled"),
    billing_errors.Refused: Problem(403, "permission_error", "refused"),
    billing_errors.UnpricedExpert: Problem(503, "server_error", "expert_unpriced"),
    billing_errors.MeteringError: Problem(503, "server_error", "metering_unavailable", True, 5),
    routing_errors.UnknownExpert: Problem(404, "invalid_request_error", "unknown_expert"),
    routing_errors.EngineUnavailable: Problem(503, "backend_error", "engine_unavailable", True, 2),
}
"""Looked up along the class's ancestors, nearest first."""

INTERNAL = Problem(500, "server_error", "internal_error")
NOT_FOUND = Problem(404, "invalid_request_error", "not_found")
METHOD_NOT_ALLOWED = Problem(405, "invalid_request_error", "method_not_allowed")

PASSED_ON_STATUSES = frozenset({400, 404, 409, 413, 415, 422, 429, 503, 529})
"""Statuses of a backend that mean to the client what they mean to us. Its 401 and 403 concern *our* credential
and its other 5xx our backend: both become a 502."""

BACKEND_MESSAGE_MAX = 500
"""Longest message of a backend that is passed on, in code points."""


def problem_of(error: Exception) -> Problem:
    """Return how `error` is answered."""
    if isinstance(error, errors.BackendRefused):
        return _refused_problem(error)
    for class_ in type(error).__mro__:
        problem = PROBLEMS.get(class_)
        if problem is not None:
            return problem
    return INTERNAL


def body_of(error: Exception, problem: Problem) -> dict[str, dict[str, str | None]]:
    """Return the OpenAI-shaped body for `error`."""
    message = "the gateway failed; the request id finds the log entry"
    if problem is not INTERNAL:
        message = _message_of(error)
    return {
        "error": {
            "message": message,
            "type": problem.type,
            "param": getattr(error, "param", None),
            "code": problem.code,
        }
    }


def error_event(error: Exception) -> bytes:
    """Return the server-sent event that ends a stream which failed after its first byte."""
    return b"data: " + msgspec.json.encode(body_of(error, problem_of(error))) + b"\n\n"


async def send_problem(
    send: Send,
    error: Exception,
    *,
    extra_headers: list[tuple[bytes, bytes]] | None = None,
    problem: Problem | None = None,
) -> int:
    """Answer with `error`; return the status sent."""
    problem = problem or problem_of(error)
    body = msgspec.json.encode(body_of(error, problem))
    response_headers = [
        (headers.CONTENT_TYPE, headers.JSON),
        (headers.CONTENT_LENGTH, str(len(body)).encode()),
        (headers.SHOULD_RETRY, b"true" if problem.should_retry else b"false"),
        *(extra_headers or ()),
    ]
    if problem.status == 401:
        response_headers.append((b"www-authenticate", b"Bearer"))
    if problem.retry_after_s is not None:
        response_headers.append((headers.RETRY_AFTER, str(problem.retry_after_s).encode()))
    await send(
        {"type": "http.response.start", "status": problem.status, "headers": response_headers}
    )
    await send({"type": "http.response.body", "body": body})
    return problem.status


def _refused_problem(error: errors.BackendRefused) -> Problem:
    if error.status not in PASSED_ON_STATUSES:
        return PROBLEMS[errors.BackendRefused]
    retry_after = error.headers.get("retry-after", "")
    is_temporary = error.status in (429, 503, 529)
    return Problem(
        status=error.status,
        type="rate_limit_error"
        if error.status == 429
        else "backend_error"
        if error.status >= 500
        else "invalid_request_error",
        code="backend_refused",
        should_retry=is_temporary,
        retry_after_s=int(retry_after) if retry_after.isdigit() else None,
    )


def _message_of(error: Exception) -> str:
    if isinstance(error, billing_errors.MeteringError):
        # Its own text names files and disks of ours, which is for the log.
        return "usage can't be recorded right now, so nothing was sent to an expert; try again soon"
    if isinstance(error, errors.BackendRefused) and error.status in PASSED_ON_STATUSES:
        said = _backend_message(error.body)
        return f"the expert's backend refused the request: {said}" if said else str(error)
    return str(error)


class _ErrorBody(msgspec.Struct):
    error: dict[str, msgspec.Raw] | str | None = None


def _backend_message(body: bytes) -> str:
    """Return the message of an OpenAI-shaped error body, shortened; empty when there is none."""
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
        if isinstance(error, str):
            return error[:BACKEND_MESSAGE_MAX]
        raw = (error or {}).get("message")
        return msgspec.json.decode(raw, type=str)[:BACKEND_MESSAGE_MAX] if raw else ""
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError):
        return ""
