"""Errors of the engine. None carries a status code: `engine/responses.py` owns those.

EngineError (a RoutingError)
├── ModelUnavailable     the model's files are missing or unusable; says what to install or point to
├── ModelLoading         the model isn't loaded yet; carries the loading stage
├── EngineBusy           the queue is full; carries when to try again
├── SecondStageMissing   no second-stage artefact has been trained
├── BadEngineRequest     the request can't be served as sent; carries field and code
│   └── ContextTooLong   prompt and answer don't fit the model's context
├── UnknownEngineModel   `model` names no expert of this engine
└── GenerationFailed     the model failed in the middle of an answer
"""

from routing_engine.errors import RoutingError


class EngineError(RoutingError):
    """Base of everything the engine raises on purpose."""


class ModelUnavailable(EngineError):
    """The model's files are missing or unusable; the message says the way out."""


class ModelLoading(EngineError):
    """The model isn't loaded (yet); `stage` says how far loading has come."""

    def __init__(self, stage: str, retry_after_s: int) -> None:
        self.stage, self.retry_after_s = stage, retry_after_s
        super().__init__(f"the model is not ready: {stage}")


class EngineBusy(EngineError):
    """All places in the queue `what` are taken."""

    def __init__(self, what: str, places: int, retry_after_s: int) -> None:
        self.what, self.places, self.retry_after_s = what, places, retry_after_s
        super().__init__(f"all {places} places for {what} are taken; try again in a moment")


class SecondStageMissing(EngineError):
    """No second-stage artefact is there to route with."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"no second routing stage at {path}; train one with `expertgate engine train`"
        )


class BadEngineRequest(EngineError):
    """The request can't be served as sent; `param` names the field, `code` the kind of fault."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        self.param, self.code = param, code
        super().__init__(message)


class ContextTooLong(BadEngineRequest):
    """Prompt and answer don't fit the context of the model."""

    def __init__(self, prompt_tokens: int, answer_tokens: int, context_tokens: int) -> None:
        self.prompt_tokens, self.answer_tokens = prompt_tokens, answer_tokens
        self.context_tokens = context_tokens
        super().__init__(
            f"the context of this model is {context_tokens} tokens, but the prompt has"
            f" {prompt_tokens} and the answer may take {answer_tokens}",
            param="messages",
            code="context_length_exceeded",
        )


class UnknownEngineModel(EngineError):
    """`model` names no expert of this engine; `near` holds ids that look like it."""

    def __init__(self, model: str, near: tuple[str, ...] = ()) -> None:
        self.model, self.near = model, near
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        super().__init__(f"the model {model!r} does not exist{hint}")


class GenerationFailed(EngineError):
    """The model failed in the middle of an answer."""
