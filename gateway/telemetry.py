"""Metrics of the data plane: OpenTelemetry instruments behind a Prometheus exporter.

Names and units follow the GenAI semantic conventions where one exists; ours begin with `expertgate.`. Telemetry is
lossy by nature: nothing is ever billed from it.
"""

from collections import Counter
from collections.abc import Iterator

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from prometheus_client import REGISTRY, generate_latest

from billing.types import Usage
from routing_engine.types import RoutingDecision

_DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_OVERHEAD_BUCKETS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
_TOKEN_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)


class Telemetry:
    """The instruments of one worker; `close` unregisters them, so that tests can build several."""

    def __init__(self) -> None:
        self._reader = PrometheusMetricReader()
        self._provider = MeterProvider(
            metric_readers=[self._reader],
            resource=Resource.create({"service.name": "expertgate"}),
            views=[
                _buckets("gen_ai.server.request.duration", _DURATION_BUCKETS_S),
                _buckets("gen_ai.server.time_to_first_token", _DURATION_BUCKETS_S),
                _buckets("expertgate.overhead.duration", _OVERHEAD_BUCKETS_S),
                _buckets("gen_ai.client.token.usage", _TOKEN_BUCKETS),
            ],
            shutdown_on_exit=False,
        )
        meter = self._provider.get_meter("expertgate.gateway")
        self._duration = meter.create_histogram(
            "gen_ai.server.request.duration",
            unit="s",
            description="From admission to the end of the answer",
        )
        self._first_token = meter.create_histogram(
            "gen_ai.server.time_to_first_token",
            unit="s",
            description="From admission to the first byte of the answer",
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", unit="{token}", description="Billed tokens per request"
        )
        self._overhead = meter.create_histogram(
            "expertgate.overhead.duration",
            unit="s",
            description="Time in the gateway itself until the first byte",
        )
        # Counters are plain dictionaries, read when somebody scrapes: an SDK call per request and counter would
        # cost more than the rest of the bookkeeping together.
        self._ended: Counter[tuple[str, str, str]] = Counter()
        self._points: Counter[str] = Counter()
        self._active: Counter[str] = Counter()
        meter.create_observable_counter(
            "expertgate.requests",
            [lambda _: self._observe_ended()],
            unit="{request}",
            description="Requests that were sent to an expert, by how they ended",
        )
        meter.create_observable_counter(
            "expertgate.base_points",
            [lambda _: _observe(self._points)],
            unit="{micropoint}",
            description="Billed micro-points",
        )
        meter.create_observable_up_down_counter(
            "expertgate.requests.active",
            [lambda _: _observe(self._active)],
            unit="{request}",
            description="Requests that are running",
        )

    def request_started(self, decision: RoutingDecision) -> None:
        """Count a request that was sent to an expert."""
        self._active[decision.expert_id] += 1

    def request_ended(
        self,
        decision: RoutingDecision,
        *,
        status: str,
        usage: Usage,
        micropoints: int,
        duration_s: float,
        overhead_s: float,
        first_byte_s: float | None,
    ) -> None:
        """Record how a request ended."""
        expert = {"expert": decision.expert_id}
        self._active[decision.expert_id] -= 1
        self._ended[decision.expert_id, decision.source.value, status] += 1
        self._points[decision.expert_id] += micropoints
        self._duration.record(duration_s, expert)
        self._overhead.record(overhead_s)
        if first_byte_s is not None:
            self._first_token.record(first_byte_s, expert)
        self._tokens.record(
            usage.input_tokens, {"gen_ai.token.type": "input", "expert": decision.expert_id}
        )
        self._tokens.record(
            usage.output_tokens, {"gen_ai.token.type": "output", "expert": decision.expert_id}
        )

    def exposition(self) -> bytes:
        """Return every metric of this process in Prometheus' text format."""
        return generate_latest(REGISTRY)

    def _observe_ended(self) -> Iterator[Observation]:
        for (expert, source, status), count in list(self._ended.items()):
            yield Observation(count, {"expert": expert, "route_source": source, "status": status})

    def close(self) -> None:
        """Unregister the instruments."""
        self._provider.shutdown()


def _observe(counts: Counter[str]) -> Iterator[Observation]:
    for expert, value in list(counts.items()):
        yield Observation(value, {"expert": expert})


def _buckets(name: str, boundaries: tuple[float, ...]) -> View:
    return View(
        instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(boundaries=boundaries)
    )
