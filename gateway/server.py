"""Runs one gateway worker on uvicorn until a signal ends it."""

import asyncio
import signal
import socket
from collections.abc import Callable

import uvicorn

from gateway.app import open_gateway
from gateway.http_protocol import bounded_protocol
from gateway.settings import GatewaySettings

LISTEN_BACKLOG = 2_048


async def serve(settings: GatewaySettings, *, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; running requests get `drain_s` to end.

    Args:
        announce: told the base URL once the gateway listens.
    """
    is_ending = False
    server: uvicorn.Server | None = None

    def end(*_: object) -> None:
        nonlocal is_ending
        is_ending = True
        if server is not None:
            server.should_exit = True

    # uvicorn has its own handlers while it serves. These keep a signal that comes before it does, and take the one
    # that it raises again when it is done: the journal must still be closed then.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    with _listening_socket(settings.server.host, settings.server.port) as listener:
        async with open_gateway(settings) as gateway:
            config = uvicorn.Config(
                gateway.app,
                http=bounded_protocol(
                    header_bytes_max=settings.server.header_bytes_max,
                    header_deadline_s=settings.server.header_deadline_s,
                ),
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                ws="none",
                limit_concurrency=settings.server.connections_max,
                timeout_graceful_shutdown=settings.server.drain_s,
            )
            server = uvicorn.Server(config)
            server.should_exit = is_ending
            # From here on connections queue up, so whoever reads the announcement may connect.
            listener.listen(LISTEN_BACKLOG)
            host, port = listener.getsockname()[:2]
            announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            await server.serve(sockets=[listener])


def run(settings: GatewaySettings, *, announce: Callable[[str], None]) -> None:
    """Run `serve` on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:  # not published for Windows
        asyncio.run(serve(settings, announce=announce))
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, announce=announce))


def _listening_socket(host: str, port: int) -> socket.socket:
    """Return a bound socket, so that a taken port is an error before anything is opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(True)
    return listener
