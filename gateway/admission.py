"""From a normalised request to a reserved one: which expert, may the caller have it, does it fit the limits.

The same `route` serves `/v1/route` and the data path, so both give the same decision. Nothing here talks to a
backend; the only awaits are the engine's second routing stage, under its deadline.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from billing.errors import ExpertNotEntitled, UnpricedExpert
from billing.holds import HoldBook
from billing.ids import EventIdMint
from billing.rating import hold_for
from billing.types import CatalogVersion, EventId, KeyId, RateCard, UsageIntent
from gateway.accounts import Accounts
from gateway.chat import ChatRequest, input_tokens_bound, input_tokens_estimate, newest_human_text
from gateway.context import RequestContext
from gateway.errors import UnknownModel
from gateway.forwarding import output_tokens_cap
from gateway.limits import scopes_of
from gateway.load import LoadWindow
from gateway.types import Principal
from routing_engine.client import EngineClient, Router
from routing_engine.types import (
    Expert,
    ExpertId,
    Replica,
    RouteRequest,
    RouteSource,
    RoutingDecision,
)

AUTO = "auto"
PIN_PREFIX = "expert/"
ROUTING_TEXT_MAX = 4_096
"""Code points of human text that the router is given; it cuts its own window out of them."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The catalog as the data plane uses it: experts, aliases, and the version that was applied."""

    by_id: Mapping[ExpertId, Expert]
    aliases: Mapping[str, str]
    default_expert: ExpertId
    catalog_version: CatalogVersion

    def model_names(self) -> tuple[str, ...]:
        """Return every model name that a client may use, `auto` first."""
        return (AUTO, *self.aliases, *(f"{PIN_PREFIX}{expert_id}" for expert_id in self.by_id))


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that may go to its expert: the hold is taken, the intent is ready to be journalled."""

    intent: UsageIntent
    expert: Expert
    replica: Replica
    decision: RoutingDecision
    rate_card: RateCard

    @property
    def event_id(self) -> EventId:
        """The id under which the request is billed."""
        return self.intent.event_id


class CallerHistory:
    """How many requests each key has made; decides how long the fallback table helps to route it."""

    def __init__(self, counts: Mapping[KeyId, int]) -> None:
        self._counts = dict(counts)

    def count(self, key_id: KeyId) -> int:
        """Return the number of requests so far."""
        return self._counts.get(key_id, 0)

    def add(self, key_id: KeyId) -> None:
        """Count one more."""
        self._counts[key_id] = self._counts.get(key_id, 0) + 1


class Admitter:
    """Routes, checks entitlement, and reserves; holds references to the snapshots in force."""

    def __init__(
        self,
        *,
        experts: Experts,
        accounts: Callable[[], Accounts],
        router: Router,
        engine: EngineClient | None,
        engine_deadline_s: float,
        holds: HoldBook,
        callers: CallerHistory,
        load: LoadWindow,
        mint: EventIdMint,
        clock: Callable[[], datetime],
    ) -> None:
        self.experts = experts
        self._accounts = accounts
        self._router = router
        self._engine = engine
        self._engine_deadline_s = engine_deadline_s
        self._holds = holds
        self._callers = callers
        self._load = load
        self._mint = mint
        self._clock = clock

    async def route(self, context: RequestContext) -> RoutingDecision:
        """Return the decision for a request, without side effects.

        Raises:
            UnknownModel: `model` names nothing that is configured.
            ExpertNotEntitled: an anchor or a pinned model names an expert outside the caller's packages.
        """
        principal, chat = _known(context)
        bound = self._bound_expert(context, chat)
        if bound is not None:
            decision = bound
        else:
            decision = await self._scored(context, chat, principal)
        if principal.entitled is not None and decision.expert_id not in principal.entitled:
            raise ExpertNotEntitled(decision.expert_id, tuple(sorted(principal.entitled)))
        return decision

    def _bound_expert(self, context: RequestContext, chat: ChatRequest) -> RoutingDecision | None:
        """Return the decision of an anchor or a pinned model; None when the request is to be routed."""
        target = self.experts.aliases.get(chat.model, chat.model)
        if target != AUTO:
            pinned = ExpertId(target.removeprefix(PIN_PREFIX))
            if not target.startswith(PIN_PREFIX) or pinned not in self.experts.by_id:
                raise UnknownModel(chat.model, self.experts.model_names())
        anchor = context.anchor.anchor
        if anchor is not None:
            return RoutingDecision(
                expert_id=anchor.expert_id,
                source=RouteSource.ANCHOR,
                score=1.0,
                reason=f"expert anchor in the {anchor.origin.value}",
            )
        if target == AUTO:
            return None
        return RoutingDecision(
            expert_id=pinned, source=RouteSource.PINNED, score=1.0, reason=f"model {chat.model}"
        )

    async def _scored(
        self, context: RequestContext, chat: ChatRequest, principal: Principal
    ) -> RoutingDecision:
        request = RouteRequest(
            text=newest_human_text(chat.messages)[-ROUTING_TEXT_MAX:],
            concept_ids=tuple(match.concept_id for match in context.matches),
            expert_hints=tuple(m.expert_hint for m in context.matches if m.expert_hint is not None),
            caller_request_count=self._callers.count(principal.key_id),
            allowed=principal.entitled,
        )
        loads = self._load.loads(time.perf_counter_ns())
        if self._engine is None:
            return self._router.decide(request, loads)
        return await self._router.decide_escalated(
            request, self._engine, loads, deadline_s=self._engine_deadline_s
        )

    def admit(self, context: RequestContext, decision: RoutingDecision) -> Admission:
        """Reserve the most that the request can cost and return its intent.

        Raises:
            UnpricedExpert: the expert has no rate card in force; never served for nothing by accident.
            BudgetExceeded: a limit of the caller would be overshot.
        """
        principal, chat = _known(context)
        accounts = self._accounts()
        expert = self.experts.by_id[decision.expert_id]
        card = accounts.rate_cards.get(expert.expert_id)
        if card is None:
            raise UnpricedExpert(expert.expert_id)
        now = self._clock()
        size_bytes = _prompt_bytes(context, chat)
        input_max = input_tokens_bound(
            size_bytes, len(chat.messages), expert.prompt_overhead_tokens
        )
        output_max = output_tokens_cap(chat, expert) * chat.choice_count
        event_id = self._mint.mint()
        intent = UsageIntent(
            event_id=event_id,
            request_id=context.request_id,
            customer_id=principal.customer_id,
            project_id=principal.project_id,
            key_id=principal.key_id,
            expert_id=expert.expert_id,
            replica_id=expert.replicas[0].replica_id,
            price_version=card.version,
            catalog_version=self.experts.catalog_version,
            dictionary_version=context.dictionary_version,
            route_source=decision.source.value,
            operation="chat.completions",
            streamed=chat.is_stream,
            occurred_at=now,
            hold=hold_for(card.rates, input_max, output_max),
            input_tokens_max=input_max,
            output_tokens_max=output_max,
            input_tokens_estimate=min(input_max, input_tokens_estimate(size_bytes)),
        )
        self._holds.reserve(event_id, scopes_of(principal, accounts), intent.hold, now)
        self._callers.add(principal.key_id)
        self._load.started(expert.expert_id, time.perf_counter_ns())
        return Admission(intent, expert, expert.replicas[0], decision, card)


def with_replica(admission: Admission, replica: Replica) -> Admission:
    """Return `admission` sent to another replica of the same expert."""
    return replace(
        admission,
        replica=replica,
        intent=replace(admission.intent, replica_id=replica.replica_id),
    )


def _known(context: RequestContext) -> tuple[Principal, ChatRequest]:
    assert context.principal is not None, "Authenticate runs before routing"
    assert context.chat is not None, "the body is read before routing"
    return context.principal, context.chat


def _prompt_bytes(context: RequestContext, chat: ChatRequest) -> int:
    """Return the size of everything that becomes prompt: messages and tool definitions, in bytes."""
    assert context.document is not None, "the body is read before routing"
    size = sum(len(raw) for message in chat.messages for raw in message.values())
    for name in ("tools", "functions", "response_format"):
        raw = context.document.members.get(name)
        if isinstance(raw, msgspec.Raw):
            size += len(raw)
    return size
