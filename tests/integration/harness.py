"""A real gateway on a real socket before a backend whose every byte a test scripts."""

import asyncio
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import uvicorn

from billing.accounts import create_customer, create_key, start_subscription
from billing.keys import SECRET_BYTES
from billing.secrets import ensure_pepper
from billing.store.accounts import SqlAccountsStore
from billing.store.ledger import SqlLedgerStore
from billing.types import (
    Customer,
    CustomerId,
    KeyId,
    PackageId,
    SlaTierId,
    SubscriptionId,
)
from gateway.app import Gateway, open_gateway
from gateway.settings import load_settings

USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


@dataclass
class Received:
    """One request as the backend got it."""

    path: str
    headers: dict[str, str]
    body: bytes
    is_closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def text(self):
        """The last user message's text."""
        return self.json["messages"][-1]["content"]


Script = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


def answer_bytes(content="Hello.", usage=USAGE, **extra):
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content},
                "finish_reason": "stop",
            }
        ],
        **extra,
    }
    if usage is not None:
        body["usage"] = usage
    return json.dumps(body).encode()


def whole(body, *, status="200 OK", headers=""):
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_TAIL = b"0\r\n\r\n"


def framed(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(**members) -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **members}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def piece(text) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])


FINISH = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
DONE = b"data: [DONE]\n\n"


def usage_event(usage=USAGE) -> bytes:
    return event(choices=[], usage=usage)


async def plain_answer(received: Received, writer: asyncio.StreamWriter) -> None:
    """Answer like an OpenAI-compatible server: whole or streamed, with usage when asked."""
    body = received.json
    if not body.get("stream"):
        writer.write(whole(answer_bytes()))
        return
    events = [piece("one "), piece("two "), piece("three"), FINISH]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(usage_event())
    writer.write(STREAM_HEAD + b"".join(framed(each) for each in [*events, DONE]) + STREAM_TAIL)


class ScriptedBackend:
    """Serves `script` on loopback and keeps what it received."""

    def __init__(self) -> None:
        self.script: Script = plain_answer
        self.received: list[Received] = []
        self.connection_count = 0
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        received = None
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.strip().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                received = Received(first.split()[1], headers, body)
                self.received.append(received)
                closed = asyncio.create_task(self._watch(reader, received))
                await self.script(received, writer)
                await writer.drain()
                closed.cancel()
                await asyncio.gather(closed, return_exceptions=True)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if received is not None:
                received.is_closed.set()
            writer.close()

    async def _watch(self, reader: asyncio.StreamReader, received: Received) -> None:
        while not reader.at_eof():
            if reader.exception() is not None:
                break
            await asyncio.sleep(0.01)
        received.is_closed.set()


@asynccontextmanager
async def scripted_backend() -> AsyncIterator[ScriptedBackend]:
    backend = ScriptedBackend()
    server = await asyncio.start_server(backend.handle, "127.0.0.1", 0)
    backend.port = server.sockets[0].getsockname()[1]
    try:
        yield backend
    finally:
        server.close()


@dataclass
class Running:
    """A gateway that listens, with a client session and keys for its customers."""

    url: str
    gateway: Gateway
    session: aiohttp.ClientSession
    data_dir: Path
    pepper: bytes
    key: str = ""

    @property
    def accounts(self) -> SqlAccountsStore:
        return SqlAccountsStore(self.gateway.database)

    async def chat(
        self, content="Hello", *, key=None, headers=None, path="/v1/chat/completions", **members
    ):
        """Send a chat request; return status, headers and body bytes."""
        body = {"model": "auto", "messages": [{"role": "user", "content": content}], **members}
        return await self.post(json.dumps(body).encode(), key=key, headers=headers, path=path)

    async def post(self, body: bytes, *, key=None, headers=None, path="/v1/chat/completions"):
        sent = {"content-type": "application/json", **(headers or {})}
        if key != "":
            sent["authorization"] = f"Bearer {key or self.key}"
        async with self.session.post(self.url + path, data=body, headers=sent) as response:
            return response.status, response.headers, await response.read()

    async def events(self):
        """Every usage event in the books, once all that is durable has been shipped."""
        assert await asyncio.to_thread(self.gateway.shipper.drain, 20)
        return list(SqlLedgerStore(self.gateway.database).usage())

    async def settled(self, count: int):
        """The books' events once there are `count` of them."""
        async with asyncio.timeout(20):
            while len(found := await self.events()) < count:
                await asyncio.sleep(0.02)
        return found


