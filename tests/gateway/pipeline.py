"""A worker's inner stages on fakes: accounts in lists, a router without artefacts, books in memory."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

from billing.holds import HoldBook
from billing.ids import EventIdMint
from billing.types import (
    ApiKey,
    CatalogVersion,
    Customer,
    CustomerId,
    KeyId,
    Money,
    OverageRule,
    Package,
    PackageId,
    PriceVersion,
    ProjectId,
    RateCard,
    Rates,
    SlaTierId,
    Subscription,
    SubscriptionId,
)
from gateway.accounts import read_accounts
from gateway.admission import Admitter, CallerHistory, Experts
from gateway.context import BodyLimits, context_of
from gateway.limits import set_limits
from gateway.load import LoadWindow
from routing_engine.client import Router
from routing_engine.types import Expert, ExpertId, Replica, ReplicaId
from tests.fakes import FakeAccountsStore

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
RATES = Rates(100, 2_000, 4_000, 2_000, 4_000)
PACKAGE = PackageId("only-b")


def expert(name, number, *, replica_count=1):
    replicas = tuple(
        Replica(ReplicaId(f"{name}/{index}"), "http://x/v1", f"model-{name}")
        for index in range(replica_count)
    )
    return Expert(ExpertId(name), number, "d", name, replicas, output_tokens_max=50)


EXPERTS = (expert("a", 1), expert("b", 2, replica_count=2), expert("unpriced", 3))


def accounts_store():
    """Return books of two customers: `free` may use everything, `bound` has a package with one expert."""
    tier = SlaTierId("standard")
    names = ("free", "bound")
    return FakeAccountsStore(
        customer_rows=[Customer(CustomerId(name), name, "EUR", 1, tier) for name in names],
        key_rows=[
            ApiKey(KeyId(f"key-{name}"), CustomerId(name), ProjectId("p"), name, name, "", NOW)
            for name in names
        ],
        package_rows=[
            Package(PACKAGE, "Only b", frozenset({ExpertId("b")}), Money(0, "EUR"), 10**9,
                    OverageRule.REFUSE)
        ],
        subscription_rows=[
            Subscription(SubscriptionId("s"), CustomerId("bound"), PACKAGE, NOW)
        ],
        rate_card_rows=[
            RateCard(ExpertId(name), PriceVersion(7), NOW, RATES) for name in ("a", "b")
        ],
    )  # fmt: skip


@dataclass
class Pipeline:
    """One worker; `store` may be changed before the next `accounts` read."""

    store: FakeAccountsStore = field(default_factory=accounts_store)
    aliases: dict = field(default_factory=lambda: {"gpt-4o": "auto", "clever": "expert/b"})

    def __post_init__(self):
        self.holds, self.load = HoldBook(), LoadWindow()
        self.callers = CallerHistory({KeyId("key-free"): 3})
        self.refresh()
        self.admitter = Admitter(
            experts=Experts(
                by_id={each.expert_id: each for each in EXPERTS},
                aliases=self.aliases,
                default_expert=ExpertId("a"),
                catalog_version=CatalogVersion(5),
            ),
            accounts=lambda: self.accounts,
            router=Router(None, None, EXPERTS, ExpertId("a")),
            engine=None,
            engine_deadline_s=0.1,
            holds=self.holds,
            callers=self.callers,
            load=self.load,
            mint=EventIdMint(),
            clock=lambda: NOW,
        )

    def refresh(self):
        self.accounts = read_accounts(self.store, NOW)
        set_limits(self.holds, self.accounts)

    async def context(self, body=None, *, customer="free", receive=None, **members):
        """Return the context of a chat request that has been read and authenticated."""
        if body is None:
            chat = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], **members}
            body = json.dumps(chat).encode()
        messages = [{"type": "http.request", "body": body}]

        async def server():
            if messages:
                return messages.pop()
            return await receive()

        scope = {"type": "http", "headers": []}
        context = context_of(scope, server)
        context.principal = self.accounts.principals[customer]
        await context.read_chat(scope, BodyLimits())
        return context

    async def admitted(self, **options):
        """Return the context of a request, and its admission."""
        context = await self.context(**options)
        return context, self.admitter.admit(context, await self.admitter.route(context))
