"""Usage events as rows and as canonical text, both ways and without loss.

Owns the mapping only; `billing.store.ledger` decides what is inserted.
"""

import json
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from billing.instants import from_micros, to_micros
from billing.types import (
    CatalogVersion,
    CustomerId,
    EventId,
    KeyId,
    MicroPoints,
    PriceVersion,
    ProjectId,
    Usage,
    UsageEvent,
    UsageIntent,
    UsageOutcome,
    UsageSource,
    UsageStatus,
)
from routing_engine.types import ExpertId, ReplicaId


def event_content(event: UsageEvent) -> str:
    """Return an event as canonical JSON; equal events have equal content."""
    # Field by field: `dataclasses.asdict` copies deeply and takes most of the time of a batch.
    intent, outcome, usage = event.intent, event.outcome, event.outcome.usage
    content: dict[str, dict[str, Any]] = {
        "intent": {name: getattr(intent, name) for name in UsageIntent.__slots__},
        "outcome": {name: getattr(outcome, name) for name in UsageOutcome.__slots__},
    }
    content["intent"]["occurred_at"] = to_micros(intent.occurred_at)
    content["outcome"]["ended_at"] = to_micros(outcome.ended_at)
    content["outcome"]["usage"] = tokens_row(usage)
    return json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def event_from_content(content: str) -> UsageEvent:
    """Return the event whose canonical JSON this is."""
    raw = json.loads(content)
    intent, outcome = raw["intent"], raw["outcome"]
    intent["occurred_at"] = from_micros(intent["occurred_at"])
    outcome["ended_at"] = from_micros(outcome["ended_at"])
    outcome["usage"] = Usage(**outcome["usage"])
    outcome["status"] = UsageStatus(outcome["status"])
    outcome["usage_source"] = UsageSource(outcome["usage_source"])
    outcome["flags"] = tuple(outcome["flags"])
    return UsageEvent(UsageIntent(**intent), UsageOutcome(**outcome))


def tokens_row(usage: Usage) -> dict[str, int]:
    """Return token counts by column."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def event_row(event: UsageEvent, digest: str, now: datetime) -> dict[str, Any]:
    """Return the row of an event in `usage_events`."""
    intent, outcome = event.intent, event.outcome
    row = {name: getattr(intent, name) for name in UsageIntent.__slots__}
    row |= {name: getattr(outcome, name) for name in UsageOutcome.__slots__ if name != "usage"}
    row |= tokens_row(outcome.usage)
    row |= {
        "digest": digest,
        "streamed": int(intent.streamed),
        "flags": json.dumps(outcome.flags),
        "recorded_at": now,
    }
    return row


def event_from_row(row: sa.Row[Any]) -> UsageEvent:
    """Return the event that a row of `usage_events` records."""
    intent = UsageIntent(
        event_id=EventId(row.event_id),
        request_id=row.request_id,
        customer_id=CustomerId(row.customer_id),
        project_id=ProjectId(row.project_id),
        key_id=KeyId(row.key_id),
        expert_id=ExpertId(row.expert_id),
        replica_id=ReplicaId(row.replica_id),
        price_version=PriceVersion(row.price_version),
        catalog_version=CatalogVersion(row.catalog_version),
        dictionary_version=row.dictionary_version,
        route_source=row.route_source,
        operation=row.operation,
        streamed=bool(row.streamed),
        occurred_at=row.occurred_at,
        hold=MicroPoints(row.hold),
        input_tokens_max=row.input_tokens_max,
        output_tokens_max=row.output_tokens_max,
        input_tokens_estimate=row.input_tokens_estimate,
    )
    outcome = UsageOutcome(
        event_id=EventId(row.event_id),
        status=UsageStatus(row.status),
        usage=Usage(
            row.input_tokens, row.output_tokens, row.cached_input_tokens, row.reasoning_tokens
        ),
        usage_source=UsageSource(row.usage_source),
        ended_at=row.ended_at,
        delivered_chunks=row.delivered_chunks,
        delivered_bytes=row.delivered_bytes,
        reported_input_tokens=row.reported_input_tokens,
        reported_output_tokens=row.reported_output_tokens,
        backend_status=row.backend_status,
        time_to_first_byte_us=row.time_to_first_byte_us,
        duration_us=row.duration_us,
        flags=tuple(json.loads(row.flags)),
        billed_calls=row.billed_calls,
    )
    return UsageEvent(intent, outcome)
