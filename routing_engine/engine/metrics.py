"""The engine's metrics, in a registry of their own, as Prometheus reads them."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

METRICS_CONTENT_TYPE = CONTENT_TYPE_LATEST

_P = "expertgate_engine"
_STEP_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_ROUTE_BUCKETS_S = (0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class EngineMetrics:
    """All measurements of one engine."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self.active = Gauge(f"{_P}_active_sequences", "Sequences being decoded.", registry=registry)
        self.queued = Gauge(
            f"{_P}_queued_sequences", "Sequences waiting for a place.", registry=registry
        )
        self.generated_tokens = Counter(
            f"{_P}_generated_tokens", "Tokens generated.", registry=registry
        )
        self.cancelled = Counter(
            f"{_P}_cancelled_sequences",
            "Sequences dropped because nobody waits for them.",
            registry=registry,
        )
        self.steps = Counter(f"{_P}_steps", "Steps of the model.", ["kind"], registry=registry)
        self.step_seconds = Histogram(
            f"{_P}_step_seconds",
            "Time of one step.",
            ["kind"],
            buckets=_STEP_BUCKETS_S,
            registry=registry,
        )
        self.route_seconds = Histogram(
            f"{_P}_route_seconds",
            "Time of one second-stage decision.",
            buckets=_ROUTE_BUCKETS_S,
            registry=registry,
        )
        self.requests = Counter(
            f"{_P}_requests",
            "Answered requests by endpoint and status.",
            ["endpoint", "status"],
            registry=registry,
        )

    def render(self) -> bytes:
        """Return all measurements in Prometheus' text format."""
        return generate_latest(self._registry)
