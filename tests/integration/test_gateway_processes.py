"""The gateway as a process: killed, ended, started twice; on SQLite and on PostgreSQL."""

import asyncio
import json
import os
import signal
import sys
import uuid
from contextlib import asynccontextmanager

import aiohttp
import pytest
import pytest_asyncio

from billing.secrets import ensure_pepper
from billing.store.accounts import SqlAccountsStore
from billing.store.engine import open_database
from billing.store.ledger import SqlLedgerStore
from billing.types import UsageSource, UsageStatus
from gateway.app import open_books
from gateway.settings import load_settings
from tests.integration.harness import (
    STREAM_HEAD,
    add_customer,
    cost,
    framed,
    piece,
    required,
    scripted_backend,
    write_config,
)

POSTGRES = "postgresql+psycopg://postgres@127.0.0.1:5432"


@pytest_asyncio.fixture
async def backend():
    async with scripted_backend() as backend:
        yield backend


@pytest.fixture
def postgres_url():
    """A database of this test's own, dropped afterwards."""
    psycopg = pytest.importorskip("psycopg") if not required("postgres") else __import__("psycopg")
    try:
        admin = psycopg.connect("postgresql://postgres@127.0.0.1:5432/postgres", autocommit=True)
    except psycopg.OperationalError as exc:
        if required("postgres"):
            raise
        pytest.skip(f"needs PostgreSQL on 127.0.0.1:5432: {str(exc).splitlines()[0]}")
    name = f"expertgate_test_{uuid.uuid4().hex[:12]}"
    with admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            yield f"{POSTGRES}/{name}"
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def prepare(data_dir, port, store=""):
    """Write a configuration and create a customer; return configuration path and key."""
    config = write_config(data_dir, [port], store=store)
    settings = load_settings(config, environ={})
    if store:
        from billing.store.migration import upgrade

        upgrade(store)
    with open_books(settings, settings.catalog_document.to_catalog({})) as database:
        pepper = ensure_pepper(data_dir / "secrets" / "pepper")
        return config, add_customer(SqlAccountsStore(database), pepper, "acme")


