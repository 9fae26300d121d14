"""What a chat request says: validated fields, human text, rewritten messages. Pure.

Owns the reading and rewriting of chat-completions bodies. Only the fields that the gateway acts on are typed;
messages keep every unknown member byte for byte. Knows nothing of experts, prices or HTTP.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.errors import BadRequest
from gateway.json_document import JsonDocument

MESSAGES_MAX = 10_000
"""More messages than any conversation has; bounds the work of one request."""

CHOICES_MAX = 16
"""Bound on `n`, since each choice multiplies what must be reserved."""

OUTPUT_TOKENS_MAX = 1_000_000
"""Bound on a client's own cap before arithmetic."""

TOKENS_PER_MESSAGE = 16
"""Bound on what a chat template adds around one message, in tokens."""

BYTES_PER_TOKEN = 4
"""Rule of thumb for estimates when a backend reports no usage; never used as a bound."""

# Harness blocks that coding agents put into user turns; they are not what the person asked.
_HARNESS = re.compile(r"<(system-reminder|environment_details|context)>")

Message = dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The fields of a chat-completions body that the gateway acts on; everything else passes as sent."""

    model: str
    messages: tuple[Message, ...]
    is_stream: bool
    wants_usage_chunk: bool
    output_tokens_asked: int | None
    output_cap_field: str
    choice_count: int


def lift_text(document: JsonDocument) -> None:
    """Turn the short form ``{"text": …}`` that `/v1/route` accepts into one user message."""
    text = document.get("text", str, "a string")
    if text is not None and "messages" not in document:
        document.set("messages", [{"role": "user", "content": text}])
        if "model" not in document:
            document.set("model", "auto")


def parse_chat(document: JsonDocument) -> ChatRequest:
    """Return the validated view of `document`.

    Raises:
        BadRequest: a field that the gateway acts on is missing, has another type or is out of range.
    """
    model = document.get("model", str, "a string")
    if not model:
        raise BadRequest('\'model\' is required: use "auto" or "expert/<id>"', param="model")
    messages = _messages(document)
    options = document.get("stream_options", dict[str, Any], "an object") or {}
    completion_cap = document.get("max_completion_tokens", int, "an integer")
    cap = document.get("max_tokens", int, "an integer")
    field = "max_tokens" if completion_cap is None else "max_completion_tokens"
    asked = cap if completion_cap is None else completion_cap
    if asked is not None and not 1 <= asked <= OUTPUT_TOKENS_MAX:
        raise BadRequest(f"'{field}' must be between 1 and {OUTPUT_TOKENS_MAX}", param=field)
    count = document.get("n", int, "an integer")
    if count is not None and not 1 <= count <= CHOICES_MAX:
        raise BadRequest(f"'n' must be between 1 and {CHOICES_MAX}", param="n")
    return ChatRequest(
        model=model,
        messages=messages,
        is_stream=bool(document.get("stream", bool, "true or false")),
        wants_usage_chunk=options.get("include_usage") is True,
        output_tokens_asked=asked,
        output_cap_field=field,
        choice_count=count or 1,
    )


def _messages(document: JsonDocument) -> tuple[Message, ...]:
    messages = document.get("messages", list[Message], "an array of message objects")
    if not messages:
        raise BadRequest("'messages' must be a non-empty array of messages", param="messages")
    if len(messages) > MESSAGES_MAX:
        raise BadRequest(f"'messages' has more than {MESSAGES_MAX} entries", param="messages")
    for index, message in enumerate(messages):
        if not role_of(message):
            raise BadRequest(
                f"'messages[{index}].role' must be a string", param=f"messages[{index}].role"
            )
    return tuple(messages)


def role_of(message: Message) -> str:
    """Return the role of a message; empty when it has none."""
    raw = message.get("role")
    if raw is None:
        return ""
    text = bytes(raw)
    return text[1:-1].decode() if text[:1] == b'"' else ""


def human_parts(message: Message, index: int) -> list[str]:
    """Return the texts of a user message: its string content or its text parts, in order.

    Raises:
        BadRequest: the content is neither a string, an array of parts, nor null.
    """
    raw = message.get("content")
    if raw is None:
        return []
    content = _decode_content(raw, index)
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    return [text for part in content if (text := _text_of(part, index)) is not None]


def newest_human_text(messages: tuple[Message, ...]) -> str:
    """Return the newest user turn with text that a person wrote, without harness blocks.

    Walks back over turns that hold only tool results, images or harness text; empty when there is none.
    """
    for index in range(len(messages) - 1, -1, -1):
        if role_of(messages[index]) != "user":
            continue
        text = "\n".join(human_parts(messages[index], index))
        text = _without_harness(text).strip()
        if text:
            return text
    return ""


def _without_harness(text: str) -> str:
    """Return `text` with a space for each harness block; one that is never closed is ordinary text.

    One pass: what has no end is looked for once, not once for each of its beginnings.
    """
    pieces: list[str] = []
    kept_from = 0
    endless: set[str] = set()
    for opening in _HARNESS.finditer(text):
        tag = opening.group(1)
        if opening.start() < kept_from or tag in endless:
            continue
        closing = f"</{tag}>"
        end = text.find(closing, opening.end())
        if end < 0:
            endless.add(tag)
            continue
        pieces.append(text[kept_from : opening.start()])
        kept_from = end + len(closing)
    return " ".join((*pieces, text[kept_from:]))


def last_user_index(messages: tuple[Message, ...]) -> int | None:
    """Return the index of the last user message, or None."""
    for index in range(len(messages) - 1, -1, -1):
        if role_of(messages[index]) == "user":
            return index
    return None


def rewrite_text(message: Message, index: int, rewrite: Callable[[str], str]) -> Message | None:
    """Return `message` with `rewrite` applied to each of its texts, or None when nothing changed.

    Other members and non-text parts keep their bytes.
    """
    raw = message.get("content")
    if raw is None:
        return None
    content = _decode_content(raw, index)
    if content is None:
        return None
    if isinstance(content, str):
        text = rewrite(content)
        return None if text == content else _with_content(message, text)
    parts: list[Message] = []
    is_changed = False
    for part in content:
        old = _text_of(part, index)
        new = old if old is None else rewrite(old)
        if new != old:
            is_changed = True
            part = {**part, "text": msgspec.Raw(msgspec.json.encode(new))}
        parts.append(part)
    return _with_content(message, parts) if is_changed else None


def rewrite_last_text(
    message: Message, index: int, rewrite: Callable[[str], str]
) -> Message | None:
    """Return `message` with `rewrite` applied to its last text only, or None when nothing changed."""
    text_count = len(human_parts(message, index))
    seen = 0

    def only_last(text: str) -> str:
        nonlocal seen
        seen += 1
        return rewrite(text) if seen == text_count else text

    return rewrite_text(message, index, only_last)


def input_tokens_bound(messages_size_bytes: int, message_count: int, overhead_tokens: int) -> int:
    """Return a bound on the input tokens of a prompt.

    A byte-level tokenizer never makes more tokens than bytes; the template and the expert's own directive come
    on top. Source: research on byte-pair encodings; docs/adr/0006.
    """
    return messages_size_bytes + message_count * TOKENS_PER_MESSAGE + overhead_tokens


def input_tokens_estimate(messages_size_bytes: int) -> int:
    """Return the likely input tokens of a prompt, for bills when the backend reported nothing."""
    return max(1, messages_size_bytes // BYTES_PER_TOKEN)


def _decode_content(raw: msgspec.Raw, index: int) -> str | list[Message] | None:
    param = f"messages[{index}].content"
    try:
        return msgspec.json.decode(raw, type=str | list[Message] | None)
    except msgspec.ValidationError as exc:
        raise BadRequest(
            f"'{param}' must be a string or an array of parts: {exc}", param=param
        ) from exc
    except (msgspec.DecodeError, RecursionError) as exc:
        raise BadRequest(f"'{param}' isn't valid JSON: {exc}", param=param) from exc


def _text_of(part: Message, index: int) -> str | None:
    """Return the text of a text part, None for any other part."""
    if bytes(part.get("type", b"")) != b'"text"':
        return None
    raw = part.get("text")
    param = f"messages[{index}].content"
    try:
        return None if raw is None else msgspec.json.decode(raw, type=str)
    except (msgspec.ValidationError, msgspec.DecodeError) as exc:
        raise BadRequest(
            f"'{param}' has a text part whose text isn't a string", param=param
        ) from exc


def _with_content(message: Message, content: str | list[Message]) -> Message:
    return {**message, "content": msgspec.Raw(msgspec.json.encode(content))}
