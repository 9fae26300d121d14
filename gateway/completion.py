"""What a backend's chat answer says about usage and content. Pure.

Reads complete answers and streamed chunks with typed views that look only at the members metering
needs; never changes a byte. Reported figures are handed on as they are: `billing.usage_truth` decides
what they are worth.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from billing.usage_truth import ReportedUsage
from gateway.errors import BackendBroken

DONE = b"[DONE]"


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


class _Answer(msgspec.Struct):
    usage: Any = None
    error: Any = None
    choices: list[Any] | None = None


_chunk_decoder = msgspec.json.Decoder(_Chunk)
_answer_decoder = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class ChunkReading:
    """One streamed chunk: whether it carries content, is only usage, ends the stream, or is an error."""

    content_count: int = 0
    usage: ReportedUsage | None = None
    is_usage_only: bool = False
    is_done: bool = False
    is_finish: bool = False
    error: dict[str, Any] | None = None


_DONE_READING = ChunkReading(is_done=True)
_EMPTY_READING = ChunkReading()


def read_chunk(data: bytes) -> ChunkReading:
    """Return what the data of one event says.

    Raises:
        BackendBroken: the data is neither ``[DONE]`` nor a JSON object.
    """
    if data == DONE:
        return _DONE_READING
    if not data:
        return _EMPTY_READING
    try:
        chunk = _chunk_decoder.decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as exc:
        raise BackendBroken(f"a streamed chunk isn't a chat completion chunk: {exc}") from exc
    if chunk.error is not None:
        error = chunk.error if isinstance(chunk.error, dict) else {"message": str(chunk.error)}
        return ChunkReading(error=error)
    choices = chunk.choices or []
    usage = None if chunk.usage is None else reported_usage(chunk.usage)
    return ChunkReading(
        content_count=sum(1 for choice in choices if _has_content(choice)),
        usage=usage,
        is_usage_only=usage is not None and not choices,
        is_finish=any(choice.finish_reason is not None for choice in choices),
    )


def read_answer(body: bytes) -> ReportedUsage:
    """Return the usage that a complete answer reports; all None when it reports none.

    Raises:
        BackendBroken: the body isn't a JSON object, or is an error that came with a success status.
    """
    try:
        answer = _answer_decoder.decode(body)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as exc:
        raise BackendBroken(f"the answer isn't a chat completion: {exc}") from exc
    if answer.error is not None and answer.choices is None:
        raise BackendBroken("the backend answered with an error inside a success")
    return reported_usage(answer.usage)


def reported_usage(usage: object) -> ReportedUsage:
    """Return the figures of a usage object, whatever they are; cached and reasoning tokens are parts."""
    if not isinstance(usage, dict):
        return ReportedUsage()
    return ReportedUsage(
        input_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        cached_input_tokens=_detail(usage, "prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=_detail(usage, "completion_tokens_details", "reasoning_tokens"),
    )


def _detail(usage: dict[str, object], details: str, name: str) -> object:
    inner = usage.get(details)
    return inner.get(name) if isinstance(inner, dict) else None


def _has_content(choice: _Choice) -> bool:
    if choice.text:
        return True
    delta = choice.delta
    return delta is not None and bool(
        delta.content
        or delta.reasoning_content
        or delta.reasoning
        or delta.refusal
        or delta.tool_calls
        or delta.function_call
    )
