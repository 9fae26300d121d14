"""The nouns of billing: points, money, rates, usage, packages, invoices.

Owns the vocabulary that `billing` decides about; every value that exists is valid. No I/O, no rules
beyond validity. Units: micro-points and integer minor units of an ISO 4217 currency; instants are
UTC-aware; periods are half-open.
"""

from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from typing import NewType

from routing_engine.types import ExpertId, ReplicaId

EventId = NewType("EventId", str)
"""UUIDv7 in canonical text form, minted by the gateway at admission; unique forever."""

CustomerId = NewType("CustomerId", str)
ProjectId = NewType("ProjectId", str)
KeyId = NewType("KeyId", str)
PackageId = NewType("PackageId", str)
SubscriptionId = NewType("SubscriptionId", str)
SlaTierId = NewType("SlaTierId", str)
InvoiceId = NewType("InvoiceId", str)
InvoiceNumber = NewType("InvoiceNumber", str)

PriceVersion = NewType("PriceVersion", int)
"""Number of an expert's rate card version; grows by one per change of that expert's rates."""

CatalogVersion = NewType("CatalogVersion", int)

MicroPoints = NewType("MicroPoints", int)
"""Exact cost of usage: a millionth of a base point."""

TOKENS_MAX = 10**12
"""Bound on any token count before arithmetic, so that products stay below 2**63."""

RATE_MAX = 10**6
"""Bound on any rate (milli-points), for the same reason."""


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in integer minor units (ISO 4217 exponent) of one currency."""

    minor_units: int
    currency: str


@dataclass(frozen=True, slots=True)
class Rates:
    """Milli-points per call and per 1,000 tokens; integers, zero or more.

    Cached input and reasoning output are *parts* of input and output: a cached input token is charged
    `cached_input_1k` instead of `input_1k`, a reasoning token `reasoning_1k` instead of `output_1k`.
    """

    per_call: int
    input_1k: int
    output_1k: int
    cached_input_1k: int
    reasoning_1k: int

    def __post_init__(self) -> None:
        for name in ("per_call", "input_1k", "output_1k", "cached_input_1k", "reasoning_1k"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= RATE_MAX:
                raise ValueError(f"{name} must be an integer between 0 and {RATE_MAX}: {value!r}")


@dataclass(frozen=True, slots=True)
class RateCard:
    """One version of one expert's rates, valid from `effective_from` until the next version's."""

    expert_id: ExpertId
    version: PriceVersion
    effective_from: datetime
    rates: Rates


@dataclass(frozen=True, slots=True)
class SlaTier:
    """A service level; `surcharge_permille` of the rounded usage subtotal is added (150 = +15 %)."""

    sla_tier_id: SlaTierId
    name: str
    surcharge_permille: int
    priority: int = 0


class OverageRule(StrEnum):
    """What happens when a package's allowance is used up."""

    CHARGE = "charge"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Package:
    """A subscription to a named set of experts with a monthly allowance of micro-points."""

    package_id: PackageId
    name: str
    experts: frozenset[ExpertId]
    monthly_fee: Money
    allowance: MicroPoints
    overage: OverageRule = OverageRule.CHARGE


@dataclass(frozen=True, slots=True)
class Subscription:
    """A customer's subscription to a package; `[started_at, ended_at)`, open when `ended_at` is None."""

    subscription_id: SubscriptionId
    customer_id: CustomerId
    package_id: PackageId
    started_at: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Customer:
    """Who pays, and on what terms.

    `point_price_micros` is the price of one base point in millionths of the currency's *major* unit
    (0.02 EUR = 20,000). `budget` limits micro-points per calendar month in `time_zone`; None is no limit.
    A customer with an active subscription may use only the experts of its packages.
    """

    customer_id: CustomerId
    name: str
    currency: str
    point_price_micros: int
    sla_tier_id: SlaTierId
    time_zone: str = "UTC"
    budget: MicroPoints | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """A part of a customer; its id is unique among all customers."""

    project_id: ProjectId
    customer_id: CustomerId
    name: str


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A credential without its secret: digest (hex HMAC-SHA256), last four characters, owner."""

    key_id: KeyId
    customer_id: CustomerId
    project_id: ProjectId
    name: str
    digest: str = field(repr=False)
    last_four: str
    created_at: datetime
    revoked_at: datetime | None = None
    budget: MicroPoints | None = None


@dataclass(frozen=True, slots=True)
class BillingPeriod:
    """A half-open range of UTC instants ``[start, end)``; `label` is e.g. ``2026-12``."""

    start: datetime
    end: datetime
    label: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request; cached and reasoning tokens are parts, never additions."""

    input_tokens: int
    output_tokens: int
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0

    def __post_init__(self) -> None:
        for value in (self.input_tokens, self.output_tokens):
            if type(value) is not int or not 0 <= value <= TOKENS_MAX:
                raise ValueError(f"token counts are integers between 0 and {TOKENS_MAX}: {value!r}")
        if not 0 <= self.cached_input_tokens <= self.input_tokens:
            raise ValueError("cached input tokens are a part of the input tokens")
        if not 0 <= self.reasoning_tokens <= self.output_tokens:
            raise ValueError("reasoning tokens are a part of the output tokens")


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Sums of token counts over many events; like `Usage`, without its bound on one request."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0


