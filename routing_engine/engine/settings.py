"""The engine's environment, read by `server.py` only."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class EngineSettings(BaseSettings):
    """What the environment says about the engine (``EXPERTGATE_…``)."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    parent_pid: int | None = Field(
        default=None,
        validation_alias="EXPERTGATE_PARENT_PID",
        description="The process that started this one; the engine ends when it is gone.",
    )
    thread_count: int | None = Field(
        default=None,
        ge=1,
        le=256,
        validation_alias="EXPERTGATE_ENGINE_THREADS",
        description="Threads of a step; by default half the processors, at least one.",
    )
    active_max: int = Field(
        default=8,
        ge=1,
        le=256,
        validation_alias="EXPERTGATE_ENGINE_ACTIVE_MAX",
        description="Answers generated at a time.",
    )
    queued_max: int = Field(
        default=32,
        ge=0,
        le=100_000,
        validation_alias="EXPERTGATE_ENGINE_QUEUED_MAX",
        description="Requests that may wait for a place.",
    )
    experts_file: Path | None = Field(
        default=None,
        validation_alias="EXPERTGATE_ENGINE_EXPERTS",
        description="TOML file with the experts; the demo catalogue's by default.",
    )
