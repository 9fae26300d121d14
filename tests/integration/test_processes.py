"""The gateway as a process of its own: killed, ended, started twice, misconfigured; on both kinds of books."""

import asyncio
import os
import signal
import sys
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
import sqlalchemy as sa

from billing.accounts import set_budget
from billing.store import migration
from billing.store.accounts import SqlAccountsStore
from billing.store.engine import open_database
from billing.store.ledger import SqlLedgerStore
from billing.types import CustomerId, MicroPoints, UsageSource, UsageStatus
from gateway.app import open_books
from gateway.settings import load_settings
from tests.integration.conftest import add_caller, chat_body, cost, write_config
from tests.integration.scripted_backend import (
    DONE,
    FINISH,
    STREAM_HEAD,
    STREAM_TAIL,
    answer_plainly,
    event,
    framed,
    piece,
    usage_event,
)

POSTGRES = "postgresql+psycopg://postgres@127.0.0.1:5432"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request):
    """Where the books are: a file in the data directory, or a PostgreSQL database of this test's own."""
    if request.param == "sqlite":
        yield ""
        return
    admin = sa.create_engine(f"{POSTGRES}/postgres", isolation_level="AUTOCOMMIT")
    name = f"expertgate_test_{uuid.uuid4().hex[:12]}"
    try:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
    except sa.exc.OperationalError:
        admin.dispose()
        if "postgres" in os.environ.get("EXPERTGATE_TEST_REQUIRE", ""):
            pytest.fail("EXPERTGATE_TEST_REQUIRE names postgres, but 127.0.0.1:5432 is unreachable")
        pytest.skip("no PostgreSQL at 127.0.0.1:5432")
    migration.upgrade(f"{POSTGRES}/{name}")
    try:
        yield f"{POSTGRES}/{name}"
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        admin.dispose()


@dataclass
class Installation:
    """A configuration with one customer, which processes may serve."""

    config: Path
    key: str

    def usage(self):
        """Every event in the books."""
        with open_database(load_settings(self.config, environ={}).store_url) as database:
            return list(SqlLedgerStore(database).usage())


def install(data_dir: Path, *ports: int, store: str = "") -> Installation:
    config = write_config(data_dir, ports, store=store)
    settings = load_settings(config, environ={})
    with open_books(settings, settings.catalog_document.to_catalog({})) as database:
        return Installation(config, add_caller(database, data_dir, "acme").key)


async def start(config: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "gateway", "serve", "--config", str(config)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


async def lines_of(process: asyncio.subprocess.Process) -> list[str]:
    """What a process that ends has said on stderr, without log records."""
    _, stderr = await asyncio.wait_for(process.communicate(), 60)
    return [line for line in stderr.decode().splitlines() if not line.startswith("{")]


class Serving:
    """A gateway process that listens on `url`."""

    def __init__(self, installation: Installation, process: asyncio.subprocess.Process, url: str):
        self.process, self.url = process, url
        self._headers = {
            "authorization": f"Bearer {installation.key}",
            "content-type": "application/json",
        }
        self.session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=60), read_bufsize=2**14
        )

    def open_chat(self, **members):
        return self.session.post(
            f"{self.url}/v1/chat/completions", data=chat_body(**members), headers=self._headers
        )

    async def chat(self, **members) -> int:
        async with self.open_chat(**members) as got:
            await got.read()
            return got.status

    async def settle(self) -> None:
        """Return when the process has done what it had begun before: it has one thread for requests."""
        async with self.session.get(f"{self.url}/healthz") as got:
            assert got.status == 200

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), 60)


@asynccontextmanager
async def serving(installation: Installation):
    process = await start(installation.config)
    drain = None
    try:
        async with asyncio.timeout(60):
            while not (line := await process.stderr.readline()).startswith(b"listening on "):
                assert line, "serve ended before it listened"
        drain = asyncio.create_task(process.stderr.read())
        running = Serving(installation, process, line.split()[-1].decode())
        async with running.session:
            yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if drain is not None:
            await drain


async def read_until(got: aiohttp.ClientResponse, end: bytes) -> bytes:
    seen = b""
    while end not in seen:
        seen += await got.content.readany()
    return seen


