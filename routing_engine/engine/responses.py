"""Writes the engine's answers in OpenAI's shapes, and owns which error has which status."""

from typing import Any

import msgspec

from routing_engine.engine.errors import (
    BadEngineRequest,
    EngineBusy,
    EngineError,
    GenerationFailed,
    ModelLoading,
    ModelUnavailable,
    SecondStageMissing,
    UnknownEngineModel,
)
from routing_engine.errors import ArtefactError, RoutingError

SSE_DONE = b"data: [DONE]\n\n"

_STATUSES: dict[type[RoutingError], tuple[int, str, str | None]] = {
    BadEngineRequest: (400, "invalid_request_error", None),
    UnknownEngineModel: (404, "invalid_request_error", "model_not_found"),
    EngineBusy: (503, "server_error", "engine_busy"),
    ModelLoading: (503, "server_error", "model_loading"),
    ModelUnavailable: (503, "server_error", "model_unavailable"),
    SecondStageMissing: (503, "server_error", "second_stage_missing"),
    ArtefactError: (503, "server_error", "artefact_unusable"),
    GenerationFailed: (500, "server_error", "generation_failed"),
    EngineError: (500, "server_error", None),
}
"""Status, type and code of each error; the first entry in the order of its classes counts."""


def error_of(exc: RoutingError) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body for an error of ours."""
    entries = [_STATUSES[kind] for kind in type(exc).__mro__ if kind in _STATUSES]
    status, error_type, code = entries[0] if entries else (500, "server_error", None)
    if isinstance(exc, BadEngineRequest):
        code = exc.code
    param = exc.param if isinstance(exc, BadEngineRequest) else None
    if isinstance(exc, UnknownEngineModel):
        param = "model"
    headers: dict[str, str] = {}
    if isinstance(exc, EngineBusy | ModelLoading):
        headers["retry-after"] = str(exc.retry_after_s)
    return status, headers, error_body(str(exc), error_type, param=param, code=code)


def error_body(
    message: str, error_type: str, *, param: str | None = None, code: str | None = None
) -> bytes:
    """Return an error in OpenAI's shape."""
    return msgspec.json.encode(
        {"error": {"message": message, "type": error_type, "param": param, "code": code}}
    )


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Return the usage of one answer."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def completion(
    *,
    completion_id: str,
    created: int,
    model: str,
    text: str,
    finish_reason: str,
    usage: dict[str, int],
) -> bytes:
    """Return a whole answer, a ``chat.completion``."""
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    return msgspec.json.encode(
        {
            "id": completion_id,
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": usage,
        }
    )


def chunk(
    *,
    completion_id: str,
    created: int,
    model: str,
    delta: dict[str, str] | None = None,
    finish_reason: str | None = None,
    usage: dict[str, int] | None = None,
    carries_usage: bool = False,
) -> bytes:
    """Return one ``chat.completion.chunk`` as a server-sent event.

    `delta` None makes the closing chunk without choices. When the client asked for usage
    (`carries_usage`) every chunk has the field, null in all but the closing one.
    """
    choices: list[dict[str, Any]] = []
    if delta is not None:
        choices.append(
            {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        )
    body: dict[str, Any] = {
        "id": completion_id,
        "object": "chat.completion.chunk",
        "created": created,
        "model": model,
        "choices": choices,
    }
    if carries_usage:
        body["usage"] = usage
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def error_event(message: str) -> bytes:
    """Return the event that ends a stream in which something went wrong."""
    return b"data: " + error_body(message, "server_error", code="generation_failed") + b"\n\n"
