"""The embedded engine as a child process: started, watched, restarted, and ended with the gateway.

The child gets our process id and ends itself when we are gone, so a killed gateway leaves no engine behind.
"""

import asyncio
import logging
import os
import sys
import time
from pathlib import Path

import aiohttp

log = logging.getLogger("expertgate.gateway")

RESTART_DELAY_S = 2.0
RESTART_DELAY_MAX_S = 60.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.25


class EngineProcess:
    """Keeps one engine running on loopback; `state` is what readiness reports."""

    def __init__(self, *, port: int, data_dir: Path, log_path: Path) -> None:
        self._port = port
        self._data_dir = data_dir
        self._log_path = log_path
        self._process: asyncio.subprocess.Process | None = None
        self.state = "starting"

    @property
    def url(self) -> str:
        """Base URL of the engine."""
        return f"http://127.0.0.1:{self._port}"

    async def run(self) -> None:
        """Start the engine and start it again whenever it ends, until cancelled."""
        delay_s = RESTART_DELAY_S
        try:
            while True:
                await self._start()
                assert self._process is not None, "just started"
                began_at = time.monotonic()
                poll = asyncio.create_task(self._poll())
                try:
                    code = await self._process.wait()
                finally:
                    poll.cancel()
                self.state = f"exited with code {code}; see {self._log_path}"
                log.error("engine_exited", extra={"exit_code": code})
                if time.monotonic() - began_at > RESTART_DELAY_MAX_S:
                    delay_s = RESTART_DELAY_S
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RESTART_DELAY_MAX_S)
        finally:
            await asyncio.shield(self._stop())

    async def _start(self) -> None:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            *("-m", "gateway", "engine", "serve"),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--data-dir", str(self._data_dir)),
        ]
        with self._log_path.open("ab") as log_file:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env={**os.environ, "EXPERTGATE_PARENT_PID": str(os.getpid())},
            )
        self.state = "starting"

    async def _poll(self) -> None:
        """Follow the engine's readiness until it is ready."""
        timeout = aiohttp.ClientTimeout(total=2.0)
        async with aiohttp.ClientSession(trust_env=False, timeout=timeout) as session:
            while self.state != "ready":
                try:
                    async with session.get(f"{self.url}/readyz") as response:
                        body = await response.json()
                        self.state = "ready" if response.status == 200 else _stage_of(body)
                except (aiohttp.ClientError, TimeoutError, ValueError):
                    self.state = "starting"
                await asyncio.sleep(POLL_S)

    async def _stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _stage_of(body: object) -> str:
    stage = body.get("stage") if isinstance(body, dict) else None
    return str(stage or "loading")
