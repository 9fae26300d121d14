"""Which body a backend gets for a chat request. Pure.

We own `model`, the text of `messages` that we rewrite, the output cap and `stream_options`; everything else is
forwarded as sent.
"""

from gateway.anchors import with_directive, without_directive
from gateway.chat import ChatRequest, Message
from gateway.json_document import JsonDocument
from gateway.types import AnchorOrigin
from routing_engine.types import Expert, Replica


def output_tokens_cap(chat: ChatRequest, expert: Expert) -> int:
    """Return the output tokens that one choice may have: the client's cap within the expert's own."""
    asked = chat.output_tokens_asked
    return expert.output_tokens_max if asked is None else min(asked, expert.output_tokens_max)


def messages_for(
    chat: ChatRequest, expert: Expert, replica: Replica, origin: AnchorOrigin | None
) -> tuple[Message, ...]:
    """Return the messages for `replica`: closed by the canonical anchor when it understands anchors.

    Otherwise a directive that we obeyed is removed from the text; one that names no expert is ordinary text.
    """
    if replica.understands_anchors:
        return with_directive(chat.messages, expert.expert_id)
    if origin is AnchorOrigin.DIRECTIVE:
        return without_directive(chat.messages)
    return chat.messages


def forwarded_body(
    document: JsonDocument,
    chat: ChatRequest,
    expert: Expert,
    replica: Replica,
    origin: AnchorOrigin | None,
) -> bytes:
    """Return the JSON text for `replica`.

    The cap that the hold was computed from is always sent, and a stream always reports its usage.
    """
    forwarded = document.copy()
    forwarded.set("model", replica.model)
    messages = messages_for(chat, expert, replica, origin)
    if messages is not chat.messages:
        forwarded.set("messages", messages)
    forwarded.set(chat.output_cap_field, output_tokens_cap(chat, expert))
    if chat.is_stream and not chat.wants_usage_chunk:
        options = document.get("stream_options", dict[str, object], "an object") or {}
        forwarded.set("stream_options", {**options, "include_usage": True})
    return forwarded.encode()
