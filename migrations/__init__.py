"""Alembic revisions of the billing store; run by `expertgate db upgrade`."""
