"""Sums for reconciliation, taken from the raw tables by queries that nothing else uses.

Owns the reading only; what the numbers must satisfy is `billing.reconcile`'s. Written apart from the queries
that make invoices, so that one mistake can't hide in both.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from billing.reconcile import (
    BookSums,
    ExpertSum,
    InvoiceSums,
    LineSums,
)
from billing.store.engine import Database

FINDINGS_MAX = 100
"""Bound on ids listed per finding; the counts are exact."""

_EVENTS_WITHOUT_LINES = """
SELECT e.event_id FROM usage_events e
WHERE NOT EXISTS (SELECT 1 FROM usage_lines l WHERE l.event_id = e.event_id)
ORDER BY e.event_id LIMIT :limit
"""
_UNBALANCED = """
SELECT t.transfer_id FROM ledger_transfers t LEFT JOIN ledger_entries n ON n.transfer_id = t.transfer_id
GROUP BY t.transfer_id HAVING COALESCE(SUM(n.amount), 1) <> 0
ORDER BY t.transfer_id LIMIT :limit
"""
_BALANCES = """
SELECT n.account, t.unit, SUM(n.amount) FROM ledger_entries n
JOIN ledger_transfers t ON t.transfer_id = n.transfer_id
GROUP BY n.account, t.unit
"""
_RERATED = """
SELECT e.expert_id, SUM(
  (e.input_tokens - e.cached_input_tokens) * p.input_1k + e.cached_input_tokens * p.cached_input_1k
  + (e.output_tokens - e.reasoning_tokens) * p.output_1k + e.reasoning_tokens * p.reasoning_1k
  + e.billed_calls * p.per_call * 1000)
FROM usage_events e
JOIN price_versions p ON p.expert_id = e.expert_id AND p.version = e.price_version
GROUP BY e.expert_id
"""
_RATED = "SELECT expert_id, SUM(micropoints) FROM usage_lines GROUP BY expert_id"
_OPEN = """
SELECT customer_id, SUM(micropoints) FROM usage_lines WHERE invoice_id IS NULL GROUP BY customer_id
"""
_MARKED = """
SELECT invoice_id, expert_id, SUM(micropoints), SUM(covered_micropoints) FROM usage_lines
WHERE invoice_id IS NOT NULL GROUP BY invoice_id, expert_id
"""
_INVOICED = """
SELECT l.invoice_id, l.expert_id, SUM(l.micropoints), SUM(l.covered_micropoints)
FROM invoice_lines l WHERE l.kind = 'usage' GROUP BY l.invoice_id, l.expert_id
"""
_INVOICES = """
SELECT i.invoice_id, i.number, i.customer_id, i.status, i.currency, i.total_minor_units, i.point_price_micros,
  i.surcharge_permille,
  (SELECT COALESCE(SUM(d.micropoints), 0) FROM allowance_draws d WHERE d.invoice_id = i.invoice_id) AS drawn
FROM invoices i ORDER BY i.number
"""
_INVOICE_LINES = """
SELECT invoice_id, kind, amount_minor_units, micropoints, covered_micropoints FROM invoice_lines
ORDER BY invoice_id, line_index
"""
_QUARANTINED = "SELECT reason, COUNT(*) FROM event_conflicts GROUP BY reason ORDER BY reason"
_COUNTERS = "SELECT series, last_number FROM invoice_counters ORDER BY series"
_COUNT_EVENTS = "SELECT COUNT(*) FROM usage_events"


def read_book_sums(database: Database) -> BookSums:
    """Return everything reconciliation compares, from one snapshot."""
    with database.reading() as connection:
        if not database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        lines: dict[str, list[LineSums]] = {}
        for row in _rows(connection, _INVOICE_LINES):
            lines.setdefault(row[0], []).append(LineSums(row[1], *(int(item) for item in row[2:])))
        invoices = tuple(
            InvoiceSums(
                invoice_id=row.invoice_id,
                number=row.number,
                customer_id=row.customer_id,
                is_void=row.status == "void",
                currency=row.currency,
                total_minor_units=row.total_minor_units,
                point_price_micros=row.point_price_micros,
                surcharge_permille=row.surcharge_permille,
                drawn_micropoints=int(row.drawn),
                lines=tuple(lines.get(row.invoice_id, ())),
            )
            for row in _rows(connection, _INVOICES)
        )
        return BookSums(
            event_count=int(_rows(connection, _COUNT_EVENTS)[0][0]),
            events_without_lines=_ids(connection, _EVENTS_WITHOUT_LINES),
            unbalanced_transfers=_ids(connection, _UNBALANCED),
            balances={(row[0], row[1]): int(row[2]) for row in _rows(connection, _BALANCES)},
            rerated=_by_key(connection, _RERATED),
            rated=_by_key(connection, _RATED),
            open_by_customer=_by_key(connection, _OPEN),
            marked=_expert_sums(connection, _MARKED),
            invoiced=_expert_sums(connection, _INVOICED),
            invoices=invoices,
            quarantined=_by_key(connection, _QUARANTINED),
            counters=_by_key(connection, _COUNTERS),
        )


def _rows(connection: Connection, query: str, **values: int) -> Sequence[Any]:
    return connection.execute(sa.text(query), values).all()


def _ids(connection: Connection, query: str) -> tuple[str, ...]:
    return tuple(row[0] for row in _rows(connection, query, limit=FINDINGS_MAX))


def _by_key(connection: Connection, query: str) -> dict[str, int]:
    return {row[0]: int(row[1]) for row in _rows(connection, query)}


def _expert_sums(connection: Connection, query: str) -> dict[tuple[str, str], ExpertSum]:
    return {
        (row[0], row[1]): ExpertSum(int(row[2]), int(row[3])) for row in _rows(connection, query)
    }
