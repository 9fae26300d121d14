"""The nouns of routing: experts, replicas, scores, decisions.

Owns the vocabulary that routing decides about. Free of torch; the gateway and `billing` import it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

ExpertId = NewType("ExpertId", str)
"""Identity of an expert, e.g. ``python-algorithm``: lower-case letters, digits and hyphens."""

ReplicaId = NewType("ReplicaId", str)


class RouteSource(StrEnum):
    """What decided a route, in the order in which the sources are asked."""

    ANCHOR = "anchor"
    PINNED = "pinned"
    GATE = "gate"
    BLEND = "blend"
    TABLE = "table"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Replica:
    """One place an expert runs: a base URL (ending before ``/chat/completions``) and a model name.

    `understands_anchors` says that the backend obeys a canonical expert anchor in the prompt.
    `is_trusted` allows pooled keep-alive connections (see docs/adr/0005).
    """

    replica_id: ReplicaId
    base_url: str
    model: str
    api_key: str = field(default="", repr=False)
    understands_anchors: bool = False
    is_trusted: bool = True
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Expert:
    """A named, routable and priced capability; replicas in order of priority are its mirrors."""

    expert_id: ExpertId
    number: int
    domain: str
    name: str
    replicas: tuple[Replica, ...]
    description: str = ""
    output_tokens_max: int = 4096
    prompt_overhead_tokens: int = 256


@dataclass(frozen=True, slots=True)
class ExpertScore:
    """The score of one expert, 0 to 1; the scores of one decision sum to at most 1."""

    expert_id: ExpertId
    score: float


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What the router may look at: the newest human text, matched concepts, and the caller's history.

    `allowed` limits the choice (entitlements); None allows every expert. `caller_request_count` is the
    number of requests this caller has made before this one.
    """

    text: str
    concept_ids: tuple[str, ...] = ()
    expert_hints: tuple[str, ...] = ()
    caller_request_count: int = 0
    allowed: frozenset[ExpertId] | None = None


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """The chosen expert and why.

    `score` is the winner's blended score (1.0 for anchors and pins); `table_share` the weight that the
    fallback table had in the blend; `stage` is 1 (in the gateway), 2 (the engine) or 0 (not scored).
    `candidates` are the best few by score, best first.
    """

    expert_id: ExpertId
    source: RouteSource
    score: float
    stage: int = 0
    table_share: float = 0.0
    candidates: tuple[ExpertScore, ...] = ()
    reason: str = ""
    artefact_version: str = ""
