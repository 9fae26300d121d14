"""Inserts that leave rows alone that are there already, in the dialect of either database.

Owns the difference between the dialects. What was inserted is read from RETURNING: drivers don't report a
dependable row count for such inserts.
"""

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection


def insert_ignoring_duplicates(
    connection: Connection, table: sa.Table
) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT into `table` that skips every row that violates a unique constraint."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    return postgresql.insert(table).on_conflict_do_nothing()


def insert_if_absent(connection: Connection, table: sa.Table, values: Mapping[str, object]) -> bool:
    """Insert one row unless a unique constraint is in its way, and say whether it was inserted."""
    key = next(iter(table.primary_key.columns))
    insert = insert_ignoring_duplicates(connection, table).values(dict(values)).returning(key)
    return connection.execute(insert).first() is not None
