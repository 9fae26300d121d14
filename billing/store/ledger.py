"""Usage into the books: events, their rated lines and their balanced ledger entries, in one transaction.

Owns ingestion (`LedgerStore` of billing/ports.py), the quarantine and what is derived from recorded usage.
The price is that of the version named by the event, which was in force when the event occurred. An event is
in the books once, whoever delivers it how often: everything hangs on the insert of its id.

Accounts of the micro-point ledger: `accrued/<customer>` (used, not yet invoiced), `expert/<expert>`.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from billing.rating import rate
from billing.store import schema
from billing.store.engine import Database
from billing.store.event_rows import (
    event_content,
    event_from_content,
    event_from_row,
    event_row,
    tokens_row,
)
from billing.store.inserts import insert_if_absent, insert_ignoring_duplicates
from billing.types import (
    CustomerId,
    EventId,
    KeyId,
    MicroPoints,
    RatedUsage,
    Rates,
    UsageEvent,
)

BATCH_EVENTS_MAX = 1_000
"""Events per statement; larger batches are split inside the same transaction."""

PAGE_EVENTS = 1_000
"""Events read at once when usage is listed."""

MICROPOINTS_UNIT = "micropoints"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QuarantinedEvent:
    """An event that could not be booked: why, and where it came from."""

    event_id: EventId
    reason: str
    journal_id: str
    position: int
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class _Arrival:
    event: UsageEvent
    content: str
    digest: str


class SqlLedgerStore:
    """`LedgerStore` on SQLite or PostgreSQL; every method is one transaction."""

    def __init__(self, database: Database, clock: Callable[[], datetime] | None = None) -> None:
        self._database = database
        self._clock = clock or (lambda: datetime.now(UTC))

    def record_events(
        self, events: Sequence[UsageEvent], *, journal_id: str, position: int
    ) -> Sequence[EventId]:
        """Insert events that aren't in the books yet, with lines and ledger entries, and move the cursor.

        Returns the ids that were new, in the order given. An id that is there with the same content is
        ignored; one with other content, an unpriced expert or an unknown customer is quarantined, logged,
        and the rest goes on. The cursor never moves back.

        Raises:
            StoreUnavailable: nothing was recorded, or the commit's fate is unknown; deliver again.
        """
        now = self._clock()
        with self._database.writing() as connection:
            new: list[EventId] = []
            for start in range(0, len(events), BATCH_EVENTS_MAX):
                batch = events[start : start + BATCH_EVENTS_MAX]
                new += _record_batch(connection, batch, journal_id, position, now)
            _move_cursor(connection, journal_id, position, now)
        return new

    def cursor(self, journal_id: str) -> int:
        """Return the position up to which a journal was shipped (0 when never)."""
        query = sa.select(schema.journal_cursors.c.position).where(
            schema.journal_cursors.c.journal_id == journal_id
        )
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar() or 0)

    def spent_since(self, start: datetime) -> Sequence[tuple[CustomerId, KeyId, MicroPoints]]:
        """Return what each key spent on events that occurred at or after `start`."""
        lines = schema.usage_lines.c
        query = (
            sa.select(lines.customer_id, lines.key_id, sa.func.sum(lines.micropoints))
            .where(lines.occurred_at >= start)
            .group_by(lines.customer_id, lines.key_id)
            .order_by(lines.customer_id, lines.key_id)
        )
        with self._database.reading() as connection:
            return [
                (CustomerId(customer), KeyId(key), MicroPoints(int(spent)))
                for customer, key, spent in connection.execute(query)
            ]

    def request_counts(self) -> Mapping[KeyId, int]:
        """Return how many requests each key has made, as the books know them."""
        events = schema.usage_events.c
        query = sa.select(events.key_id, sa.func.count()).group_by(events.key_id)
        with self._database.reading() as connection:
            return {KeyId(key): int(count) for key, count in connection.execute(query)}

    def quarantined(self) -> Sequence[QuarantinedEvent]:
        """Return the events that could not be booked, oldest first."""
        table = schema.event_conflicts
        query = sa.select(table).order_by(table.c.recorded_at, table.c.event_id, table.c.digest)
        with self._database.reading() as connection:
            return [
                QuarantinedEvent(
                    EventId(row.event_id),
                    row.reason,
                    row.journal_id,
                    row.position,
                    row.recorded_at,
                )
                for row in connection.execute(query)
            ]

    def retry_quarantined(self) -> Sequence[EventId]:
        """Book quarantined events whose reason is gone (price or customer now known); return their ids."""
        table = schema.event_conflicts
        query = sa.select(table).where(table.c.reason != "conflict").order_by(table.c.recorded_at)
        with self._database.writing() as connection:
            new: list[EventId] = []
            for row in connection.execute(query).all():
                event = event_from_content(row.content)
                booked = _record_batch(
                    connection, [event], row.journal_id, row.position, self._clock()
                )
                new += booked
                if booked:
                    connection.execute(
                        sa.delete(table).where(
                            table.c.event_id == row.event_id, table.c.digest == row.digest
                        )
                    )
        return new

    def usage(
        self,
        *,
        customer_id: CustomerId | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> Iterator[RatedUsage]:
        """Yield recorded usage with its price, in order of occurrence, in pages; `[start, end)`."""
        events, lines = schema.usage_events, schema.usage_lines
        micropoints = (
            sa.select(sa.func.coalesce(sa.func.sum(lines.c.micropoints), 0))
            .where(lines.c.event_id == events.c.event_id)
            .scalar_subquery()
        )
        query = sa.select(events, micropoints.label("micropoints"))
        if customer_id is not None:
            query = query.where(events.c.customer_id == customer_id)
        if start is not None:
            query = query.where(events.c.occurred_at >= start)
        if end is not None:
            query = query.where(events.c.occurred_at < end)
        query = query.order_by(events.c.occurred_at, events.c.event_id).limit(PAGE_EVENTS)
        after = None
        while True:
            page = query
            if after is not None:
                place = sa.tuple_(events.c.occurred_at, events.c.event_id)
                page = query.where(place > sa.tuple_(*after))
            with self._database.reading() as connection:
                rows = connection.execute(page).all()
            for row in rows:
                yield RatedUsage(event_from_row(row), MicroPoints(int(row.micropoints)))
            if len(rows) < PAGE_EVENTS:
                return
            after = (
                sa.literal(rows[-1].occurred_at, schema.Instant()),
                sa.literal(rows[-1].event_id, sa.Text()),
            )


def _record_batch(
    connection: Connection,
    events: Sequence[UsageEvent],
    journal_id: str,
    position: int,
    now: datetime,
) -> list[EventId]:
    rates = _rates_of(connection, events)
    customers = _known_customers(connection, events)
    arrivals: dict[EventId, _Arrival] = {}
    quarantine: list[tuple[_Arrival, str]] = []
    for event in events:
        content = event_content(event)
        arrival = _Arrival(event, content, sha256(content.encode()).hexdigest())
        known = arrivals.get(event.intent.event_id)
        if known is not None:
            if known.digest != arrival.digest:
                quarantine.append((arrival, "conflict"))
        elif event.intent.customer_id not in customers:
            quarantine.append((arrival, "unknown_customer"))
        elif (event.intent.expert_id, event.intent.price_version) not in rates:
            quarantine.append((arrival, "unpriced"))
        else:
            arrivals[event.intent.event_id] = arrival
    inserted = _insert_events(connection, list(arrivals.values()), now)
    new = [arrival for event_id, arrival in arrivals.items() if event_id in inserted]
    old = [arrival for event_id, arrival in arrivals.items() if event_id not in inserted]
    quarantine += [(arrival, "conflict") for arrival in _different(connection, old)]
    _insert_lines(connection, new, rates, now)
    _quarantine(connection, quarantine, journal_id, position, now)
    return [arrival.event.intent.event_id for arrival in new]


def _rates_of(connection: Connection, events: Iterable[UsageEvent]) -> dict[tuple[str, int], Rates]:
    experts = sorted({event.intent.expert_id for event in events})
    table = schema.price_versions
    query = sa.select(table).where(table.c.expert_id.in_(experts))
    return {
        (row.expert_id, row.version): Rates(
            row.per_call, row.input_1k, row.output_1k, row.cached_input_1k, row.reasoning_1k
        )
        for row in connection.execute(query)
    }


def _known_customers(connection: Connection, events: Iterable[UsageEvent]) -> set[str]:
    asked = sorted({event.intent.customer_id for event in events})
    column = schema.customers.c.customer_id
    return set(connection.execute(sa.select(column).where(column.in_(asked))).scalars())


def _insert_events(connection: Connection, arrivals: Sequence[_Arrival], now: datetime) -> set[str]:
    if not arrivals:
        return set()
    insert = insert_ignoring_duplicates(connection, schema.usage_events)
    rows = [event_row(arrival.event, arrival.digest, now) for arrival in arrivals]
    returned = connection.execute(insert.returning(schema.usage_events.c.event_id), rows)
    return set(returned.scalars())


def _different(connection: Connection, arrivals: Sequence[_Arrival]) -> list[_Arrival]:
    if not arrivals:
        return []
    table = schema.usage_events
    ids = [arrival.event.intent.event_id for arrival in arrivals]
    query = sa.select(table.c.event_id, table.c.digest).where(table.c.event_id.in_(ids))
    digests = {row.event_id: row.digest for row in connection.execute(query)}
    return [item for item in arrivals if digests[item.event.intent.event_id] != item.digest]


def _insert_lines(
    connection: Connection,
    arrivals: Sequence[_Arrival],
    rates: dict[tuple[str, int], Rates],
    now: datetime,
) -> None:
    lines: list[dict[str, Any]] = []
    transfers: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    for arrival in arrivals:
        intent, outcome = arrival.event.intent, arrival.event.outcome
        cost = rate(
            outcome.usage, rates[intent.expert_id, intent.price_version], outcome.billed_calls
        )
        lines.append(
            {
                "event_id": intent.event_id,
                "line_index": 0,
                "customer_id": intent.customer_id,
                "key_id": intent.key_id,
                "occurred_at": intent.occurred_at,
                "expert_id": intent.expert_id,
                "price_version": intent.price_version,
                **tokens_row(outcome.usage),
                "billed_calls": outcome.billed_calls,
                "micropoints": cost,
                "invoice_id": None,
                "covered_micropoints": 0,
            }
        )
        if cost:
            transfer_id = f"usage/{intent.event_id}"
            transfers.append(
                {
                    "transfer_id": transfer_id,
                    "kind": "usage",
                    "unit": MICROPOINTS_UNIT,
                    "recorded_at": now,
                }
            )
            for index, (account, amount) in enumerate(
                (
                    (f"accrued/{intent.customer_id}", cost),
                    (f"expert/{intent.expert_id}", -cost),
                )
            ):
                entries.append(
                    {
                        "transfer_id": transfer_id,
                        "entry_index": index,
                        "account": account,
                        "amount": amount,
                    }
                )
    if lines:
        connection.execute(sa.insert(schema.usage_lines), lines)
    if transfers:
        connection.execute(sa.insert(schema.ledger_transfers), transfers)
        connection.execute(sa.insert(schema.ledger_entries), entries)


def _quarantine(
    connection: Connection,
    items: Sequence[tuple[_Arrival, str]],
    journal_id: str,
    position: int,
    now: datetime,
) -> None:
    if not items:
        return
    rows = [
        {
            "event_id": arrival.event.intent.event_id,
            "digest": arrival.digest,
            "reason": reason,
            "content": arrival.content,
            "journal_id": journal_id,
            "position": position,
            "recorded_at": now,
        }
        for arrival, reason in items
    ]
    connection.execute(insert_ignoring_duplicates(connection, schema.event_conflicts), rows)
    for row in rows:
        _logger.error(
            "usage_event_quarantined",
            extra={"event_id": row["event_id"], "reason": row["reason"], "journal_id": journal_id},
        )


def _move_cursor(connection: Connection, journal_id: str, position: int, now: datetime) -> None:
    table = schema.journal_cursors
    row = {"journal_id": journal_id, "position": position, "recorded_at": now}
    if insert_if_absent(connection, table, row):
        return
    connection.execute(
        sa.update(table)
        .where(table.c.journal_id == journal_id, table.c.position < position)
        .values(position=position, recorded_at=now)
    )