def add_customer(store, pepper, name, *, budget=None, package=None) -> str:
    now = datetime.now(UTC)
    create_customer(
        store,
        Customer(CustomerId(name), name, "EUR", 20_000, SlaTierId("standard"), budget=budget),
        now=now,
        actor="test",
    )
    if package is not None:
        start_subscription(
            store,
            subscription_id=SubscriptionId(f"{name}-sub"),
            customer_id=CustomerId(name),
            package_id=PackageId(package),
            started_at=now,
            now=now,
            actor="test",
        )
    _, key = create_key(
        store,
        customer_id=CustomerId(name),
        name="test",
        pepper=pepper,
        random_bytes=secrets.token_bytes(SECRET_BYTES),
        key_id=KeyId(f"{name}-key"),
        now=now,
        actor="test",
    )
    return key


EXPERTS = ("general", "python-algorithm", "contract-law")


def write_config(data_dir: Path, ports, *, store="", trusted=True, extra="", server="") -> Path:
    """Write a configuration whose experts all run at the backends on `ports`, in that order."""
    lines = [
        f'data_dir = "{data_dir}"',
        f'store = "{store}"',
        'default_expert = "general"',
        "[aliases]",
        '"gpt-4o-mini" = "auto"',
        "[server]",
        "port = 0",
        "body_bytes_max = 65536",
        server,
        "[accounts]",
        "refresh_s = 0.1",
        "[terms]",
        "refresh_s = 0.05",
        extra,
        '[[sla_tiers]]\nid = "standard"\nname = "Standard"',
        '[[packages]]\nid = "programming"\nname = "P"\nexperts = ["general", "python-algorithm"]',
        'monthly_fee = "19.00"\ncurrency = "EUR"\nallowance_points = 100\noverage = "refuse"',
    ]
    for number, name in enumerate(EXPERTS):
        lines += [
            f'[[experts]]\nid = "{name}"\nnumber = {number}\ndomain = "d"\nname = "{name}"',
            "output_tokens_max = 100\nprompt_overhead_tokens = 50",
        ]
        lines += [
            f'[[experts.replicas]]\nbase_url = "http://127.0.0.1:{port}/v1"\nmodel = "{name}-model"\n'
            f"trusted = {str(trusted).lower()}"
            for port in ports
        ]
        lines += ["[experts.rates]\nper_call = 100\ninput_1k = 2000\noutput_1k = 4000"]
    path = data_dir / "expertgate.toml"
    data_dir.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def cost(tokens_in: int, tokens_out: int) -> int:
    """What usage costs at the rates of `write_config`, in micro-points."""
    return tokens_in * 2000 + tokens_out * 4000 + 100 * 1000


@asynccontextmanager
async def running_gateway(data_dir: Path, ports, **config) -> AsyncIterator[Running]:
    settings = load_settings(write_config(data_dir, ports, **config), environ={})
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    async with open_gateway(settings) as gateway:
        server = uvicorn.Server(
            uvicorn.Config(gateway.app, lifespan="off", log_config=None, loop="none", ws="none")
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        async with aiohttp.ClientSession() as session:
            while not server.started:
                await asyncio.sleep(0.01)
            pepper = ensure_pepper(data_dir / "secrets" / "pepper")
            running = Running(
                f"http://127.0.0.1:{listener.getsockname()[1]}", gateway, session, data_dir, pepper
            )
            running.key = add_customer(running.accounts, pepper, "acme")
            await wait_for_key(running, running.key)
            yield running
        server.should_exit = True
        await serving


async def wait_for_key(running: Running, key: str) -> None:
    """Return once the gateway knows `key`."""
    async with asyncio.timeout(5):
        while True:
            headers = {"authorization": f"Bearer {key}"}
            async with running.session.get(f"{running.url}/v1/models", headers=headers) as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def required(name: str) -> bool:
    """Whether the environment demands the tests that need `name`."""
    return name in os.environ.get("EXPERTGATE_TEST_REQUIRE", "").split(",")
