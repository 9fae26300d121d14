"""What the gateway uses of routing: the first stage in process, and the engine's second stage over HTTP.

Free of torch. Reads artefacts once at load; a decision touches no file, takes no lock and logs nothing.
"""

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Protocol, cast

import aiohttp
import msgspec

from routing_engine.artefacts import GATE_FILE, TABLE_FILE
from routing_engine.decision import Policy, Scores, decide, has_human_text, is_unsure
from routing_engine.errors import ArtefactError, EngineUnavailable
from routing_engine.features import features_of
from routing_engine.gate import BUCKETS, Floats, Gate, load_gate
from routing_engine.table import FallbackTable, load_table
from routing_engine.types import (
    Expert,
    ExpertId,
    ExpertScore,
    RouteRequest,
    RouteSource,
    RoutingDecision,
)

NEAR_MATCHES = 3
NO_LOAD: Mapping[ExpertId, float] = {}

NO_ARTEFACTS = "none"
"""The artefact version of a router that has neither gate nor table."""

SURE_FROM = 0.5
"""Without gate and table, the second stage is believed from this score on."""

ANSWER_BYTES_MAX = 1 << 16
"""Longest decision of an engine that is read."""


def near_matches(expert_id: str, known: Sequence[ExpertId]) -> tuple[str, ...]:
    """Return up to three registered ids that look like `expert_id`, the closest first."""
    return tuple(difflib.get_close_matches(expert_id.lower(), known, n=NEAR_MATCHES, cutoff=0.6))


class SecondStage(Protocol):
    """Whoever answers for the second routing stage."""

    async def route(self, request: RouteRequest, *, deadline_s: float) -> RoutingDecision:
        """Return the second stage's decision.

        Raises:
            EngineUnavailable: there was none in time.
        """


class Router:
    """The first routing stage: gate and fallback table over the experts of one catalog."""

    def __init__(
        self,
        gate: Gate | None,
        table: FallbackTable | None,
        experts: Sequence[Expert],
        default_expert: ExpertId,
    ) -> None:
        self._gate, self._table = gate, table
        self._known = frozenset(expert.expert_id for expert in experts)
        self._default_expert = default_expert
        table_abstains = table.facts.abstain_below if table else SURE_FROM
        self._policy = Policy(
            gate_abstain_below=gate.facts.abstain_below if gate else table_abstains,
            table_abstain_below=table_abstains,
        )
        versions = [each.version for each in (gate, table) if each is not None]
        self.artefact_version = "+".join(versions) or NO_ARTEFACTS

    @classmethod
    def load(cls, directory: Path, experts: Sequence[Expert], default_expert: ExpertId) -> "Router":
        """Return a router with the artefacts in `directory`; a missing one is done without.

        Raises:
            ArtefactError: an artefact is there but damaged, of other features, or knows none of the experts.
        """
        gate_path = directory / GATE_FILE
        gate = load_gate(gate_path) if gate_path.exists() else None
        table = load_table(directory) if (directory / TABLE_FILE).exists() else None
        known = {expert.expert_id for expert in experts}
        for artefact, path in ((gate, gate_path), (table, directory / TABLE_FILE)):
            if artefact is not None and not known.intersection(artefact.facts.labels):
                raise ArtefactError(
                    str(path), "knows none of the configured experts; train it on your own prompts"
                )
        return cls(gate, table, experts, default_expert)

    def decide(
        self, request: RouteRequest, load: Mapping[ExpertId, float] = NO_LOAD
    ) -> RoutingDecision:
        """Return the first stage's decision."""
        return self._decide(*self.scores(request), request, load)

    def scores(self, request: RouteRequest) -> tuple[Scores | None, Scores | None]:
        """Return the raw probabilities of gate and table by configured expert; None for a missing one."""
        if self._gate is None and self._table is None:
            return None, None
        buckets, weights = features_of(request.text, request.concept_ids, bucket_count=BUCKETS)
        gate, table = self._gate, self._table
        return (
            self._named(gate.scores(buckets, weights), gate.facts.labels) if gate else None,
            self._named(table.scores(buckets, weights), table.facts.labels) if table else None,
        )

    async def decide_escalated(
        self,
        request: RouteRequest,
        engine: SecondStage,
        load: Mapping[ExpertId, float] = NO_LOAD,
        *,
        deadline_s: float,
    ) -> RoutingDecision:
        """Return the first stage's decision, or the engine's when the first stage is unsure.

        An engine that is late, down or without an opinion of its own changes nothing.
        """
        gate, table = self.scores(request)
        first = self._decide(gate, table, request, load)
        # A busy expert's damped score says nothing about how sure the first stage is.
        unloaded = self._decide(gate, table, request, NO_LOAD) if load else first
        if not has_human_text(request.text) or not is_unsure(unloaded, self._policy):
            return first
        try:
            second = await engine.route(request, deadline_s=deadline_s)
        except EngineUnavailable:
            return first
        is_usable = second.expert_id in self._known and (
            request.allowed is None or second.expert_id in request.allowed
        )
        if not is_usable or second.score < self._policy.gate_abstain_below:
            return first
        return replace(
            second,
            source=RouteSource.GATE,
            stage=2,
            reason=f"second stage of the gate; the first was unsure ({first.score:.2f})",
        )

    def _decide(
        self,
        gate: Scores | None,
        table: Scores | None,
        request: RouteRequest,
        load: Mapping[ExpertId, float],
    ) -> RoutingDecision:
        if request.allowed is not None and not request.allowed <= self._known:
            # A package may still name an expert that the catalog has lost: nobody can be sent there.
            request = replace(request, allowed=request.allowed & self._known)
        return decide(
            gate,
            table,
            request,
            policy=self._policy,
            load=load,
            default_expert=self._default_expert,
            artefact_version=self.artefact_version,
        )

    def _named(self, scores: Floats, labels: Sequence[str]) -> Scores:
        values: list[float] = scores.tolist()
        named = cast("dict[ExpertId, float]", dict(zip(labels, values, strict=True)))
        if self._known.issuperset(labels):
            return named
        return {label: score for label, score in named.items() if label in self._known}


