"""The engine's process: listens at once, loads meanwhile, ends cleanly.

Owns signals, the watch over the parent process, and the form of log lines.
"""

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from routing_engine.engine.app import create_app
from routing_engine.engine.demo_model import go_offline, locate_gguf
from routing_engine.engine.errors import EngineError, ModelUnavailable
from routing_engine.engine.experts import DEMO_EXPERTS, ExpertProfile, ExpertRegistry, load_experts
from routing_engine.engine.runtime import EngineRuntime, RuntimeOptions
from routing_engine.engine.settings import EngineSettings

logger = logging.getLogger(__name__)

GRACE_S = 2
"""How long answers may go on after the signal to end."""

EXIT_S_MAX = 8.0
"""After the parent is gone and this time has passed, the process ends without ceremony."""

PARENT_POLL_S = 0.5
CONNECTIONS_MAX = 512


class AddressInUse(EngineError):
    """The engine can't listen at this address."""


def run(
    *,
    host: str,
    port: int,
    data_dir: Path,
    model_dir: Path | None = None,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Serve the engine until SIGTERM or SIGINT.

    Args:
        host: address to listen at.
        port: port to listen at; 0 takes a free one, which is announced.
        data_dir: the data directory; the converted demo model and the second stage lie there.
        model_dir: a local transformers directory to serve instead of the demo model.
        announce: receives lines for people: the address, progress of loading, readiness.

    Raises:
        ModelUnavailable: there is no model to load.
        AddressInUse: the address is taken or isn't ours.
    """
    settings = EngineSettings()
    tell = announce or (lambda line: logger.info("progress", extra={"text": line}))
    go_offline()
    if model_dir is None:
        locate_gguf()
    elif not (model_dir / "config.json").is_file():
        raise ModelUnavailable(f"{model_dir}: not a transformers directory, config.json is missing")
    experts: tuple[ExpertProfile, ...] = DEMO_EXPERTS
    if settings.experts_file is not None:
        experts = load_experts(settings.experts_file)
    options = RuntimeOptions(
        data_dir=data_dir,
        model_dir=model_dir,
        thread_count=settings.thread_count or max(1, (os.cpu_count() or 1) // 2),
        active_max=settings.active_max,
        queued_max=settings.queued_max,
    )
    set_up_logging()
    signals = _OwnSignals()
    if settings.parent_pid is not None:
        end_with_parent(settings.parent_pid)
    runtime = EngineRuntime(options, ExpertRegistry(experts), tell)
    config = uvicorn.Config(
        create_app(runtime),
        log_config=None,
        access_log=False,
        lifespan="on",
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=GRACE_S + 2,
        server_header=False,
    )
    with _listen(host, port) as listener:
        tell(f"engine listening on http://{_shown(listener)}")
        signals.is_uvicorns_turn = True
        _Server(config, runtime).run(sockets=[listener])
    logger.info("engine_ended")


class _Server(uvicorn.Server):
    """Ends answers that still go on `GRACE_S` after the signal, so that their clients are told."""

    def __init__(self, config: uvicorn.Config, runtime: EngineRuntime) -> None:
        super().__init__(config)
        self._runtime = runtime

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        timer = threading.Timer(GRACE_S, self._runtime.close)
        timer.daemon = True
        timer.start()


def set_up_logging() -> None:
    """Write every log record as one line of JSON to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)


class JsonLines(logging.Formatter):
    """One JSON object for each record: time, level, logger, event, and the record's own fields."""

    _own = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        """Return `record` as JSON without line ends."""
        fields: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in self._own}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def end_with_parent(parent_pid: int) -> None:
    """Watch the parent in a daemon thread; when it is gone, end as on SIGTERM."""

    def watch() -> None:
        never = threading.Event()
        while os.getppid() == parent_pid:
            never.wait(PARENT_POLL_S)
        logger.warning("parent_gone", extra={"parent_pid": parent_pid})
        os.kill(os.getpid(), signal.SIGTERM)
        never.wait(EXIT_S_MAX)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


class _OwnSignals:
    """Ends the process on a signal that comes before uvicorn listens to signals; ignores it after.

    uvicorn takes the signals while it serves and raises them once more when it has ended, for whoever
    owned them before. That is us, and there is nothing left to do then: the exit code is 0.
    """

    def __init__(self) -> None:
        self.is_uvicorns_turn = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, _: int, __: FrameType | None) -> None:
        if not self.is_uvicorns_turn:
            raise SystemExit(0)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS_MAX)
    except OSError as exc:
        raise AddressInUse(f"can't listen at {host}:{port}: {exc.strerror or exc}") from exc


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