class UsageSource(StrEnum):
    """Where the billed token counts come from."""

    BACKEND = "backend"
    COUNTED = "counted"
    RECOVERED = "recovered"
    NONE = "none"


class UsageStatus(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    CLIENT_CANCELLED = "client_cancelled"
    BACKEND_ERROR = "backend_error"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class UsageIntent:
    """What is made durable before the first byte goes to a backend.

    `hold` is what was reserved; `input_tokens_max` and `output_tokens_max` are the bounds the hold was
    computed from, and no billed count may exceed them.
    """

    event_id: EventId
    request_id: str
    customer_id: CustomerId
    project_id: ProjectId
    key_id: KeyId
    expert_id: ExpertId
    replica_id: ReplicaId
    price_version: PriceVersion
    catalog_version: CatalogVersion
    dictionary_version: int
    route_source: str
    operation: str
    streamed: bool
    occurred_at: datetime
    hold: MicroPoints
    input_tokens_max: int
    output_tokens_max: int
    input_tokens_estimate: int


@dataclass(frozen=True, slots=True)
class UsageOutcome:
    """How the request of an intent ended; durable before the client's last byte.

    `reported_*` is what the backend said (None when it said nothing usable), `delivered_chunks` how many
    content chunks our kernel accepted for the client, `usage` what is billed. `billed_calls` is how often
    `Rates.per_call` is charged: 0 when the backend never answered, else 1.
    """

    event_id: EventId
    status: UsageStatus
    usage: Usage
    usage_source: UsageSource
    ended_at: datetime
    delivered_chunks: int = 0
    delivered_bytes: int = 0
    reported_input_tokens: int | None = None
    reported_output_tokens: int | None = None
    backend_status: int = 0
    time_to_first_byte_us: int = 0
    duration_us: int = 0
    flags: tuple[str, ...] = ()
    billed_calls: int = 1


@dataclass(frozen=True, slots=True)
class UsageEvent:
    """The immutable record of one request's consumption: its intent and its outcome."""

    intent: UsageIntent
    outcome: UsageOutcome


@dataclass(frozen=True, slots=True)
class RatedUsage:
    """A usage event priced by the rate card version that was in force when it occurred."""

    event: UsageEvent
    micropoints: MicroPoints


class InvoiceStatus(StrEnum):
    """Life-cycle state of an invoice."""

    DRAFT = "draft"
    FINALISED = "finalised"
    VOID = "void"


class LineKind(StrEnum):
    """What a line charges."""

    USAGE = "usage"
    PACKAGE_FEE = "package_fee"
    SLA_SURCHARGE = "sla_surcharge"


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """One line: integers only; `amount` was rounded once, half away from zero.

    A usage line has `micropoints` (all usage of the expert), of which `covered_micropoints` were paid by a
    package allowance; the rest is charged. `expert_shares` splits a surcharge over experts (largest
    remainder) and sums to the amount. `service_period` is set when the line is about another time than the
    invoice's own period (usage that arrived late); `package_id` on package fees.
    """

    kind: LineKind
    description: str
    amount: Money
    expert_id: ExpertId | None = None
    calls: int = 0
    usage: UsageTotals | None = None
    micropoints: MicroPoints = MicroPoints(0)
    covered_micropoints: MicroPoints = MicroPoints(0)
    expert_shares: tuple[tuple[ExpertId, int], ...] = ()
    service_period: BillingPeriod | None = None
    package_id: PackageId | None = None


@dataclass(frozen=True, slots=True)
class Invoice:
    """A customer's invoice for a period; `number` is None while it is a draft.

    `period` is what the invoice covers: the nominal month named by its label, or the part of it between two
    cut-offs. The terms it was computed with (`point_price_micros`, `surcharge_permille`) are kept on it.
    """

    invoice_id: InvoiceId
    customer_id: CustomerId
    customer_name: str
    period: BillingPeriod
    status: InvoiceStatus
    lines: tuple[InvoiceLine, ...]
    total: Money
    number: InvoiceNumber | None = None
    issued_on: date | None = None
    finalized_at: datetime | None = None
    point_price_micros: int = 0
    sla_tier_id: SlaTierId = SlaTierId("")
    surcharge_permille: int = 0
    time_zone: str = "UTC"