_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Candidate(msgspec.Struct):
    expert_id: str
    score: _Share


class _EngineAnswer(msgspec.Struct):
    expert_id: str
    score: _Share
    candidates: list[_Candidate] = []
    artefact_version: str = ""


class EngineClient:
    """Asks an engine's ``/v1/route`` under a deadline.

    Args:
        session: an aiohttp session that its maker closes.
        base_url: the engine's base URL, without a path.
    """

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._url = f"{base_url.rstrip('/')}/v1/route"

    async def route(self, request: RouteRequest, *, deadline_s: float) -> RoutingDecision:
        """Return the engine's decision.

        Raises:
            EngineUnavailable: no connection, no answer within `deadline_s`, or not a decision.
        """
        body = msgspec.json.encode(
            {
                "text": request.text,
                "concept_ids": request.concept_ids,
                "expert_hints": request.expert_hints,
                "allowed": None if request.allowed is None else sorted(request.allowed),
            }
        )
        try:
            async with asyncio.timeout(deadline_s):
                async with self._session.post(
                    self._url,
                    data=body,
                    headers={"Content-Type": "application/json"},
                    allow_redirects=False,
                ) as response:
                    content = await _read_bounded(response.content)
            if response.status != 200:
                raise EngineUnavailable(f"the engine answered with status {response.status}")
            answer = msgspec.json.decode(content, type=_EngineAnswer)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as exc:
            raise EngineUnavailable(f"no decision from the engine: {type(exc).__name__}") from exc
        return RoutingDecision(
            expert_id=ExpertId(answer.expert_id),
            source=RouteSource.GATE,
            score=answer.score,
            stage=2,
            candidates=tuple(
                ExpertScore(ExpertId(each.expert_id), each.score) for each in answer.candidates
            ),
            artefact_version=answer.artefact_version,
        )


async def _read_bounded(stream: aiohttp.StreamReader) -> bytes:
    """Return a body to its end; one read may return less than what is still coming."""
    content = bytearray()
    while piece := await stream.read(ANSWER_BYTES_MAX):
        content += piece
        if len(content) > ANSWER_BYTES_MAX:
            raise EngineUnavailable(f"the engine's answer is longer than {ANSWER_BYTES_MAX} bytes")
    return bytes(content)
