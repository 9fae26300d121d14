"""One chat request as the engine sees it: what to generate, and its answer in OpenAI's shapes."""

from dataclasses import dataclass

from routing_engine.engine.errors import ContextTooLong
from routing_engine.engine.generation import Event, Failed, Finished, GenerationRequest, Piece
from routing_engine.engine.language_model import LanguageModel
from routing_engine.engine.requests import ChatBody, choose_expert
from routing_engine.engine.responses import SSE_DONE, chunk, completion, error_event, usage_of
from routing_engine.engine.runtime import EngineRuntime


@dataclass(frozen=True, slots=True)
class Chat:
    """What to generate and how to tell it. `model` is repeated to the client as it was asked for."""

    generation: GenerationRequest
    model: str
    is_stream: bool
    includes_usage: bool


def plan_chat(runtime: EngineRuntime, model: LanguageModel, body: ChatBody) -> Chat:
    """Return what answering `body` takes.

    Without a limit of its own, the answer gets the expert's, or what is left of the context.

    Raises:
        UnknownEngineModel: no such expert.
        BadEngineRequest: the anchor contradicts, or the chat template refuses the messages.
        ContextTooLong: prompt and answer don't fit the context.
    """
    expert, turns = choose_expert(body, runtime.registry)
    prompt_ids = tuple(model.encode_chat(turns))
    prefix_ids = runtime.prefix_of(expert)
    if prompt_ids[: len(prefix_ids)] != prefix_ids or len(prompt_ids) == len(prefix_ids):
        # A chat template may merge the directive with what follows: then nothing is shared.
        prefix_ids = ()
    asked = body.max_completion_tokens or body.max_tokens
    left = model.context_tokens_max - len(prompt_ids)
    if left < (asked or 1):
        raise ContextTooLong(len(prompt_ids), asked or 1, model.context_tokens_max)
    temperature = expert.temperature if body.temperature is None else body.temperature
    options = body.stream_options
    return Chat(
        generation=GenerationRequest(
            expert_id=expert.expert_id,
            prompt_ids=prompt_ids,
            max_tokens=asked or min(expert.max_tokens, left),
            temperature=temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            seed=body.seed,
            stops=body.stops,
            prefix_ids=prefix_ids,
        ),
        model=body.model,
        is_stream=bool(body.stream),
        includes_usage=options is not None and options.include_usage,
    )


class ChatAnswer:
    """Turns the events of one answer into what is sent."""

    def __init__(self, chat: Chat, *, completion_id: str, created: int) -> None:
        self._chat, self._id, self._created = chat, completion_id, created
        self._texts: list[str] = []

    @property
    def is_stream(self) -> bool:
        """Whether the client asked for a stream."""
        return self._chat.is_stream

    def opening(self) -> bytes:
        """Return the first event of a stream, which says who speaks."""
        return self._chunk(delta={"role": "assistant", "content": ""})

    def stream_event(self, event: Event) -> tuple[bytes, bool]:
        """Return what `event` adds to the stream, and whether the stream ends with it."""
        if isinstance(event, Piece):
            return self._chunk(delta={"content": event.text}), False
        if isinstance(event, Failed):
            return error_event(event.message), True
        assert isinstance(event, Finished)
        data = self._chunk(delta={}, finish_reason=event.reason)
        if self._chat.includes_usage:
            data += self._chunk(usage=self._usage(event))
        return data + SSE_DONE, True

    def whole_event(self, event: Event) -> bytes | None:
        """Take `event` in; return the whole answer when it is the last one."""
        if isinstance(event, Piece):
            self._texts.append(event.text)
            return None
        assert isinstance(event, Finished)
        return completion(
            completion_id=self._id,
            created=self._created,
            model=self._chat.model,
            text="".join(self._texts),
            finish_reason=event.reason,
            usage=self._usage(event),
        )

    def _usage(self, event: Finished) -> dict[str, int]:
        return usage_of(len(self._chat.generation.prompt_ids), event.completion_tokens)

    def _chunk(
        self,
        *,
        delta: dict[str, str] | None = None,
        finish_reason: str | None = None,
        usage: dict[str, int] | None = None,
    ) -> bytes:
        return chunk(
            completion_id=self._id,
            created=self._created,
            model=self._chat.model,
            delta=delta,
            finish_reason=finish_reason,
            usage=usage,
            carries_usage=self._chat.includes_usage,
        )
