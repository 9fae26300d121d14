"""``/healthz``, ``/readyz`` and ``/metrics``: what an operator's tools ask for. No key needed."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from gateway.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether this worker can serve paid requests, and what each of its parts says."""

    is_ready: bool
    parts: dict[str, str]


class Operations:
    """Health, readiness and metrics of one worker."""

    def __init__(self, *, telemetry: Telemetry, readiness: Callable[[], Readiness]) -> None:
        self._telemetry = telemetry
        self._readiness = readiness

    async def healthz(self, request: Request) -> Response:
        """Return 200 while the process answers at all."""
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """Return 200 when paid requests can be served, else 503; the body names each part's state."""
        readiness = self._readiness()
        return JSONResponse(
            {"ready": readiness.is_ready, **readiness.parts},
            status_code=200 if readiness.is_ready else 503,
        )

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(self._telemetry.exposition(), media_type="text/plain; version=0.0.4")
