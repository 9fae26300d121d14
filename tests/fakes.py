"""Fakes of the ports, for tests that need an outside that answers, fails or waits on command.

Each implements a protocol of `gateway.ports` or `billing.ports`; mypy would say so, and so do the tests that use them
through the code they stand before.
"""

import asyncio
from dataclasses import dataclass, field

from billing.errors import MeteringUnavailable


@dataclass
class FakeAccountsStore:
    """An `AccountsStore` whose records are plain lists; `on_customers_read` runs between two reads."""

    customer_rows: list = field(default_factory=list)
    key_rows: list = field(default_factory=list)
    subscription_rows: list = field(default_factory=list)
    package_rows: list = field(default_factory=list)
    rate_card_rows: list = field(default_factory=list)
    epoch_number: int = 1
    on_customers_read: object = None
    fails_with: Exception | None = None

    def epoch(self):
        if self.fails_with is not None:
            raise self.fails_with
        return self.epoch_number

    def customers(self):
        rows = list(self.customer_rows)
        if self.on_customers_read is not None:
            self.on_customers_read()
        return rows

    def keys(self):
        return list(self.key_rows)

    def subscriptions(self):
        return list(self.subscription_rows)

    def packages(self):
        return list(self.package_rows)

    def sla_tiers(self):
        return []

    def rate_cards(self, at):
        return [card for card in self.rate_card_rows if card.effective_from <= at]


@dataclass
class FakeSlot:
    """A `ProgressSlot` that writes down what it is told."""

    told: list = field(default_factory=list)

    def begin_chunk(self):
        self.told.append("begin")

    def chunk_done(self, byte_count, *, is_content):
        self.told.append(("done", byte_count, is_content))

    def usage_seen(self, input_tokens, output_tokens):
        self.told.append(("usage", input_tokens, output_tokens))


class FakeMeter:
    """A `MeterPort` in memory: what is begun and finished, in `said` in order.

    Args:
        is_available: whether intents can be made durable.
        is_durable: set it to let outcomes become durable; set from the start unless told otherwise.
    """

    def __init__(self, *, is_available=True, is_durable=True):
        self.is_available = is_available
        self.is_durable = asyncio.Event()
        if is_durable:
            self.is_durable.set()
        self.intents, self.outcomes, self.said = [], [], []
        self.slot = FakeSlot()

    async def begin(self, intent):
        if not self.is_available:
            raise MeteringUnavailable("the journal can't be written")
        self.intents.append(intent)
        self.said.append("intent")
        return self.slot

    def finish(self, outcome):
        self.outcomes.append(outcome)
        self.said.append("outcome")

    async def finished(self, event_id):
        assert [each.event_id for each in self.outcomes] == [event_id]
        await self.is_durable.wait()
        self.said.append("durable")


class FakeAnswer:
    """A `BackendAnswer` that yields `pieces`; an exception among them is raised, a coroutine function awaited."""

    def __init__(self, *pieces, status=200, headers=None):
        self.pieces = pieces
        self.status = status
        self.headers = headers or {"content-type": "application/json"}
        self.is_closed = self.is_drained = False

    async def chunks(self):
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            if callable(piece):
                await piece()
            else:
                yield piece

    async def read(self, size_bytes_max):
        body = b"".join([piece async for piece in self.chunks()])
        assert len(body) <= size_bytes_max
        return body

    async def drain(self, timeout_s):
        self.is_drained = True

    def close(self):
        self.is_closed = True


class FakeBackend:
    """A `Backend` that gives one answer a call, in order; an exception among them is raised."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.calls = []

    async def post(self, replica, path, body, *, request_id, event_id):
        self.calls.append((replica.replica_id, path, body))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self):
        self._answers.clear()