async def test_a_kill_loses_no_event_and_doubles_none(tmp_path, backend, store):
    installed = await asyncio.to_thread(install, tmp_path, backend.port, store=store)

    async def script(exchange):
        if not exchange.json.get("stream"):
            await exchange.closed.wait()
        elif exchange.text == "reports":
            exchange.send(STREAM_HEAD, framed(piece("a "), piece("b ")))
            exchange.send(framed(usage_event({"prompt_tokens": 11, "completion_tokens": 2})))
            await exchange.closed.wait()
        else:
            exchange.send(STREAM_HEAD, framed(*(piece(f"w{n} ") for n in range(5))))
            await exchange.closed.wait()

    async with serving(installed) as first:
        assert await first.chat() == 200
        assert await first.chat(stream=True) == 200
        backend.script = script
        silent = asyncio.create_task(first.chat())
        async with (
            first.open_chat(stream=True) as counted,
            first.open_chat(text="reports", stream=True) as reported,
        ):
            await read_until(counted, b"w4")
            await read_until(reported, b"b ")
            for _ in range(5):
                last = await backend.next_exchange()
            await first.settle()
            assert not last.closed.is_set()
            await first.kill()
        with pytest.raises(aiohttp.ClientError):
            await silent
    backend.script = answer_plainly
    async with serving(installed) as second:
        assert await second.chat() == 200
        assert await second.end() == 0
    async with serving(installed) as third:
        assert await third.end() == 0  # nothing is recovered or shipped a second time
    events = await asyncio.to_thread(installed.usage)
    assert len({rated.event.intent.event_id for rated in events}) == len(events) == 6
    whole = [rated for rated in events if rated.event.outcome.status is UsageStatus.COMPLETED]
    assert [rated.micropoints for rated in whole] == [cost(11, 3)] * 3
    killed = [rated for rated in events if rated not in whole]
    assert {rated.event.outcome.status for rated in killed} == {UsageStatus.ABORTED}
    # The one that was never answered, the one with five chunks, and the one with two.
    assert sorted(rated.event.outcome.usage.output_tokens for rated in killed) == [0, 2, 5]
    by_output = {rated.event.outcome.usage.output_tokens: rated for rated in killed}
    estimate = by_output[5].event.intent.input_tokens_estimate
    assert by_output[0].micropoints == 0
    assert by_output[2].micropoints == cost(11, 2)
    assert by_output[5].micropoints == cost(estimate, 5)
    assert by_output[5].event.outcome.usage_source is UsageSource.RECOVERED


@pytest.mark.parametrize("choice_count", [1, 2])
async def test_a_kill_while_a_client_reads_slowly_bills_what_was_handed_over(
    tmp_path, backend, choice_count
):
    """Many chunks arrive at once and wait for the client's socket when the process dies."""
    installed = await asyncio.to_thread(install, tmp_path, backend.port)
    choices = [{"index": n, "delta": {"content": "x" * 2_000}} for n in range(choice_count)]
    burst = framed(*[event(choices=choices)] * 20)

    async def pours(exchange):
        exchange.send(STREAM_HEAD, framed(piece("first ")), burst * 1_000)
        await exchange.closed.wait()

    backend.script = pours
    async with serving(installed) as first, first.open_chat(stream=True, n=choice_count) as got:
        await read_until(got, b"first")
        exchange = await backend.next_exchange()
        # When nothing more fits in, the gateway waits for its client's socket with a burst in its hands.
        same_count, left = 0, exchange.unsent_bytes
        async with asyncio.timeout(30):
            while same_count < 50:
                await first.settle()
                same_count = same_count + 1 if exchange.unsent_bytes == left else 0
                left = exchange.unsent_bytes
        assert left > 0
        await first.kill()
    backend.script = answer_plainly
    async with serving(installed) as second:
        assert await second.end() == 0
    (rated,) = await asyncio.to_thread(installed.usage)
    outcome = rated.event.outcome
    assert outcome.status is UsageStatus.ABORTED
    assert outcome.delivered_chunks > 100 * choice_count
    # Far more chunks than the cap allows tokens were handed over: the cap is what is billed.
    assert outcome.usage.output_tokens == 100 * choice_count


async def test_sigterm_at_once_is_obeyed(tmp_path, backend):
    installed = await asyncio.to_thread(install, tmp_path, backend.port)
    async with serving(installed) as running:
        assert await running.end() == 0


