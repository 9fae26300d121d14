"""Expert anchors: where they may stand, how they are read, written and removed. Pure.

An anchor binds a request to a registered expert. It may stand in the `x-expert-anchor` header, in the
`expert_anchor` field, or as a directive that closes the last user message. Directives anywhere else (earlier
turns, system text, tool results, retrieved documents, assistant turns) are ordinary text and never obeyed.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.chat import Message, human_parts, last_user_index, rewrite_last_text
from gateway.errors import UnknownAnchor
from gateway.types import Anchor, AnchorOrigin
from routing_engine.types import Expert, ExpertId

EXPERT_ID_LENGTH_MAX = 64
"""Longest expert id; longer names in a directive are ordinary text."""

_OPENING, _CLOSING = "【", "】"
_DIRECTIVE = re.compile(
    rf"{_OPENING}专家锚定[：:]\s*([a-z0-9][a-z0-9-]{{0,{EXPERT_ID_LENGTH_MAX - 1}}})\s*{_CLOSING}"
)

NearMatches = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class AnchorReading:
    """What was found: the anchor to obey, and an id in a directive that names no expert."""

    anchor: Anchor | None
    ignored: str | None = None


def canonical_directive(expert_id: ExpertId) -> str:
    """Return the directive in its one canonical form."""
    return f"【专家锚定：{expert_id}】"


def read_anchor(
    *,
    header: str | None,
    field: str | None,
    messages: tuple[Message, ...],
    experts: Mapping[ExpertId, Expert],
    near_matches: NearMatches,
) -> AnchorReading:
    """Return the anchor of a request; header before field before directive.

    Raises:
        UnknownAnchor: header or field names an expert that isn't registered; the error names near matches.
    """
    for origin, value, param in (
        (AnchorOrigin.HEADER, header, "x-expert-anchor"),
        (AnchorOrigin.FIELD, field, "expert_anchor"),
    ):
        if value is None:
            continue
        expert_id = ExpertId(value.strip())
        if expert_id not in experts:
            shown = value[:EXPERT_ID_LENGTH_MAX]
            raise UnknownAnchor(shown, near_matches(shown), param=param)
        return AnchorReading(Anchor(expert_id, origin))
    named = directive_in(messages)
    if named is None:
        return AnchorReading(None)
    if named in experts:
        return AnchorReading(Anchor(named, AnchorOrigin.DIRECTIVE))
    return AnchorReading(None, ignored=named)


def directive_in(messages: tuple[Message, ...]) -> ExpertId | None:
    """Return the id in a directive that closes the last user message, or None."""
    index = last_user_index(messages)
    texts = [] if index is None else human_parts(messages[index], index)
    return _split(texts[-1])[1] if texts else None


def without_directive(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return `messages` with the closing directive removed from the last user message."""
    return _with_last_text(messages, lambda text: _split(text)[0])


def with_directive(messages: tuple[Message, ...], expert_id: ExpertId) -> tuple[Message, ...]:
    """Return `messages` closed by the canonical directive of `expert_id`, replacing any other."""
    directive = canonical_directive(expert_id)

    def close(text: str) -> str:
        bare = _split(text)[0].rstrip()
        return f"{bare}\n{directive}" if bare else directive

    return _with_last_text(messages, close)


def _split(text: str) -> tuple[str, ExpertId | None]:
    """Return `text` without the directive that closes it, and the id in that directive.

    Looks at the last bracket only: a pattern searched for from the left takes time in the square of the spaces.
    """
    body = text.rstrip()
    start = body.rfind(_OPENING) if body.endswith(_CLOSING) else -1
    found = _DIRECTIVE.fullmatch(body, start) if start >= 0 else None
    return (body[:start].rstrip(), ExpertId(found.group(1))) if found else (text, None)


def _with_last_text(
    messages: tuple[Message, ...], rewrite: Callable[[str], str]
) -> tuple[Message, ...]:
    index = last_user_index(messages)
    if index is None:
        return messages
    changed = rewrite_last_text(messages[index], index, rewrite)
    if changed is None:
        return messages
    return (*messages[:index], changed, *messages[index + 1 :])
