"""What the gateway adds: the same load sent directly to a scripted backend and through the gateway.

Everything is switched on: key check, strict JSON, a dictionary, routing by gate and table, holds, the fsynced
journal, the books. Rounds of both kinds alternate in one run; medians and the spread between rounds are reported.
"""

import asyncio
import json
import os
import platform
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.table import Table

from benchmarks.report import write_page
from billing.accounts import create_customer, create_key
from billing.keys import SECRET_BYTES
from billing.secrets import ensure_pepper
from billing.store.accounts import SqlAccountsStore
from billing.types import Customer, CustomerId, KeyId, SlaTierId
from gateway.app import open_books
from gateway.settings import load_settings

ROUNDS = 7
REQUESTS_C1 = 300
REQUESTS_C16 = 1_500
RESULTS = Path(__file__).parent / "results" / "gateway.json"
PROMPTS = (
    "How does quicksort choose its pivot when the input is nearly sorted already?",
    "合同一方违约，另一方可以要求哪些赔偿？请说明法律依据。",
    "Why does my C program crash when I free the same pointer twice in a loop?",
    "公司辞退员工需要支付多少经济补偿？",
    "Where does goodwill appear on a balance sheet after an acquisition?",
)


@dataclass(frozen=True, slots=True)
class Round:
    """Latencies in seconds and the round's length."""

    latencies_s: list[float]
    duration_s: float

    def quantile_ms(self, share: float) -> float:
        """Return a nearest-rank quantile in milliseconds."""
        ordered = sorted(self.latencies_s)
        return ordered[max(0, -(-int(share * 100) * len(ordered) // 100) - 1)] * 1000

    @property
    def rps(self) -> float:
        """Requests per second."""
        return len(self.latencies_s) / self.duration_s


async def load(url: str, key: str, *, requests: int, concurrency: int, is_stream: bool) -> Round:
    """Send `requests` with `concurrency` at a time and return their latencies."""
    bodies = [
        json.dumps(
            {
                "model": "auto",
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": 64,
                "stream": is_stream,
            },
            separators=(",", ":"),
        ).encode()
        for prompt in PROMPTS
    ]
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    latencies: list[float] = []
    numbers = iter(range(requests))

    async def worker(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            began = time.perf_counter()
            async with session.post(
                url, data=bodies[number % len(bodies)], headers=headers
            ) as answer:
                content = await answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"{answer.status}: {content[:300]!r}")
            latencies.append(time.perf_counter() - began)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as session:
        began = time.perf_counter()
        await asyncio.gather(*(worker(session) for _ in range(concurrency)))
        return Round(latencies, time.perf_counter() - began)


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepare(directory: Path, backend_port: int, port: int) -> tuple[Path, str]:
    """Write a configuration with the demo's experts on the scripted backend; return its path and a key."""
    text = files("gateway.demo").joinpath("demo.toml").read_text(encoding="utf-8")
    text = text.replace("@DATA_DIR@", str(directory)).replace("@PORT@", str(port))
    text = text.replace("@ENGINE_PORT@/v1", f"{backend_port}/v1").replace("@ENGINE_PORT@", "8090")
    text = text.replace("embedded = true", "embedded = false")
    config = directory / "expertgate.toml"
    config.write_text(text, encoding="utf-8")
    terms = str(files("term_db").joinpath("data", "demo_terms.tsv"))
    for command in (("terms", "import", terms), ("engine", "train")):
        subprocess.run(
            [sys.executable, "-m", "gateway", *command, "--data-dir", str(directory)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    settings = load_settings(config)
    pepper = ensure_pepper(directory / "secrets" / "pepper")
    now = datetime.now(UTC)
    with open_books(settings, settings.catalog_document.to_catalog(os.environ)) as database:
        store = SqlAccountsStore(database)
        customer = CustomerId("bench")
        create_customer(
            store,
            Customer(customer, "Bench", "EUR", 20_000, SlaTierId("standard")),
            now=now,
            actor="bench",
        )
        _, key = create_key(
            store,
            customer_id=customer,
            name="bench",
            pepper=pepper,
            random_bytes=secrets.token_bytes(SECRET_BYTES),
            key_id=KeyId("bench-key"),
            now=now,
            actor="bench",
        )
    return config, key


def wait_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return once `port` takes connections."""
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"a process of the benchmark ended with code {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("a process of the benchmark did not start to listen")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(
    gateway_url: str, backend_url: str, key: str, gateway_pid: int
) -> dict[str, list[float]]:
    """Run the rounds, direct and through the gateway in turn; return each figure's value per round."""
    figures: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)

    def run(url: str, requests: int, concurrency: int, is_stream: bool = False) -> Round:
        return asyncio.run(
            load(url, key, requests=requests, concurrency=concurrency, is_stream=is_stream)
        )

    for url in (backend_url, gateway_url):
        run(url, 200, 8)
    for _ in range(ROUNDS):
        direct, through = run(backend_url, REQUESTS_C1, 1), run(gateway_url, REQUESTS_C1, 1)
        note("direct_p50_ms_c1", direct.quantile_ms(0.5))
        note("added_p50_ms_c1", through.quantile_ms(0.5) - direct.quantile_ms(0.5))
        note("added_p99_ms_c1", through.quantile_ms(0.99) - direct.quantile_ms(0.99))
        direct = run(backend_url, REQUESTS_C16, 16)
        before = cpu_s(gateway_pid)
        through = run(gateway_url, REQUESTS_C16, 16)
        note("cpu_s_per_1000", (cpu_s(gateway_pid) - before) * 1000 / REQUESTS_C16)
        note("direct_rps_c16", direct.rps)
        note("rps_c16", through.rps)
        note("added_p50_ms_c16", through.quantile_ms(0.5) - direct.quantile_ms(0.5))
        note("added_p99_ms_c16", through.quantile_ms(0.99) - direct.quantile_ms(0.99))
        note("p99_over_p50_c16", through.quantile_ms(0.99) / through.quantile_ms(0.5))
        through = run(gateway_url, REQUESTS_C1, 16, is_stream=True)
        note("streams_per_s_c16", through.rps)
    note("rss_mib", rss_mib(gateway_pid))
    return figures


def main() -> None:
    """Run the benchmark, print the table and write the results file."""
    console = Console()
    backend_port, port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="expertgate-bench-") as folder:
        console.print("preparing: dictionary, gate and table, books")
        config, key = prepare(Path(folder), backend_port, port)
        backend = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scripted_backend", str(backend_port)]
        )
        gateway = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--config", str(config)],
            stderr=(Path(folder) / "gateway.log").open("wb"),
        )
        try:
            wait_listening(backend_port, backend)
            wait_listening(port, gateway)
            path = "/v1/chat/completions"
            with console.status(f"{ROUNDS} rounds"):
                figures = measure(
                    f"http://127.0.0.1:{port}{path}",
                    f"http://127.0.0.1:{backend_port}{path}",
                    key,
                    gateway.pid,
                )
        finally:
            for process in (gateway, backend):
                process.send_signal(signal.SIGTERM)
                process.wait(30)
    table = Table(title="gateway with everything switched on, against the same load sent directly")
    for column in ("figure", "median", "lowest", "highest"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, values in figures.items():
        table.add_row(
            name,
            *(f"{value:.3f}" for value in (statistics.median(values), min(values), max(values))),
        )
    console.print(table)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps(
            {
                "date": datetime.now(UTC).date().isoformat(),
                "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
                "versions": {
                    name: version(name) for name in ("starlette", "uvicorn", "aiohttp", "msgspec")
                },
                "workload": f"{len(PROMPTS)} short prompts in English and Chinese, model auto, scripted"
                f" backend on the same machine, {ROUNDS} alternating rounds of {REQUESTS_C1} requests one"
                f" at a time and {REQUESTS_C16} requests 16 at a time; streams of 20 chunks",
                "metrics": {name: round(statistics.median(v), 4) for name, v in figures.items()},
                "spread": {name: round(max(v) - min(v), 4) for name, v in figures.items()},
            },
            indent=2,
        )
        + "\n",
        encoding="utf-8",
    )
    write_page()
    console.print(f"written to {RESULTS} and docs/benchmarks.md")


if __name__ == "__main__":
    main()
