"""Reads the engine's requests: strict JSON in, values that are right out.

Owns the field rules of the engine's endpoints. Unknown fields are ignored, since clients send many;
known fields that would change the answer and that this engine can't honour are refused.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from routing_engine.engine.anchors import split_anchor
from routing_engine.engine.errors import BadEngineRequest
from routing_engine.engine.experts import ExpertProfile, ExpertRegistry
from routing_engine.engine.language_model import Turn
from routing_engine.types import ExpertId, RouteRequest

BODY_BYTES_MAX = 1 << 20
"""Far more text than the context of the model holds."""

MESSAGES_MAX = 512
ROUTE_TEXT_MAX = 100_000
LIST_MAX = 1024
PREHEAT_MAX = 64

_Model = TypeVar("_Model", bound=BaseModel)


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class TextPart(_Body):
    """One part of a message; only text can be read by this model."""

    type: Literal["text"]
    text: str


class Message(_Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(max_length=LIST_MAX)] | None = None

    @property
    def text(self) -> str:
        """The message's text, its parts joined by line ends."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(_Body):
    """What a stream carries besides the answer."""

    include_usage: bool = False


class ResponseFormat(_Body):
    """The form of the answer; this engine writes text."""

    type: Literal["text"]


class ChatBody(_Body):
    """The body of ``POST /v1/chat/completions``."""

    model: str = Field(min_length=1, max_length=256)
    messages: Annotated[list[Message], Field(min_length=1, max_length=MESSAGES_MAX)]
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: (
        Annotated[str, Field(min_length=1, max_length=256)]
        | Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=4)]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    frequency_penalty: float | None = Field(default=None, ge=0, le=0)
    presence_penalty: float | None = Field(default=None, ge=0, le=0)
    response_format: ResponseFormat | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class RouteBody(_Body):
    """The body of ``POST /v1/route``."""

    text: str = Field(max_length=ROUTE_TEXT_MAX)
    concept_ids: Annotated[list[str], Field(max_length=LIST_MAX)] = []
    expert_hints: Annotated[list[str], Field(max_length=LIST_MAX)] = []
    allowed: Annotated[list[str], Field(max_length=LIST_MAX)] | None = None

    @property
    def request(self) -> RouteRequest:
        """The same as the router's own request."""
        allowed = None if self.allowed is None else frozenset(map(ExpertId, self.allowed))
        return RouteRequest(
            self.text, tuple(self.concept_ids), tuple(self.expert_hints), allowed=allowed
        )


class PreheatBody(_Body):
    """The body of ``POST /v1/preheat``."""

    expert_ids: Annotated[list[str], Field(min_length=1, max_length=PREHEAT_MAX)]


def read_body(raw: bytes, model: type[_Model]) -> _Model:
    """Return the strict JSON `raw` as `model`.

    Raises:
        BadEngineRequest: it isn't JSON, or a field is missing or wrong; names the field.
    """
    try:
        document: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise BadEngineRequest(f"the body is not JSON: {exc}", code="invalid_json") from exc
    if not isinstance(document, dict):
        raise BadEngineRequest("the body must be a JSON object", code="invalid_json")
    try:
        return model.model_validate(document)
    except ValidationError as exc:
        faults = exc.errors(include_input=False, include_url=False)
        # A union reports a fault for each of its members: the deepest is of the one that was meant.
        first_name = faults[0]["loc"][:1]
        fault = max(
            (fault for fault in faults if fault["loc"][:1] == first_name),
            key=lambda fault: len(fault["loc"]),
        )
        # The last parts of the place are pydantic's names for the members of a union: leave them out.
        names = [part for part in fault["loc"] if isinstance(part, int) or part in _FIELD_NAMES]
        param = ".".join(str(name) for name in names) or None
        raise BadEngineRequest(
            f"{param or 'the body'}: {fault['msg']}", param=param, code="invalid_value"
        ) from exc


_FIELD_NAMES = {
    name
    for body in (ChatBody, RouteBody, PreheatBody, Message, TextPart, StreamOptions, ResponseFormat)
    for name in body.model_fields
}


def choose_expert(
    body: ChatBody, registry: ExpertRegistry
) -> tuple[ExpertProfile, tuple[Turn, ...]]:
    """Return the expert that answers and the conversation it reads, anchor removed, directive first.

    A registered anchor at the end of the last user message selects the expert when `model` is the bare
    model, and must name the same expert otherwise. One that names nothing registered is ordinary text.

    Raises:
        UnknownEngineModel: `model` names no expert.
        BadEngineRequest: model and anchor name different experts.
    """
    expert = registry.get(body.model)
    turns = [Turn(_template_role(message.role), message.text) for message in body.messages]
    last_user = max((i for i, turn in enumerate(turns) if turn.role == "user"), default=None)
    if last_user is not None:
        text, anchored_id = split_anchor(turns[last_user].content)
        if anchored_id is not None and anchored_id in registry:
            if expert.expert_id not in (registry.bare_model, anchored_id):
                raise BadEngineRequest(
                    f"model is {expert.expert_id!r}, but the message is anchored to {anchored_id!r}",
                    param="model",
                    code="anchor_conflict",
                )
            expert = registry.get(anchored_id)
            turns[last_user] = Turn("user", text)
    return expert, (*directive_turns(expert), *turns)


def directive_turns(expert: ExpertProfile) -> tuple[Turn, ...]:
    """Return the turns that every conversation of `expert` begins with."""
    return (Turn("system", expert.directive),) if expert.directive else ()


def _template_role(role: str) -> str:
    # Chat templates know no developer; to this model it is the same as system.
    return "system" if role == "developer" else role
