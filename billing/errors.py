"""Errors of billing.

BillingError
├── Refused                  the caller may not have what it asks for (client's side)
│   ├── BudgetExceeded       a hold would overshoot a limit; carries the limit, spent, held, asked
│   └── ExpertNotEntitled    the customer's packages do not include the expert
├── UnknownRecord            an id names nothing; carries kind and id
├── DuplicateRecord          an id is taken; carries kind and id
├── InvalidInput             a value can't be accepted; carries the field
├── InvalidCatalog           a catalog is wrong or can't be applied; carries the field path
├── MalformedKey             the text isn't one of our keys, or was mistyped
├── WeakPepper               the key pepper is missing, empty or too short
├── EventConflict            an event id was used again with different content
├── PeriodNotOver            a period can't be closed before its end without an explicit cut-off
├── InvoiceImmutable         a finalised invoice can't be changed
├── NothingToInvoice         neither usage nor a fee is open for the period
├── UnpricedExpert           no rate card of the expert is in force at the instant
├── StoreError               the billing store can't be used (our side)
│   ├── StoreUnavailable     it can't be reached, or is locked for too long
│   └── SchemaOutdated       its schema isn't the one this version needs
└── MeteringError            the books can't be kept (our side)
    ├── MeteringUnavailable  the journal can't make an intent durable; paid work is refused
    ├── JournalLocked        another process owns the journal directory
    ├── UnsupportedJournal   a newer version wrote a record that must be understood
    └── CorruptJournal       a frame in the middle of a segment is damaged
"""

from typing import ClassVar


class BillingError(Exception):
    """Base of everything `billing` raises on purpose."""


class Refused(BillingError):
    """The caller may not have what it asks for."""


class BudgetExceeded(Refused):
    """Reserving `asked` micro-points would overshoot `limit` of `scope` until `resets_at`."""

    def __init__(
        self, *, scope: str, limit: int, spent: int, held: int, asked: int, resets_at: str
    ) -> None:
        self.scope, self.limit, self.spent = scope, limit, spent
        self.held, self.asked, self.resets_at = held, asked, resets_at
        super().__init__(
            f"{scope}: {asked} micro-points asked, {limit - spent - held} of {limit} free until {resets_at}"
        )


class ExpertNotEntitled(Refused):
    """The customer's packages do not include the expert; `entitled` names those it may use."""

    def __init__(self, expert_id: str, entitled: tuple[str, ...]) -> None:
        self.expert_id, self.entitled = expert_id, entitled
        super().__init__(
            f"expert {expert_id!r} is not in your package; it includes {', '.join(entitled) or 'none'}"
        )


class UnknownRecord(BillingError):
    """No record of this kind has this id."""

    def __init__(self, kind: str, record_id: str) -> None:
        self.kind, self.record_id = kind, record_id
        super().__init__(f"no {kind} has the id {record_id!r}")


class DuplicateRecord(BillingError):
    """A record of this kind already has this id."""

    def __init__(self, kind: str, record_id: str) -> None:
        self.kind, self.record_id = kind, record_id
        super().__init__(f"there is already a {kind} with the id {record_id!r}")


class InvalidInput(BillingError):
    """A value can't be accepted; `field` names it."""

    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason
        super().__init__(f"{field}: {reason}")


class InvalidCatalog(BillingError):
    """A catalog is wrong, or can't be applied to these books; `field` is the path of the field at fault."""

    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason
        super().__init__(f"catalog: {field}: {reason}")


class MalformedKey(BillingError):
    """The text isn't one of our keys, or its checksum is wrong. The message never repeats it."""

    def __init__(self) -> None:
        super().__init__(
            "the key is malformed or mistyped; keys begin with eg_ and end in a checksum"
        )


class WeakPepper(BillingError):
    """The key pepper at `path` is missing, empty or too short."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(f"{path}: {reason}; restore the pepper that the keys were made with")


class EventConflict(BillingError):
    """The event id is already in the books with different content."""

    def __init__(self, event_id: str) -> None:
        self.event_id = event_id
        super().__init__(f"event {event_id} is in the books with different content")


class PeriodNotOver(BillingError):
    """The period ends in the future; close it with an explicit cut-off."""

    def __init__(self, label: str, ends_at: str) -> None:
        self.label, self.ends_at = label, ends_at
        super().__init__(f"period {label} ends at {ends_at}; pass --cutoff now to close it early")


class InvoiceImmutable(BillingError):
    """A finalised invoice never changes."""

    def __init__(self, number: str, reason: str = "it is finalised and can't be changed") -> None:
        self.number = number
        super().__init__(f"invoice {number}: {reason}")


class NothingToInvoice(BillingError):
    """Neither usage nor a fee of the customer is open for the period."""

    def __init__(self, customer_id: str, label: str) -> None:
        self.customer_id, self.label = customer_id, label
        super().__init__(f"customer {customer_id!r} has nothing to invoice in {label}")


class UnpricedExpert(BillingError):
    """No rate card of the expert is in force."""

    def __init__(self, expert_id: str) -> None:
        self.expert_id = expert_id
        super().__init__(f"expert {expert_id!r} has no rate card in force")


class StoreError(BillingError):
    """The billing store can't be used."""


class StoreUnavailable(StoreError):
    """The store can't be reached, or stayed locked for too long; what was tried did not happen."""


class SchemaOutdated(StoreError):
    """The store's schema isn't the one this version needs."""

    def __init__(self, found: str | None, needed: str) -> None:
        self.found, self.needed = found, needed
        super().__init__(
            f"the store is at schema revision {found or 'none'}, this version needs {needed};"
            " run `expertgate db upgrade`"
        )


class MeteringError(BillingError):
    """The books can't be kept."""

    retry_after_s: ClassVar[int] = 5


class MeteringUnavailable(MeteringError):
    """An intent can't be made durable, so no paid work is started."""


class JournalLocked(MeteringError):
    """Another process owns the journal directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} is in use by another process; stop it or choose another data directory"
        )


class UnsupportedJournal(MeteringError):
    """A newer version of this program wrote something that must be understood to read the journal."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}; use the version that wrote it, or a later one")


class CorruptJournal(MeteringError):
    """A frame before the tail of a segment is damaged."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        self.path, self.offset = path, offset
        super().__init__(f"{path} at byte {offset}: {reason}")