@asynccontextmanager
async def serving(config):
    """Run `serve` in a process; yields it with its URL, and kills it in the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "serve", "--config", str(config),
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    reading = None
    try:
        async with asyncio.timeout(60):
            while True:
                line = (await process.stderr.readline()).decode()
                assert line, f"serve ended with code {await process.wait()}"
                if line.startswith("listening on "):
                    break
        # Keep reading, so that a full pipe never stops the process.
        reading = asyncio.create_task(process.stderr.read())
        yield process, line.removeprefix("listening on ").strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if reading is not None:
            await reading


def ask(session, url, key, **members):
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], **members}
    return session.post(
        f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
    )


def usage(config):
    settings = load_settings(config, environ={})
    with open_database(settings.store_url) as database:
        return list(SqlLedgerStore(database).usage())


async def shipped(config, count):
    async with asyncio.timeout(30):
        while len(found := await asyncio.to_thread(usage, config)) < count:
            await asyncio.sleep(0.05)
    return found


async def killed_mid_stream(tmp_path, backend, store=""):
    """One complete call, then a stream of three chunks whose gateway is killed; return what is billed."""
    config, key = await asyncio.to_thread(prepare, tmp_path, backend.port, store)
    async with aiohttp.ClientSession() as session:
        async with serving(config) as (process, url):
            async with ask(session, url, key) as response:
                assert response.status == 200

            async def drip(received, writer):
                writer.write(STREAM_HEAD + b"".join(framed(piece(f"w{n} ")) for n in range(3)))
                await writer.drain()
                await received.is_closed.wait()

            plain, backend.script = backend.script, drip
            async with ask(session, url, key, stream=True) as response:
                seen = b""
                async for chunk in response.content.iter_any():
                    seen += chunk
                    if b"w2" in seen:
                        break
                process.kill()
                await process.wait()
            backend.script = plain
        async with serving(config) as (process, url):
            async with ask(session, url, key) as response:
                assert response.status == 200
            events = await shipped(config, 3)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    return events


def assert_billed_once_each(events):
    complete, recovered, later = sorted(events, key=lambda rated: rated.event.intent.occurred_at)
    assert complete.micropoints == later.micropoints == cost(11, 3)
    outcome = recovered.event.outcome
    assert (outcome.status, outcome.usage_source) == (UsageStatus.ABORTED, UsageSource.RECOVERED)
    assert outcome.usage.output_tokens in (2, 3)


async def test_a_kill_mid_stream_loses_nothing_and_doubles_nothing(tmp_path, backend):
    assert_billed_once_each(await killed_mid_stream(tmp_path, backend))


@pytest.mark.postgres
async def test_a_kill_mid_stream_on_postgresql(tmp_path, backend, postgres_url):
    assert_billed_once_each(await killed_mid_stream(tmp_path, backend, postgres_url))


async def test_sigterm_lets_a_running_stream_end(tmp_path, backend):
    config, key = await asyncio.to_thread(prepare, tmp_path, backend.port)
    may_end, has_begun = asyncio.Event(), asyncio.Event()

    async def slow(received, writer):
        from tests.integration.harness import DONE, FINISH, STREAM_TAIL

        writer.write(STREAM_HEAD + framed(piece("first ")))
        await writer.drain()
        has_begun.set()
        await may_end.wait()
        writer.write(framed(piece("last")) + framed(FINISH) + framed(DONE) + STREAM_TAIL)

    backend.script = slow
    async with serving(config) as (process, url), aiohttp.ClientSession() as session:
        async with ask(session, url, key, stream=True) as response:
            await has_begun.wait()
            process.send_signal(signal.SIGTERM)
            may_end.set()
            body = await response.read()
        assert body.endswith(b"data: [DONE]\n\n")
        assert await process.wait() == 0
    (rated,) = usage(config)
    assert rated.event.outcome.status is UsageStatus.COMPLETED


async def test_a_second_gateway_on_the_same_data_is_refused_in_one_line(tmp_path, backend):
    config, _ = await asyncio.to_thread(prepare, tmp_path, backend.port)
    async with serving(config):
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "serve", "--config", str(config),
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, stderr = await second.communicate()
    lines = [line for line in stderr.decode().splitlines() if not line.startswith("{")]
    assert second.returncode == 1
    assert len(lines) == 1
    assert "is in use by another process" in lines[0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("port = 0", "port = 99999", "server.port"),
        ("port = 0", "prot = 0", "server.prot: no such setting"),
        ('default_expert = "general"', 'default_expert = "nobody"', "nobody"),
        ("input_1k = 2000", "input_1k = -1", "experts.0.rates.input_1k"),
        ("[server]", "[server", "TOML"),
    ],
)
async def test_a_wrong_configuration_is_refused_in_one_line(tmp_path, old, new, said):
    config = write_config(tmp_path, [1])
    config.write_text(config.read_text().replace(old, new, 1))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        "config",
        "check",
        str(config),
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    (line,) = stderr.decode().splitlines()
    assert process.returncode == 1
    assert line.startswith(f"error: {config}: ")
    assert said in line


async def test_an_unreadable_dictionary_never_replaces_a_good_one(tmp_path, backend):
    config, key = await asyncio.to_thread(prepare, tmp_path, backend.port)
    terms = tmp_path / "terms.csv"
    terms.write_text(
        "concept_id,domain,lang,term,kind,case,action,expert_hint,definition,note\n"
        "algo:sorting:quick,d,en,quicksort,preferred,fold,rewrite,python-algorithm,,\n"
        "algo:sorting:quick,d,en,qsort,admitted,fold,rewrite,python-algorithm,,\n"
    )
    importing = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "terms", "import", str(terms), "--data-dir", str(tmp_path)
    )
    assert await importing.wait() == 0
    async with serving(config) as (_, url), aiohttp.ClientSession() as session:
        async with ask(session, url, key) as response:
            assert response.status == 200

        async def version_of():
            headers = {"authorization": f"Bearer {key}"}
            async with session.post(
                f"{url}/v1/route", json={"text": "use qsort"}, headers=headers
            ) as answer:
                decision = await answer.json()
                return decision["dictionary_version"], decision["text"]

        assert await version_of() == (1, "use quicksort")
        (tmp_path / "snapshots" / "2.terms").write_bytes(b"damaged")
        (tmp_path / "snapshots" / "CURRENT").write_text("2\n")
        await asyncio.sleep(0.3)
        assert await version_of() == (1, "use quicksort")
        assert json.loads(backend.received[0].body)["messages"][0]["content"] == "hi"
