"""``GET /v1/models`` and ``GET /v1/models/{id}``: the model names that the caller may use."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.admission import AUTO, PIN_PREFIX, Experts
from gateway.context import context_of
from gateway.errors import UnknownModel
from routing_engine.types import ExpertId

CREATED_AT = 1_764_547_200
"""OpenAI's clients want a creation time; experts have none of their own, so it is this product's first day."""


class Models:
    """Lists `auto`, the configured aliases, and every expert that the caller is entitled to."""

    def __init__(self, experts: Experts) -> None:
        self._experts = experts

    async def list(self, request: Request) -> Response:
        """Return OpenAI's list shape; each entry has our own facts under `expertgate`."""
        return JSONResponse(
            {"object": "list", "data": [self._entry(name) for name in self._names(request)]}
        )

    async def show(self, request: Request) -> Response:
        """Return one entry.

        Raises:
            UnknownModel: the caller can't use a model of that name.
        """
        name = request.path_params["model"]
        names = self._names(request)
        if name not in names:
            raise UnknownModel(name, names)
        return JSONResponse(self._entry(name))

    def _names(self, request: Request) -> tuple[str, ...]:
        principal = context_of(request.scope, request.receive).principal
        entitled = None if principal is None else principal.entitled
        return tuple(
            name
            for name in self._experts.model_names()
            if entitled is None or self._is_allowed(name, entitled)
        )

    def _is_allowed(self, name: str, entitled: frozenset[ExpertId]) -> bool:
        """Return whether `name`, or what it is an alias of, is free to route or one of `entitled`."""
        target = self._experts.aliases.get(name, name)
        return target == AUTO or ExpertId(target.removeprefix(PIN_PREFIX)) in entitled

    def _entry(self, name: str) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": CREATED_AT,
            "owned_by": "expertgate",
        }
        target = self._experts.aliases.get(name, name)
        expert = self._experts.by_id.get(ExpertId(target.removeprefix(PIN_PREFIX)))
        if expert is not None:
            entry["expertgate"] = {
                "expert_id": expert.expert_id,
                "number": expert.number,
                "domain": expert.domain,
                "name": expert.name,
                "description": expert.description,
            }
        elif target == AUTO:
            entry["expertgate"] = {"description": "routed to the expert that fits the prompt"}
        return entry
