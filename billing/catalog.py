"""The catalog: experts with their rates, SLA tiers and packages, as a file declares them.

Owns the document's form (`CatalogDocument`, the only place where it is untrusted), the typed `Catalog`, and
what applying one changes. No I/O: `apply_catalog` acts through the store that it is given.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from billing.errors import InvalidCatalog
from billing.money import exponent
from billing.types import (
    RATE_MAX,
    TOKENS_MAX,
    CatalogVersion,
    MicroPoints,
    Money,
    OverageRule,
    Package,
    PackageId,
    PriceVersion,
    RateCard,
    Rates,
    SlaTier,
    SlaTierId,
)
from routing_engine.types import Expert, ExpertId, Replica, ReplicaId

EXPERTS_MAX = 10_000
"""Bound on experts, so that a request may look at all of them."""

REPLICAS_MAX = 64
PACKAGES_MAX = 1_000
SLA_TIERS_MAX = 100
ALLOWANCE_POINTS_MAX = 10**12
"""Bound on a package's allowance in base points, so that micro-points stay below 2**63."""

MINOR_UNITS_MAX = 10**15
"""Bound on a monthly fee, so that sums stay below 2**63."""

_MICROPOINTS_PER_POINT = 10**6
_DECIMAL = re.compile(r"(\d{1,15})(?:\.(\d{1,4}))?")

_Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]
_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Rate = Annotated[int, Field(ge=0, le=RATE_MAX)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RatesDocument(_Strict):
    """Milli-points per call and per 1,000 tokens; what isn't given is charged like the whole it is part of."""

    per_call: _Rate = 0
    input_1k: _Rate
    output_1k: _Rate
    cached_input_1k: _Rate | None = None
    reasoning_1k: _Rate | None = None

    def to_rates(self) -> Rates:
        """Return the typed rates."""
        cached, reasoning = self.cached_input_1k, self.reasoning_1k
        return Rates(
            per_call=self.per_call,
            input_1k=self.input_1k,
            output_1k=self.output_1k,
            cached_input_1k=self.input_1k if cached is None else cached,
            reasoning_1k=self.output_1k if reasoning is None else reasoning,
        )


class ReplicaDocument(_Strict):
    """One place an expert runs; the backend's API key is named, never written down."""

    base_url: Annotated[str, Field(pattern=r"^https?://[^\s]+$", max_length=2000)]
    model: _Name
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    understands_anchors: bool = False
    trusted: bool = True
    priority: int = 0


class ExpertDocument(_Strict):
    """An expert: identity, where it runs, what it costs."""

    id: _Id
    number: Annotated[int, Field(ge=0, le=2**31 - 1)]
    domain: _Id
    name: _Name
    description: Annotated[str, Field(max_length=2000)] = ""
    output_tokens_max: Annotated[int, Field(ge=1, le=TOKENS_MAX)] = 4096
    prompt_overhead_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 256
    replicas: Annotated[list[ReplicaDocument], Field(min_length=1, max_length=REPLICAS_MAX)]
    rates: RatesDocument


class SlaTierDocument(_Strict):
    """A service level."""

    id: _Id
    name: _Name
    surcharge_permille: Annotated[int, Field(ge=0, le=10_000)] = 0
    priority: int = 0

    def to_tier(self) -> SlaTier:
        """Return the typed tier."""
        return SlaTier(SlaTierId(self.id), self.name, self.surcharge_permille, self.priority)


class PackageDocument(_Strict):
    """A package; the fee is decimal text in the currency's major unit (``"19.00"``)."""

    id: _Id
    name: _Name
    experts: Annotated[list[_Id], Field(min_length=1, max_length=EXPERTS_MAX)]
    monthly_fee: str
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    allowance_points: Annotated[int, Field(ge=0, le=ALLOWANCE_POINTS_MAX)] = 0
    overage: Literal["charge", "refuse"] = "charge"

    @model_validator(mode="after")
    def _fee_is_exact(self) -> Self:
        try:
            parse_amount(self.monthly_fee, self.currency)
        except ValueError as exc:
            raise ValueError(f"monthly_fee: {exc}") from None
        return self

    def to_package(self) -> Package:
        """Return the typed package."""
        return Package(
            PackageId(self.id),
            self.name,
            frozenset(ExpertId(expert) for expert in self.experts),
            parse_amount(self.monthly_fee, self.currency),
            MicroPoints(self.allowance_points * _MICROPOINTS_PER_POINT),
            OverageRule(self.overage),
        )


class CatalogDocument(_Strict):
    """The catalog as a file declares it; pydantic names the path of what is wrong."""

    default_expert: _Id
    experts: Annotated[list[ExpertDocument], Field(min_length=1, max_length=EXPERTS_MAX)]
    sla_tiers: Annotated[list[SlaTierDocument], Field(min_length=1, max_length=SLA_TIERS_MAX)]
    packages: Annotated[list[PackageDocument], Field(max_length=PACKAGES_MAX)] = []

    @model_validator(mode="after")
    def _references_hold(self) -> Self:
        _require_unique("experts", "id", [expert.id for expert in self.experts])
        _require_unique("experts", "number", [str(expert.number) for expert in self.experts])
        _require_unique("sla_tiers", "id", [tier.id for tier in self.sla_tiers])
        _require_unique("packages", "id", [package.id for package in self.packages])
        known = {expert.id for expert in self.experts}
        if self.default_expert not in known:
            raise ValueError(f"default_expert: no expert has the id {self.default_expert!r}")
        for index, package in enumerate(self.packages):
            for expert in package.experts:
                if expert not in known:
                    raise ValueError(f"packages.{index}.experts: no expert has the id {expert!r}")
        return self

    def to_catalog(self, environ: Mapping[str, str]) -> "Catalog":
        """Return the typed catalog with the backends' API keys read from `environ`.

        Raises:
            InvalidCatalog: a named variable isn't set.
        """
        document = self.model_dump_json(exclude_none=True)
        canonical = json.dumps(
            json.loads(document), sort_keys=True, ensure_ascii=False, separators=(",", ":")
        )
        return Catalog(
            default_expert=ExpertId(self.default_expert),
            experts=tuple(
                _to_expert(expert, f"experts.{index}", environ)
                for index, expert in enumerate(self.experts)
            ),
            rates=tuple((ExpertId(expert.id), expert.rates.to_rates()) for expert in self.experts),
            sla_tiers=tuple(tier.to_tier() for tier in self.sla_tiers),
            packages=tuple(package.to_package() for package in self.packages),
            document=canonical,
        )


@dataclass(frozen=True, slots=True)
class Catalog:
    """A valid catalog. `document` is its canonical JSON, without any API key; two equal ones are one version."""

    default_expert: ExpertId
    experts: tuple[Expert, ...]
    rates: tuple[tuple[ExpertId, Rates], ...]
    sla_tiers: tuple[SlaTier, ...]
    packages: tuple[Package, ...]
    document: str

    @property
    def digest(self) -> str:
        """Return the hex SHA-256 of the canonical document."""
        return sha256(self.document.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """One difference between the books and a catalog; `what` is a path, values are canonical JSON or None."""

    what: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class CatalogState:
    """What the books hold of the catalog: its version in force and each expert's newest rate card."""

    version: CatalogVersion
    document: str | None
    newest_cards: tuple[RateCard, ...]


class CatalogStore(Protocol):
    """What applying a catalog needs from the store."""

    def catalog_state(self) -> CatalogState:
        """Return the catalog in force; version 0 and no document when none was ever applied."""

    def record_catalog(
        self,
        catalog: Catalog,
        cards: tuple[RateCard, ...],
        *,
        expected_version: CatalogVersion,
        now: datetime,
        actor: str,
    ) -> CatalogVersion:
        """Store a catalog version with its new rate cards in one transaction, unless another came first."""


def parse_catalog(raw: Mapping[str, object]) -> CatalogDocument:
    """Return the document in `raw` (as a TOML parser returns it).

    Raises:
        InvalidCatalog: something is wrong; it names the path of the first field at fault.
    """
    try:
        return CatalogDocument.model_validate(raw)
    except ValidationError as exc:
        error = exc.errors(include_url=False, include_input=False)[0]
        parts = [str(part) for part in error["loc"]]
        reason = error["msg"]
        if error["type"] == "value_error":
            # Validators of whole models can't point at one field, so their message begins with it.
            field, reason = reason.removeprefix("Value error, ").split(": ", 1)
            parts.append(field)
        raise InvalidCatalog(".".join(parts) or "document", reason) from None


def parse_amount(text: str, currency: str) -> Money:
    """Return decimal text as exact minor units of `currency`.

    Raises:
        ValueError: it isn't plain decimal text, or finer than the currency's minor unit.
    """
    digits = exponent(currency)
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise ValueError(f"not an amount like 19.00: {text!r}")
    fraction = match[2] or ""
    if len(fraction) > digits:
        raise ValueError(f"{currency} has {digits} decimals: {text!r}")
    minor_units = int(match[1] + fraction.ljust(digits, "0"))
    if minor_units > MINOR_UNITS_MAX:
        raise ValueError(f"the amount is over {MINOR_UNITS_MAX} minor units: {text!r}")
    return Money(minor_units, currency)


def diff(state: CatalogState, catalog: Catalog) -> tuple[CatalogChange, ...]:
    """Return what applying `catalog` would change, by section and id; empty when it is in force already."""
    before = _sections(state.document)
    after = _sections(catalog.document)
    changes = [
        CatalogChange(path, before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]
    return tuple(changes)


def new_rate_cards(
    state: CatalogState, catalog: Catalog, effective_from: datetime
) -> tuple[RateCard, ...]:
    """Return the rate cards that `catalog` needs and the books lack: changed or first rates only.

    Raises:
        InvalidCatalog: a changed rate would take effect before, or with, one that is already recorded.
    """
    newest = {card.expert_id: card for card in state.newest_cards}
    cards = []
    for index, (expert_id, rates) in enumerate(catalog.rates):
        card = newest.get(expert_id)
        if card is None:
            cards.append(RateCard(expert_id, PriceVersion(1), effective_from, rates))
            continue
        if card.rates == rates:
            continue
        if effective_from <= card.effective_from:
            raise InvalidCatalog(
                f"experts.{index}.rates",
                f"version {card.version} of {expert_id} takes effect at"
                f" {card.effective_from.isoformat()}; a change must come after it",
            )
        version = PriceVersion(card.version + 1)
        cards.append(RateCard(expert_id, version, effective_from, rates))
    return tuple(cards)


def apply_catalog(
    store: CatalogStore,
    catalog: Catalog,
    now: datetime,
    *,
    effective_from: datetime | None = None,
    actor: str = "command line",
) -> tuple[CatalogChange, ...]:
    """Make `catalog` the one in force and return what changed; nothing is written when nothing did.

    Changed rates become new versions, valid from `effective_from` (now, when not given); what is recorded
    already is never rewritten.

    Raises:
        InvalidCatalog: the change would rewrite prices in force, or drop what a customer uses.
    """
    state = store.catalog_state()
    start = effective_from or now
    if start < now and state.document is not None:
        raise InvalidCatalog(
            "effective_from",
            f"{start.isoformat()} is in the past; prices in force are not rewritten",
        )
    changes = diff(state, catalog)
    if not changes:
        return ()
    cards = new_rate_cards(state, catalog, start)
    store.record_catalog(catalog, cards, expected_version=state.version, now=now, actor=actor)
    return changes


def _to_expert(expert: ExpertDocument, path: str, environ: Mapping[str, str]) -> Expert:
    replicas = []
    for index, replica in enumerate(expert.replicas):
        api_key = ""
        if replica.api_key_env is not None:
            api_key = environ.get(replica.api_key_env, "")
            if not api_key:
                raise InvalidCatalog(
                    f"{path}.replicas.{index}.api_key_env",
                    f"the environment variable {replica.api_key_env} is not set",
                )
        replicas.append(
            Replica(
                ReplicaId(f"{expert.id}/{index}"),
                replica.base_url.rstrip("/"),
                replica.model,
                api_key,
                replica.understands_anchors,
                replica.trusted,
                replica.priority,
            )
        )
    return Expert(
        ExpertId(expert.id),
        expert.number,
        expert.domain,
        expert.name,
        # Sorting is stable: equal priorities keep the order of the file.
        tuple(sorted(replicas, key=lambda replica: -replica.priority)),
        expert.description,
        expert.output_tokens_max,
        expert.prompt_overhead_tokens,
    )


def _require_unique(section: str, field: str, values: list[str]) -> None:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            raise ValueError(f"{section}.{index}.{field}: {value!r} is used twice")
        seen.add(value)


def _sections(document: str | None) -> dict[str, str]:
    if document is None:
        return {}
    content = json.loads(document)
    found = {"default_expert": json.dumps(content["default_expert"])}
    for section in ("experts", "sla_tiers", "packages"):
        for item in content.get(section, ()):
            text = json.dumps(item, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
            found[f"{section}.{item['id']}"] = text
    return found
