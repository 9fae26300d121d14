"""Errors of the data plane. None carries a status code: `gateway/problems.py` owns those.

GatewayError
├── BadRequest            the client's fault; `param` names the field
│   ├── InvalidJson       the body isn't strict JSON
│   ├── BodyTooLarge      the body is over the limit
│   ├── UnsupportedMedia  the content type or encoding isn't accepted
│   ├── UnknownModel      `model` names nothing that is configured
│   └── UnknownAnchor     a header or field names an unregistered expert
├── Unauthenticated       no key, a malformed key, or one that isn't valid
├── BackendError          the backend's fault
│   ├── BackendUnreachable  no connection, or none in time
│   ├── BackendTimeout      no answer in time
│   ├── BackendRefused      it answered with an error status; carries status and body
│   └── BackendBroken       it answered with something that isn't an answer
└── ConfigError           a configuration file is wrong; names file, line or field
"""

from collections.abc import Mapping


class GatewayError(Exception):
    """Base of everything `gateway` raises on purpose."""


class BadRequest(GatewayError):
    """The request can't be served as sent; `param` names the field at fault."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)


class InvalidJson(BadRequest):
    """The body isn't strict JSON (NaN, duplicate keys at the top, lone surrogates count as errors)."""


class BodyTooLarge(BadRequest):
    """The body is over `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"the request body is over the limit of {limit_bytes} bytes")


class UnsupportedMedia(BadRequest):
    """The content type or encoding of the body isn't accepted."""


class UnknownModel(BadRequest):
    """`model` names nothing that is configured; `known` lists what is."""

    def __init__(self, model: str, known: tuple[str, ...]) -> None:
        self.model, self.known = model, known
        super().__init__(
            f"the model {model!r} does not exist; use one of {', '.join(known)}", param="model"
        )


class UnknownAnchor(BadRequest):
    """A header or field anchors the request to an expert that isn't registered."""

    def __init__(self, expert_id: str, near: tuple[str, ...], *, param: str) -> None:
        self.expert_id, self.near = expert_id, near
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        super().__init__(
            f"no registered expert has the id {expert_id!r}{hint or ';'} GET /v1/models lists them all",
            param=param,
        )


class Unauthenticated(GatewayError):
    """No key, a malformed one, or one that isn't valid. The message never repeats it."""


class BackendError(GatewayError):
    """The backend's fault."""


class BackendUnreachable(BackendError):
    """No connection to the backend, or none in time."""


class BackendTimeout(BackendError):
    """The backend did not answer in time."""


class BackendRefused(BackendError):
    """The backend answered with an error status."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.status, self.body, self.headers = status, body, headers
        super().__init__(f"the backend answered with status {status}")


class BackendBroken(BackendError):
    """The backend's answer is truncated or isn't what the protocol says."""


class ConfigError(GatewayError):
    """A configuration file is wrong; `place` is file, line and field."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(f"{place}: {reason}")
