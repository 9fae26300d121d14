"""A real gateway on a real socket before a scripted backend, for every test of this folder.

`backend` is the backend, `gateway` a running gateway that sends to it. `start_gateway` starts one with another
configuration. Each test has a data directory of its own; what is slow to make is made once per session.
"""

import asyncio
import json
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import uvicorn

from billing.accounts import create_customer, create_key, set_budget, start_subscription
from billing.journal.segments import SEGMENT_BYTES_MIN
from billing.keys import SECRET_BYTES
from billing.secrets import ensure_pepper
from billing.settings import BillingSettings
from billing.store import migration
from billing.store.accounts import SqlAccountsStore
from billing.store.engine import Database
from billing.store.ledger import SqlLedgerStore
from billing.types import (
    Customer,
    CustomerId,
    KeyId,
    MicroPoints,
    PackageId,
    RatedUsage,
    SlaTierId,
    SubscriptionId,
)
from gateway.app import Gateway, open_gateway
from gateway.http_protocol import bounded_protocol
from gateway.settings import load_settings
from tests.integration.scripted_backend import scripted_backend

EXPERTS = ("general", "python-algorithm", "contract-law")
PACKAGE = "programming"
PACKAGE_EXPERTS = ("general", "python-algorithm")
INPUT_1K, OUTPUT_1K, PER_CALL = 2_000, 4_000, 100
OUTPUT_TOKENS_MAX = 100
BODY_BYTES_MAX = 64 * 1024
BILLING = BillingSettings(
    segment_size_bytes=SEGMENT_BYTES_MIN, requests_in_flight_max=256, ship_interval_s=0.02
)


def cost(input_tokens: int, output_tokens: int) -> int:
    """What an answered call costs, in micro-points."""
    return input_tokens * INPUT_1K + output_tokens * OUTPUT_1K + PER_CALL * 1_000


def write_config(
    data_dir: Path, ports, *, store="", trusted=True, terms="terms = { refresh_s = 0.05 }"
) -> Path:
    """Write a configuration whose experts all run at the backends on `ports`, in that order."""
    data_dir.mkdir(parents=True, exist_ok=True)
    text = f"""
data_dir = "{data_dir}"
store = "{store}"
default_expert = "general"
aliases = {{ "gpt-4o-mini" = "auto", "lawyer" = "expert/contract-law" }}
server = {{ port = 0, body_bytes_max = {BODY_BYTES_MAX} }}
accounts = {{ refresh_s = 0.02 }}
{terms}
[[sla_tiers]]
id = "standard"
name = "Standard"
[[packages]]
id = "{PACKAGE}"
name = "Programming"
experts = {list(PACKAGE_EXPERTS)}
monthly_fee = "19.00"
currency = "EUR"
allowance_points = 100
overage = "refuse"
"""
    for number, name in enumerate(EXPERTS, 1):
        text += f"""
[[experts]]
id = "{name}"
number = {number}
domain = "{name}"
name = "{name}"
output_tokens_max = {OUTPUT_TOKENS_MAX}
prompt_overhead_tokens = 50
"""
        for port in ports:
            text += f"""
[[experts.replicas]]
base_url = "http://127.0.0.1:{port}/v1"
model = "{name}-model"
trusted = {str(trusted).lower()}
"""
        text += f"[experts.rates]\nper_call = {PER_CALL}\ninput_1k = {INPUT_1K}\noutput_1k = {OUTPUT_1K}\n"
    path = data_dir / "expertgate.toml"
    path.write_text(text, encoding="utf-8")
    return path


@dataclass(frozen=True)
class Caller:
    """A customer and the key it calls with."""

    customer_id: CustomerId
    key_id: KeyId
    key: str


def add_caller(database: Database, data_dir: Path, name: str, *, budget=None, package=None):
    """Make a customer with one key in the books."""
    store, now = SqlAccountsStore(database), datetime.now(UTC)
    customer = Customer(CustomerId(name), name, "EUR", 20_000, SlaTierId("standard"), budget=budget)
    create_customer(store, customer, now=now, actor="test")
    if package is not None:
        start_subscription(
            store,
            subscription_id=SubscriptionId(f"{name}-subscription"),
            customer_id=customer.customer_id,
            package_id=PackageId(package),
            started_at=now,
            now=now,
            actor="test",
        )
    api_key, key = create_key(
        store,
        customer_id=customer.customer_id,
        name="test",
        pepper=ensure_pepper(data_dir / "secrets" / "pepper"),
        random_bytes=secrets.token_bytes(SECRET_BYTES),
        key_id=KeyId(f"{name}-key"),
        now=now,
        actor="test",
    )
    return Caller(customer.customer_id, api_key.key_id, key)


@dataclass
class Answer:
    """A whole answer as it came off the wire."""

    status: int
    headers: "aiohttp.typedefs.CIMultiDictProxy[str]"
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


