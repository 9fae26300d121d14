"""The nouns of the data plane: principals, anchors, and a request on its way through."""

from dataclasses import dataclass
from enum import StrEnum

from billing.types import CustomerId, KeyId, ProjectId, SlaTierId
from routing_engine.types import ExpertId


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request: the key, the project and customer it belongs to, and their terms."""

    key_id: KeyId
    customer_id: CustomerId
    project_id: ProjectId
    sla_tier_id: SlaTierId
    entitled: frozenset[ExpertId] | None


class AnchorOrigin(StrEnum):
    """Where an expert anchor was found; earlier origins win."""

    HEADER = "header"
    FIELD = "field"
    DIRECTIVE = "directive"


@dataclass(frozen=True, slots=True)
class Anchor:
    """An expert anchor that binds a request to a registered expert."""

    expert_id: ExpertId
    origin: AnchorOrigin