async def test_sigterm_lets_running_answers_end_and_takes_no_new_ones(tmp_path, backend):
    installed = await asyncio.to_thread(install, tmp_path, backend.port)
    release = asyncio.Event()

    async def slow(exchange):
        if exchange.json.get("stream"):
            exchange.send(STREAM_HEAD, framed(piece("first ")))
            await release.wait()
            exchange.send(framed(piece("last"), FINISH, usage_event(), DONE), STREAM_TAIL)
        else:
            await release.wait()
            await answer_plainly(exchange)

    backend.script = slow
    async with serving(installed) as first:
        whole = asyncio.create_task(first.chat())
        async with first.open_chat(stream=True) as got:
            await read_until(got, b"first")
            for _ in range(2):
                await backend.next_exchange()
            first.process.send_signal(signal.SIGTERM)
            host, port = first.url.removeprefix("http://").split(":")
            async with asyncio.timeout(20):
                while True:
                    try:
                        _, writer = await asyncio.open_connection(host, int(port))
                    except ConnectionRefusedError:
                        break
                    writer.close()
            assert first.process.returncode is None
            release.set()
            body = await got.content.read()
        assert body.endswith(DONE)
        assert b"last" in body
        assert await whole == 200
        assert await asyncio.wait_for(first.process.wait(), 30) == 0
    events = await asyncio.to_thread(installed.usage)
    assert [rated.event.outcome.status for rated in events] == [UsageStatus.COMPLETED] * 2
    assert [rated.micropoints for rated in events] == [cost(11, 3)] * 2


async def test_a_budget_survives_a_restart(tmp_path, backend):
    installed = await asyncio.to_thread(install, tmp_path, backend.port)
    async with serving(installed) as first:
        assert await first.chat() == 200
        assert await first.end() == 0
    (rated,) = await asyncio.to_thread(installed.usage)
    budget = rated.micropoints + rated.event.intent.hold - 1
    await asyncio.to_thread(_set_budget, installed, budget)
    async with serving(installed) as second:
        assert await second.chat() == 429
        await asyncio.to_thread(_set_budget, installed, budget + 1)
        async with asyncio.timeout(10):
            while await second.chat() != 200:
                pass
        assert await second.chat() == 429
        assert await second.end() == 0
    assert len(await asyncio.to_thread(installed.usage)) == 2


def _set_budget(installed: Installation, budget: int) -> None:
    with open_database(load_settings(installed.config, environ={}).store_url) as database:
        store, now = SqlAccountsStore(database), datetime.now(UTC)
        set_budget(store, CustomerId("acme"), MicroPoints(budget), now=now, actor="test")


async def test_a_second_gateway_on_the_same_data_is_refused(tmp_path, backend):
    installed = await asyncio.to_thread(install, tmp_path, backend.port)
    async with serving(installed) as first:
        second = await start(installed.config)
        (line,) = await lines_of(second)
        assert second.returncode == 1
        assert line.startswith(f"error: {tmp_path}")
        assert "in use by another process" in line
        assert await first.chat() == 200
        assert await first.end() == 0


async def test_a_port_that_is_taken_is_one_line(tmp_path, backend):
    installed = await asyncio.to_thread(install, tmp_path, backend.port)
    text = installed.config.read_text().replace("port = 0", f"port = {backend.port}", 1)
    installed.config.write_text(text)
    process = await start(installed.config)
    (line,) = await lines_of(process)
    assert process.returncode == 1
    assert line.startswith(f"error: server: can't listen on 127.0.0.1:{backend.port}: ")


# What is replaced in a good configuration, by what, and what the error says.
MISTAKES = [
    ("port = 0", "port = 99999", "server.port"),
    ("port = 0", "prot = 0", "server.prot: no such setting"),
    ('default_expert = "general"', 'default_expert = "nobody"', "nobody"),
    ("input_1k = 2000", "input_1k = -1", "experts.0.rates.input_1k"),
    ('"expert/contract-law"', '"expert/nobody"', "aliases.lawyer"),
    ("[[sla_tiers]]", "[[sla_tiers]", "isn't valid TOML"),
]


async def test_a_wrong_configuration_is_one_line_and_touches_nothing(tmp_path):
    async def refused(data_dir, old, new, said):
        config = write_config(data_dir, [1])
        text = config.read_text()
        assert old in text
        config.write_text(text.replace(old, new, 1))
        process = await start(config)
        (line,) = await lines_of(process)
        assert process.returncode == 1
        assert line.startswith(f"error: {config}: ")
        assert said in line
        assert [path.name for path in data_dir.iterdir()] == ["expertgate.toml"]

    await asyncio.gather(
        *(refused(tmp_path / str(number), *row) for number, row in enumerate(MISTAKES))
    )


async def test_a_missing_configuration_is_one_line(tmp_path):
    process = await start(tmp_path / "none.toml")
    (line,) = await lines_of(process)
    assert process.returncode == 1
    assert line.startswith(f"error: {tmp_path / 'none.toml'}: can't be read")


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_books_at_another_revision_are_refused(tmp_path, backend, store):
    installed = await asyncio.to_thread(install, tmp_path, backend.port, store=store)
    await asyncio.to_thread(migration.downgrade, store, "base")
    process = await start(installed.config)
    (line,) = await lines_of(process)
    assert process.returncode == 1
    assert line.startswith("error: ")
    assert "expertgate db upgrade" in line