@dataclass
class RunningGateway:
    """A gateway that listens on `url`; its calls are `caller`'s unless a key is given."""

    url: str
    inner: Gateway
    session: aiohttp.ClientSession
    data_dir: Path
    caller: Caller

    @property
    def accounts(self) -> SqlAccountsStore:
        return SqlAccountsStore(self.inner.database)

    def headers(self, key=None, **more) -> dict[str, str]:
        return {
            "authorization": f"Bearer {key or self.caller.key}",
            "content-type": "application/json",
            **more,
        }

    async def post(self, body, *, path="/v1/chat/completions", key=None, headers=None) -> Answer:
        """Post a body as it is; `headers` replace the usual ones."""
        headers = self.headers(key) if headers is None else headers
        async with self.session.post(self.url + path, data=body, headers=headers) as got:
            return Answer(got.status, got.headers, await got.read())

    async def chat(
        self, text="Hello", *, path="/v1/chat/completions", key=None, anchor=None, **members
    ) -> Answer:
        """Ask with one user message."""
        headers = self.headers(key) | ({} if anchor is None else {"x-expert-anchor": anchor})
        return await self.post(chat_body(text, **members), path=path, headers=headers)

    def open_chat(self, text="Hello", **members):
        """Ask, and get the answer's head first; an async context manager."""
        return self.session.post(
            f"{self.url}/v1/chat/completions",
            data=chat_body(text, **members),
            headers=self.headers(),
        )

    async def get(self, path: str) -> Answer:
        async with self.session.get(self.url + path, headers=self.headers()) as got:
            return Answer(got.status, got.headers, await got.read())

    async def events(self, caller: Caller | None = None) -> list[RatedUsage]:
        """A caller's usage events in the books, once all that is durable has been shipped."""
        assert await asyncio.to_thread(self.inner.shipper.drain, 20)
        customer_id = (caller or self.caller).customer_id
        return list(SqlLedgerStore(self.inner.database).usage(customer_id=customer_id))

    async def only_event(self) -> RatedUsage:
        """The one event in the books; nothing else is open or was recorded."""
        async with asyncio.timeout(10):
            while self.inner.meter.open_events or not await self.events():
                pass
        (rated,) = await self.events()
        return rated

    async def add_caller(self, name: str, **terms) -> Caller:
        """Make another caller and return it once the gateway knows its key."""
        caller = await asyncio.to_thread(
            add_caller, self.inner.database, self.data_dir, name, **terms
        )
        async with asyncio.timeout(10):
            while (await self.list_models(caller)).status == 401:
                pass
        return caller

    async def list_models(self, caller: Caller) -> Answer:
        headers = self.headers(caller.key)
        async with self.session.get(f"{self.url}/v1/models", headers=headers) as got:
            return Answer(got.status, got.headers, await got.read())

    async def set_budget(self, caller: Caller, budget: int) -> None:
        """Change a budget and return once the gateway has taken notice."""
        sentinel = f"after-{caller.customer_id}-{budget}"
        now = datetime.now(UTC)
        set_budget(self.accounts, caller.customer_id, MicroPoints(budget), now=now, actor="test")
        # Accounts are swapped whole: whoever knows the newer key knows the budget too.
        await self.add_caller(sentinel)


def chat_body(text="Hello", **members) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": "auto", "messages": messages, **members}).encode()


def listening_socket() -> socket.socket:
    """A loopback socket that queues connections from now on, so that nobody has to wait for a server."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


def free_port() -> int:
    """A loopback port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def running_gateway(data_dir: Path, books: Path, ports, **config) -> AsyncIterator:
    """Serve a gateway on loopback with the server's own settings, in this event loop."""
    path = write_config(data_dir, ports, **config)
    shutil.copy(books, data_dir / "books.sqlite")
    settings = load_settings(path, environ={})
    with listening_socket() as listener:
        async with AsyncExitStack() as stack:
            inner = await stack.enter_async_context(open_gateway(settings, billing=BILLING))
            config = uvicorn.Config(
                inner.app,
                http=bounded_protocol(
                    header_bytes_max=settings.server.header_bytes_max,
                    header_deadline_s=settings.server.header_deadline_s,
                ),
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                ws="none",
                timeout_graceful_shutdown=5,
            )
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            session = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
            )
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            caller = add_caller(inner.database, data_dir, "acme")
            running = RunningGateway(url, inner, session, data_dir, caller)
            async with asyncio.timeout(10):
                while (await running.list_models(caller)).status == 401:
                    pass
            try:
                yield running
            finally:
                await session.close()
                server.should_exit = True
                await serving


@pytest.fixture(scope="session")
def books(tmp_path_factory) -> Path:
    """Empty SQLite books at the newest revision, to be copied."""
    path = tmp_path_factory.mktemp("books") / "books.sqlite"
    migration.upgrade(f"sqlite:///{path}")
    return path


@pytest_asyncio.fixture
async def backend():
    async with scripted_backend() as backend:
        yield backend


@pytest_asyncio.fixture
async def start_gateway(tmp_path, books):
    """A function that starts a gateway; all of them end with the test."""
    async with AsyncExitStack() as stack:

        async def start(*ports: int, name="data", **config) -> RunningGateway:
            running = running_gateway(tmp_path / name, books, ports, **config)
            return await stack.enter_async_context(running)

        yield start


@pytest_asyncio.fixture
async def gateway(start_gateway, backend):
    """A gateway that sends to `backend`."""
    return await start_gateway(backend.port)


def expertgate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours to its end; it must succeed."""
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
