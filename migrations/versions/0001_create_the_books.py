"""Create the books: accounts, catalog, usage, ledger, invoices.

Revision 0001, after nothing.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Instants too are integers here: a revision must not change when a type of the application does.
INTEGER = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("entry_id", INTEGER, nullable=False),
        sa.Column("recorded_at", INTEGER, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("record_kind", sa.Text(), nullable=False),
        sa.Column("record_id", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("entry_id", name=op.f("pk_audit_log")),
        sqlite_strict=True,
    )
    op.create_table(
        "catalog_versions",
        sa.Column("version", INTEGER, autoincrement=False, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("applied_at", INTEGER, nullable=False),
        sa.CheckConstraint("version > 0", name=op.f("ck_catalog_versions_version_positive")),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_catalog_versions")),
        sqlite_strict=True,
    )
    op.create_table(
        "customers",
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("point_price_micros", INTEGER, nullable=False),
        sa.Column("sla_tier_id", sa.Text(), nullable=False),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.Column("budget", INTEGER, nullable=True),
        sa.Column("created_at", INTEGER, nullable=False),
        sa.CheckConstraint("budget >= 0", name=op.f("ck_customers_budget_not_negative")),
        sa.CheckConstraint("length(currency) = 3", name=op.f("ck_customers_currency_is_iso4217")),
        sa.CheckConstraint(
            "point_price_micros >= 0", name=op.f("ck_customers_point_price_micros_not_negative")
        ),
        sa.PrimaryKeyConstraint("customer_id", name=op.f("pk_customers")),
        sqlite_strict=True,
    )
    op.create_table(
        "epochs",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_epochs")),
        sqlite_strict=True,
    )
    op.create_table(
        "event_conflicts",
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("journal_id", sa.Text(), nullable=False),
        sa.Column("position", INTEGER, nullable=False),
        sa.Column("recorded_at", INTEGER, nullable=False),
        sa.CheckConstraint(
            "reason IN ('conflict', 'unpriced', 'unknown_customer')",
            name=op.f("ck_event_conflicts_reason_known"),
        ),
        sa.PrimaryKeyConstraint("event_id", "digest", name=op.f("pk_event_conflicts")),
        sqlite_strict=True,
    )
    op.create_table(
        "invoice_counters",
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("last_number", INTEGER, nullable=False),
        sa.CheckConstraint(
            "last_number > 0", name=op.f("ck_invoice_counters_last_number_positive")
        ),
        sa.PrimaryKeyConstraint("series", name=op.f("pk_invoice_counters")),
        sqlite_strict=True,
    )
    op.create_table(
        "journal_cursors",
        sa.Column("journal_id", sa.Text(), nullable=False),
        sa.Column("position", INTEGER, nullable=False),
        sa.Column("recorded_at", INTEGER, nullable=False),
        sa.CheckConstraint("position >= 0", name=op.f("ck_journal_cursors_position_not_negative")),
        sa.PrimaryKeyConstraint("journal_id", name=op.f("pk_journal_cursors")),
        sqlite_strict=True,
    )
    op.create_table(
        "ledger_transfers",
        sa.Column("transfer_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("recorded_at", INTEGER, nullable=False),
        sa.CheckConstraint(
            "kind IN ('usage', 'invoice', 'void')", name=op.f("ck_ledger_transfers_kind_known")
        ),
        sa.PrimaryKeyConstraint("transfer_id", name=op.f("pk_ledger_transfers")),
        sqlite_strict=True,
    )
    op.create_table(
        "price_versions",
        sa.Column("expert_id", sa.Text(), nullable=False),
        sa.Column("version", INTEGER, nullable=False),
        sa.Column("effective_from", INTEGER, nullable=False),
        sa.Column("per_call", INTEGER, nullable=False),
        sa.Column("input_1k", INTEGER, nullable=False),
        sa.Column("output_1k", INTEGER, nullable=False),
        sa.Column("cached_input_1k", INTEGER, nullable=False),
        sa.Column("reasoning_1k", INTEGER, nullable=False),
        sa.CheckConstraint(
            "cached_input_1k >= 0", name=op.f("ck_price_versions_cached_input_1k_not_negative")
        ),
        sa.CheckConstraint("input_1k >= 0", name=op.f("ck_price_versions_input_1k_not_negative")),
        sa.CheckConstraint("output_1k >= 0", name=op.f("ck_price_versions_output_1k_not_negative")),
        sa.CheckConstraint("per_call >= 0", name=op.f("ck_price_versions_per_call_not_negative")),
        sa.CheckConstraint(
            "reasoning_1k >= 0", name=op.f("ck_price_versions_reasoning_1k_not_negative")
        ),
        sa.CheckConstraint("version > 0", name=op.f("ck_price_versions_version_positive")),
        sa.PrimaryKeyConstraint("expert_id", "version", name=op.f("pk_price_versions")),
        sa.UniqueConstraint(
            "expert_id", "effective_from", name=op.f("uq_price_versions_expert_id_effective_from")
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "usage_events",
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("expert_id", sa.Text(), nullable=False),
        sa.Column("replica_id", sa.Text(), nullable=False),
        sa.Column("price_version", INTEGER, nullable=False),
        sa.Column("catalog_version", INTEGER, nullable=False),
        sa.Column("dictionary_version", INTEGER, nullable=False),
        sa.Column("route_source", sa.Text(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("streamed", INTEGER, nullable=False),
        sa.Column("occurred_at", INTEGER, nullable=False),
        sa.Column("hold", INTEGER, nullable=False),
        sa.Column("input_tokens_max", INTEGER, nullable=False),
        sa.Column("output_tokens_max", INTEGER, nullable=False),
        sa.Column("input_tokens_estimate", INTEGER, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("input_tokens", INTEGER, nullable=False),
        sa.Column("output_tokens", INTEGER, nullable=False),
        sa.Column("cached_input_tokens", INTEGER, nullable=False),
        sa.Column("reasoning_tokens", INTEGER, nullable=False),
        sa.Column("usage_source", sa.Text(), nullable=False),
        sa.Column("ended_at", INTEGER, nullable=False),
        sa.Column("delivered_chunks", INTEGER, nullable=False),
        sa.Column("delivered_bytes", INTEGER, nullable=False),
        sa.Column("reported_input_tokens", INTEGER, nullable=True),
        sa.Column("reported_output_tokens", INTEGER, nullable=True),
        sa.Column("backend_status", INTEGER, nullable=False),
        sa.Column("time_to_first_byte_us", INTEGER, nullable=False),
        sa.Column("duration_us", INTEGER, nullable=False),
        sa.Column("flags", sa.Text(), nullable=False),
        sa.Column("billed_calls", INTEGER, nullable=False),
        sa.Column("recorded_at", INTEGER, nullable=False),
        sa.CheckConstraint(
            "billed_calls >= 0", name=op.f("ck_usage_events_billed_calls_not_negative")
        ),
        sa.CheckConstraint(
            "cached_input_tokens <= input_tokens",
            name=op.f("ck_usage_events_cached_is_part_of_input"),
        ),
        sa.CheckConstraint(
            "cached_input_tokens >= 0",
            name=op.f("ck_usage_events_cached_input_tokens_not_negative"),
        ),
        sa.CheckConstraint("hold >= 0", name=op.f("ck_usage_events_hold_not_negative")),
        sa.CheckConstraint(
            "input_tokens >= 0", name=op.f("ck_usage_events_input_tokens_not_negative")
        ),
        sa.CheckConstraint(
            "output_tokens >= 0", name=op.f("ck_usage_events_output_tokens_not_negative")
        ),
        sa.CheckConstraint(
            "reasoning_tokens <= output_tokens",
            name=op.f("ck_usage_events_reasoning_is_part_of_output"),
        ),
        sa.CheckConstraint(
            "reasoning_tokens >= 0", name=op.f("ck_usage_events_reasoning_tokens_not_negative")
        ),
        sa.CheckConstraint("streamed IN (0, 1)", name=op.f("ck_usage_events_streamed_is_boolean")),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_usage_events")),
        sqlite_strict=True,
    )
    op.create_index(
        op.f("ix_usage_events_customer_id_occurred_at"),
        "usage_events",
        ["customer_id", "occurred_at"],
        unique=False,
    )
    op.create_table(
        "invoices",
        sa.Column("invoice_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("customer_name", sa.Text(), nullable=False),
        sa.Column("period_label", sa.Text(), nullable=False),
        sa.Column("period_start", INTEGER, nullable=False),
        sa.Column("period_end", INTEGER, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("total_minor_units", INTEGER, nullable=False),
        sa.Column("issued_on", sa.Text(), nullable=False),
        sa.Column("finalized_at", INTEGER, nullable=False),
        sa.Column("voided_at", INTEGER, nullable=True),
        sa.Column("point_price_micros", INTEGER, nullable=False),
        sa.Column("sla_tier_id", sa.Text(), nullable=False),
        sa.Column("surcharge_permille", INTEGER, nullable=False),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "(status = 'void') = (voided_at IS NOT NULL)", name=op.f("ck_invoices_void_has_instant")
        ),
        sa.CheckConstraint(
            "status IN ('finalised', 'void')", name=op.f("ck_invoices_status_known")
        ),
        sa.CheckConstraint("period_end > period_start", name=op.f("ck_invoices_period_not_empty")),
        sa.CheckConstraint(
            "point_price_micros >= 0", name=op.f("ck_invoices_point_price_micros_not_negative")
        ),
        sa.CheckConstraint(
            "surcharge_permille >= 0", name=op.f("ck_invoices_surcharge_permille_not_negative")
        ),
        sa.ForeignKeyConstraint(
            ["customer_id"],
            ["customers.customer_id"],
            name=op.f("fk_invoices_customer_id_customers"),
        ),
        sa.PrimaryKeyConstraint("invoice_id", name=op.f("pk_invoices")),
        sa.UniqueConstraint("number", name=op.f("uq_invoices_number")),
        sqlite_strict=True,
    )
    op.create_index(
        "uq_invoices_open_period",
        "invoices",
        ["customer_id", "period_start"],
        unique=True,
        sqlite_where=sa.text("status = 'finalised'"),
        postgresql_where=sa.text("status = 'finalised'"),
    )
    op.create_table(
        "ledger_entries",
        sa.Column("transfer_id", sa.Text(), nullable=False),
        sa.Column("entry_index", INTEGER, nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("amount", INTEGER, nullable=False),
        sa.CheckConstraint("amount <> 0", name=op.f("ck_ledger_entries_amount_not_zero")),
        sa.ForeignKeyConstraint(
            ["transfer_id"],
            ["ledger_transfers.transfer_id"],
            name=op.f("fk_ledger_entries_transfer_id_ledger_transfers"),
        ),
        sa.PrimaryKeyConstraint("transfer_id", "entry_index", name=op.f("pk_ledger_entries")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_ledger_entries_account"), "ledger_entries", ["account"], unique=False)
    op.create_table(
        "projects",
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", INTEGER, nullable=False),
        sa.ForeignKeyConstraint(
            ["customer_id"],
            ["customers.customer_id"],
            name=op.f("fk_projects_customer_id_customers"),
        ),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_projects")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_projects_customer_id"), "projects", ["customer_id"], unique=False)
    op.create_table(
        "subscriptions",
        sa.Column("subscription_id", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("package_id", sa.Text(), nullable=False),
        sa.Column("started_at", INTEGER, nullable=False),
        sa.Column("ended_at", INTEGER, nullable=True),
        sa.CheckConstraint(
            "ended_at IS NULL OR ended_at >= started_at",
            name=op.f("ck_subscriptions_ends_after_start"),
        ),
        sa.ForeignKeyConstraint(
            ["customer_id"],
            ["customers.customer_id"],
            name=op.f("fk_subscriptions_customer_id_customers"),
        ),
        sa.PrimaryKeyConstraint("subscription_id", name=op.f("pk_subscriptions")),
        sqlite_strict=True,
    )
    op.create_index(
        op.f("ix_subscriptions_customer_id"), "subscriptions", ["customer_id"], unique=False
    )
    op.create_table(
        "allowance_draws",
        sa.Column("invoice_id", sa.Text(), nullable=False),
        sa.Column("package_id", sa.Text(), nullable=False),
        sa.Column("period_label", sa.Text(), nullable=False),
        sa.Column("micropoints", INTEGER, nullable=False),
        sa.CheckConstraint(
            "micropoints >= 0", name=op.f("ck_allowance_draws_micropoints_not_negative")
        ),
        sa.ForeignKeyConstraint(
            ["invoice_id"],
            ["invoices.invoice_id"],
            name=op.f("fk_allowance_draws_invoice_id_invoices"),
        ),
        sa.PrimaryKeyConstraint(
            "invoice_id", "package_id", "period_label", name=op.f("pk_allowance_draws")
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("last_four", sa.Text(), nullable=False),
        sa.Column("created_at", INTEGER, nullable=False),
        sa.Column("revoked_at", INTEGER, nullable=True),
        sa.Column("budget", INTEGER, nullable=True),
        sa.CheckConstraint("budget >= 0", name=op.f("ck_api_keys_budget_not_negative")),
        sa.CheckConstraint("length(digest) = 64", name=op.f("ck_api_keys_digest_is_sha256")),
        sa.ForeignKeyConstraint(
            ["customer_id"],
            ["customers.customer_id"],
            name=op.f("fk_api_keys_customer_id_customers"),
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.project_id"], name=op.f("fk_api_keys_project_id_projects")
        ),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_keys_digest")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_api_keys_customer_id"), "api_keys", ["customer_id"], unique=False)
    op.create_table(
        "invoice_lines",
        sa.Column("invoice_id", sa.Text(), nullable=False),
        sa.Column("line_index", INTEGER, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("amount_minor_units", INTEGER, nullable=False),
        sa.Column("expert_id", sa.Text(), nullable=True),
        sa.Column("package_id", sa.Text(), nullable=True),
        sa.Column("calls", INTEGER, nullable=False),
        sa.Column("input_tokens", INTEGER, nullable=True),
        sa.Column("output_tokens", INTEGER, nullable=True),
        sa.Column("cached_input_tokens", INTEGER, nullable=True),
        sa.Column("reasoning_tokens", INTEGER, nullable=True),
        sa.Column("micropoints", INTEGER, nullable=False),
        sa.Column("covered_micropoints", INTEGER, nullable=False),
        sa.Column("expert_shares", sa.Text(), nullable=False),
        sa.Column("service_label", sa.Text(), nullable=True),
        sa.Column("service_start", INTEGER, nullable=True),
        sa.Column("service_end", INTEGER, nullable=True),
        sa.CheckConstraint(
            "kind IN ('usage', 'package_fee', 'sla_surcharge')",
            name=op.f("ck_invoice_lines_kind_known"),
        ),
        sa.CheckConstraint("calls >= 0", name=op.f("ck_invoice_lines_calls_not_negative")),
        sa.CheckConstraint(
            "covered_micropoints <= micropoints", name=op.f("ck_invoice_lines_covered_is_part")
        ),
        sa.CheckConstraint(
            "covered_micropoints >= 0",
            name=op.f("ck_invoice_lines_covered_micropoints_not_negative"),
        ),
        sa.CheckConstraint(
            "micropoints >= 0", name=op.f("ck_invoice_lines_micropoints_not_negative")
        ),
        sa.ForeignKeyConstraint(
            ["invoice_id"],
            ["invoices.invoice_id"],
            name=op.f("fk_invoice_lines_invoice_id_invoices"),
        ),
        sa.PrimaryKeyConstraint("invoice_id", "line_index", name=op.f("pk_invoice_lines")),
        sqlite_strict=True,
    )
    op.create_table(
        "usage_lines",
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("line_index", INTEGER, nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("occurred_at", INTEGER, nullable=False),
        sa.Column("expert_id", sa.Text(), nullable=False),
        sa.Column("price_version", INTEGER, nullable=False),
        sa.Column("input_tokens", INTEGER, nullable=False),
        sa.Column("output_tokens", INTEGER, nullable=False),
        sa.Column("cached_input_tokens", INTEGER, nullable=False),
        sa.Column("reasoning_tokens", INTEGER, nullable=False),
        sa.Column("billed_calls", INTEGER, nullable=False),
        sa.Column("micropoints", INTEGER, nullable=False),
        sa.Column("invoice_id", sa.Text(), nullable=True),
        sa.Column("covered_micropoints", INTEGER, nullable=False),
        sa.CheckConstraint(
            "billed_calls >= 0", name=op.f("ck_usage_lines_billed_calls_not_negative")
        ),
        sa.CheckConstraint(
            "covered_micropoints <= micropoints", name=op.f("ck_usage_lines_covered_is_part")
        ),
        sa.CheckConstraint(
            "covered_micropoints >= 0", name=op.f("ck_usage_lines_covered_micropoints_not_negative")
        ),
        sa.CheckConstraint(
            "invoice_id IS NOT NULL OR covered_micropoints = 0",
            name=op.f("ck_usage_lines_covered_when_invoiced"),
        ),
        sa.CheckConstraint(
            "micropoints >= 0", name=op.f("ck_usage_lines_micropoints_not_negative")
        ),
        sa.ForeignKeyConstraint(
            ["event_id"],
            ["usage_events.event_id"],
            name=op.f("fk_usage_lines_event_id_usage_events"),
        ),
        sa.ForeignKeyConstraint(
            ["invoice_id"],
            ["invoices.invoice_id"],
            name=op.f("fk_usage_lines_invoice_id_invoices"),
            initially="DEFERRED",
            deferrable=True,
        ),
        sa.PrimaryKeyConstraint("event_id", "line_index", name=op.f("pk_usage_lines")),
        sqlite_strict=True,
    )
    op.create_index(
        "ix_usage_lines_customer_id_occurred_at",
        "usage_lines",
        ["customer_id", "occurred_at"],
        unique=False,
    )
    op.create_index(
        "ix_usage_lines_invoice_id",
        "usage_lines",
        ["invoice_id", "occurred_at"],
        unique=False,
        sqlite_where=sa.text("invoice_id IS NOT NULL"),
        postgresql_where=sa.text("invoice_id IS NOT NULL"),
    )
    op.create_index("ix_usage_lines_occurred_at", "usage_lines", ["occurred_at"], unique=False)
    op.create_index(
        "ix_usage_lines_open",
        "usage_lines",
        ["customer_id", "occurred_at"],
        unique=False,
        sqlite_where=sa.text("invoice_id IS NULL"),
        postgresql_where=sa.text("invoice_id IS NULL"),
    )


def downgrade() -> None:
    op.drop_index(
        "ix_usage_lines_open",
        table_name="usage_lines",
        sqlite_where=sa.text("invoice_id IS NULL"),
        postgresql_where=sa.text("invoice_id IS NULL"),
    )
    op.drop_index("ix_usage_lines_occurred_at", table_name="usage_lines")
    op.drop_index(
        "ix_usage_lines_invoice_id",
        table_name="usage_lines",
        sqlite_where=sa.text("invoice_id IS NOT NULL"),
        postgresql_where=sa.text("invoice_id IS NOT NULL"),
    )
    op.drop_index("ix_usage_lines_customer_id_occurred_at", table_name="usage_lines")
    op.drop_table("usage_lines")
    op.drop_table("invoice_lines")
    op.drop_index(op.f("ix_api_keys_customer_id"), table_name="api_keys")
    op.drop_table("api_keys")
    op.drop_table("allowance_draws")
    op.drop_index(op.f("ix_subscriptions_customer_id"), table_name="subscriptions")
    op.drop_table("subscriptions")
    op.drop_index(op.f("ix_projects_customer_id"), table_name="projects")
    op.drop_table("projects")
    op.drop_index(op.f("ix_ledger_entries_account"), table_name="ledger_entries")
    op.drop_table("ledger_entries")
    op.drop_index(
        "uq_invoices_open_period",
        table_name="invoices",
        sqlite_where=sa.text("status = 'finalised'"),
        postgresql_where=sa.text("status = 'finalised'"),
    )
    op.drop_table("invoices")
    op.drop_index(op.f("ix_usage_events_customer_id_occurred_at"), table_name="usage_events")
    op.drop_table("usage_events")
    op.drop_table("price_versions")
    op.drop_table("ledger_transfers")
    op.drop_table("journal_cursors")
    op.drop_table("invoice_counters")
    op.drop_table("event_conflicts")
    op.drop_table("epochs")
    op.drop_table("customers")
    op.drop_table("catalog_versions")
    op.drop_table("audit_log")
