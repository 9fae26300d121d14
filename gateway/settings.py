"""The gateway's configuration: one TOML file plus ``EXPERTGATE_…`` environment variables.

Read by assembly only; the rest of the package takes plain values. Every field has its unit in its name and is
described here, which is what `expertgate config check` and docs/configuration.md print.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from billing.catalog import CatalogDocument
from gateway.errors import ConfigError

ENVIRONMENT_PREFIX = "EXPERTGATE_"
"""``EXPERTGATE_SERVER__PORT=9000`` overrides ``port`` in ``[server]``; two underscores step into a section."""

_ENVIRONMENT_ELSEWHERE = frozenset(
    {
        "EXPERTGATE_PARENT_PID",
        "EXPERTGATE_FAULT",
        "EXPERTGATE_TEST_REQUIRE",
        "EXPERTGATE_TEST_CACHE",
    }
)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(_Section):
    """Where and how the gateway listens."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        8080, description="port to listen on; 0 picks a free one"
    )
    body_bytes_max: Annotated[int, Field(ge=1024, le=1 << 30)] = Field(
        8 << 20, description="largest request body, in bytes"
    )
    body_deadline_s: Annotated[float, Field(gt=0)] = Field(
        30.0, description="time a request body may take to arrive, in seconds"
    )
    header_bytes_max: Annotated[int, Field(ge=1024, le=1 << 20)] = Field(
        32 << 10, description="largest request head, in bytes"
    )
    header_deadline_s: Annotated[float, Field(gt=0)] = Field(
        10.0, description="time a request head may take to arrive, in seconds"
    )
    connections_max: Annotated[int, Field(ge=1)] = Field(
        10_000, description="connections and requests at once before new ones get a 503"
    )
    drain_s: Annotated[int, Field(ge=1)] = Field(
        120, description="time that running requests get to end after SIGTERM, in seconds"
    )


class TermsSettings(_Section):
    """What the dictionary does to prompts."""

    mode: Literal["rewrite", "tag", "off"] = Field(
        "rewrite",
        description="rewrite: terms become their preferred form; tag: only routing sees them; off: neither",
    )
    refresh_s: Annotated[float, Field(gt=0)] = Field(
        0.5, description="how often a worker looks for a newer dictionary, in seconds"
    )


class RoutingSettings(_Section):
    """How experts are chosen."""

    engine_url: str = Field(
        "",
        description="base URL of an engine whose second routing stage is asked when the first is unsure",
    )
    engine_deadline_ms: Annotated[int, Field(ge=1, le=10_000)] = Field(
        250,
        description="how long the second stage may take before the first stage's choice stands, in ms",
    )
    expert_capacity: Annotated[int, Field(ge=1)] = Field(
        64, description="requests at once that count as full load of an expert"
    )


class EngineSettings(_Section):
    """The embedded engine: a child process of the gateway on loopback."""

    embedded: bool = Field(False, description="start an engine beside the gateway and route to it")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(
        8090, description="loopback port of the embedded engine"
    )


class BackendSettings(_Section):
    """Deadlines of calls to backends."""

    connect_timeout_s: Annotated[float, Field(gt=0)] = Field(
        5.0, description="time to connect, in seconds"
    )
    idle_timeout_s: Annotated[float, Field(gt=0)] = Field(
        120.0, description="time without a byte from the backend, in seconds"
    )
    total_timeout_s: Annotated[float, Field(gt=0)] = Field(
        600.0, description="time for a whole answer, in seconds"
    )
    answer_bytes_max: Annotated[int, Field(ge=1024)] = Field(
        32 << 20, description="largest complete answer, in bytes"
    )


class AccountsSettings(_Section):
    """How fast changes to keys, customers and prices reach a worker."""

    refresh_s: Annotated[float, Field(gt=0, le=1.0)] = Field(
        0.5,
        description="how often a worker looks for changes, in seconds; a revoked key dies within this",
    )


