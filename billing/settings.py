"""Settings of billing that come from the environment; read by assembly only.

Owns names, defaults and bounds. The data directory and the store are named on the command line.
"""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from billing.journal.progress import SLOTS
from billing.journal.reader import KEPT_SEGMENTS
from billing.journal.segments import SEGMENT_BYTES, SEGMENT_BYTES_MIN
from billing.shipper import BATCH_EVENTS_MAX, SHIP_INTERVAL_S


class BillingSettings(BaseSettings):
    """How this process meters; environment variables are prefixed ``EXPERTGATE_BILLING_``."""

    model_config = SettingsConfigDict(env_prefix="EXPERTGATE_BILLING_", extra="forbid", frozen=True)

    second_journal_dir: Path | None = Field(
        default=None, description="Where the usage journal goes on when its first disk fails."
    )
    segment_size_bytes: int = Field(
        default=SEGMENT_BYTES,
        ge=SEGMENT_BYTES_MIN,
        le=8 * SEGMENT_BYTES,
        description="Preallocated size of a journal segment.",
    )
    segments_kept_count: int = Field(
        default=KEPT_SEGMENTS,
        ge=0,
        le=10_000,
        description="Fully shipped journal segments kept as evidence.",
    )
    requests_in_flight_max: int = Field(
        default=SLOTS,
        ge=1,
        le=65_536,
        description="Metered requests in flight at once per worker; more are refused.",
    )
    ship_batch_events_max: int = Field(
        default=BATCH_EVENTS_MAX,
        ge=1,
        le=10_000,
        description="Usage events per transaction of the books.",
    )
    ship_interval_s: float = Field(
        default=SHIP_INTERVAL_S,
        gt=0,
        le=60,
        description="How long a usage event waits at most to be shipped when the store is up.",
    )
    drain_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=600,
        description="How long starting and stopping wait for the journal to be shipped.",
    )