class GatewaySettings(CatalogDocument):
    """Everything in the configuration file: settings by section, then the catalog."""

    # Unlike the catalog, settings may come from the environment, where everything is text.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    data_dir: Path = Field(
        Path("expertgate-data"), description="directory of journal, books, dictionary and models"
    )
    store: str = Field(
        "",
        description="SQLAlchemy URL of the books; empty means an SQLite file in the data directory",
    )
    aliases: dict[str, str] = Field(
        default_factory=dict,
        description='model names that clients may use, each naming "auto" or "expert/<id>"',
    )
    server: ServerSettings = ServerSettings()
    terms: TermsSettings = TermsSettings()
    routing: RoutingSettings = RoutingSettings()
    engine: EngineSettings = EngineSettings()
    backend: BackendSettings = BackendSettings()
    accounts: AccountsSettings = AccountsSettings()

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @model_validator(mode="after")
    def _aliases_name_something(self) -> "GatewaySettings":
        known = {"auto", *(f"expert/{expert.id}" for expert in self.experts)}
        for alias, target in self.aliases.items():
            if target not in known:
                raise ValueError(f'aliases.{alias}: {target!r} is neither "auto" nor "expert/<id>"')
        return self

    @property
    def catalog_document(self) -> CatalogDocument:
        """The catalog part of the file, without the settings around it."""
        return CatalogDocument.model_construct(
            default_expert=self.default_expert,
            experts=self.experts,
            sla_tiers=self.sla_tiers,
            packages=self.packages,
        )

    @property
    def store_url(self) -> str:
        """The URL of the books."""
        return self.store or f"sqlite:///{self.data_dir / 'books.sqlite'}"


def load_settings(path: Path, environ: Mapping[str, str] = os.environ) -> GatewaySettings:
    """Return the settings in `path`, overridden by the environment.

    Raises:
        ConfigError: the file can't be read, isn't TOML, or a field is wrong; names file, line and field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(str(path), f"can't be read: {exc}") from exc
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(str(path), f"isn't valid TOML: {exc}") from exc
    overridden = _apply_environment(document, environ)
    try:
        settings = GatewaySettings.model_validate(document)
    except ValidationError as exc:
        raise ConfigError(str(path), _describe(exc, text, overridden)) from exc
    return settings


def _apply_environment(
    document: dict[str, Any], environ: Mapping[str, str]
) -> dict[tuple[int | str, ...], str]:
    """Put the values of the environment into `document`; return which variable set which place."""
    overridden: dict[tuple[int | str, ...], str] = {}
    for name, value in environ.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name in _ENVIRONMENT_ELSEWHERE:
            continue
        path = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if path[0] not in GatewaySettings.model_fields or len(path) > 2:
            continue
        table = document
        for step in path[:-1]:
            table = table.setdefault(step, {})
            if not isinstance(table, dict):
                raise ConfigError(name, f"{step} is no section with settings of its own")
        table[path[-1]] = value
        overridden[tuple(path)] = name
    return overridden


def _describe(
    error: ValidationError, text: str, overridden: Mapping[tuple[int | str, ...], str]
) -> str:
    """Return one line per fault: line or environment variable, field, reason."""
    lines = []
    for fault in error.errors(include_url=False, include_context=False):
        location = fault["loc"]
        reason = fault["msg"].removeprefix("Value error, ")
        if not location:
            location, reason = _place_in(reason)
        name = ".".join(str(step) for step in location) or "file"
        variable = overridden.get(location)
        line = 0 if variable else line_of(text, location)
        if fault["type"] == "extra_forbidden":
            reason = "no such setting"
        place = variable or (f"line {line}" if line else "")
        lines.append(f"{place}: {name}: {reason}" if place else f"{name}: {reason}")
    return "; ".join(lines)


def _place_in(reason: str) -> tuple[tuple[int | str, ...], str]:
    """Return the place that a check of the whole file named in front of its reason, and the reason."""
    place, separator, rest = reason.partition(": ")
    if not separator or " " in place:
        return (), reason
    return tuple(int(step) if step.isdigit() else step for step in place.split(".")), rest


def line_of(text: str, location: tuple[int | str, ...]) -> int:
    """Return the line (from 1) of the key at `location` in TOML text, or of its table; 0 when not found.

    Follows table headers and arrays of tables; enough for a file that a person wrote.
    """
    counts: dict[str, int] = {}
    best = 0
    here: list[int | str] = []
    wanted = [step for step in location if step != "function-after"]
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*(\[\[?)([\w.\-\"]+)\]\]?", line)
        if header:
            here = _table_path(header, counts)
            if here == wanted[: len(here)] and here:
                best = number
            continue
        key = re.match(r"\s*([\w\-\"]+)\s*=", line)
        if key and [*here, key.group(1).strip('"')] == wanted[: len(here) + 1]:
            return number
    return best


def _table_path(header: re.Match[str], counts: dict[str, int]) -> list[int | str]:
    """Return the path of a table header, with the index of each array of tables it lies in."""
    steps = header.group(2).replace('"', "").split(".")
    path: list[int | str] = []
    name = ""
    for depth, step in enumerate(steps):
        name = f"{name}.{step}" if name else step
        path.append(step)
        is_last = depth == len(steps) - 1
        if is_last and header.group(1) == "[[":
            counts[name] = counts.get(name, -1) + 1
            for inner in [key for key in counts if key.startswith(f"{name}.")]:
                del counts[inner]
        if name in counts:
            path.append(counts[name])
    return path
