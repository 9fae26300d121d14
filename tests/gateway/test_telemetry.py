"""What a scrape shows of the requests that were served."""

import pytest

from billing.types import Usage
from gateway.telemetry import Telemetry
from routing_engine.types import ExpertId, RouteSource, RoutingDecision

DECISION = RoutingDecision(ExpertId("a"), RouteSource.GATE, 0.9)


@pytest.fixture
def telemetry():
    telemetry = Telemetry()
    yield telemetry
    telemetry.close()


def end(telemetry, *, status="completed", first_byte_s=0.02):
    telemetry.request_ended(
        DECISION, status=status, usage=Usage(100, 7), micropoints=1_234, duration_s=0.3,
        overhead_s=0.0004, first_byte_s=first_byte_s,
    )  # fmt: skip


def scraped(telemetry, name, **labels):
    """Return the values of a metric whose labels hold `labels`."""
    return [
        float(line.rsplit(" ", 1)[1])
        for line in telemetry.exposition().decode().splitlines()
        if line.partition("{")[0] == name
        and all(f'{label}="{value}"' in line for label, value in labels.items())
    ]


def test_requests_are_counted_by_expert_source_and_end(telemetry):
    for status in ("completed", "completed", "client_cancelled"):
        telemetry.request_started(DECISION)
        end(telemetry, status=status)
    telemetry.request_started(DECISION)
    name = "expertgate_requests_total"
    assert scraped(telemetry, name, expert="a", route_source="gate", status="completed") == [2]
    assert scraped(telemetry, name, status="client_cancelled") == [1]
    assert scraped(telemetry, "expertgate_requests_active", expert="a") == [1]
    # In micro-points, as the bills are.
    assert scraped(telemetry, "expertgate_base_points_total", expert="a") == [3 * 1_234]


def test_durations_and_tokens_have_buckets_of_their_size(telemetry):
    telemetry.request_started(DECISION)
    end(telemetry)
    bucket = "gen_ai_server_request_duration_seconds_bucket"
    assert scraped(telemetry, bucket, le="0.25") == [0]
    assert scraped(telemetry, bucket, le="0.5") == [1]
    assert scraped(telemetry, "expertgate_overhead_duration_seconds_bucket", le="0.0005") == [1]
    assert scraped(telemetry, "expertgate_overhead_duration_seconds_bucket", le="0.0002") == [0]
    tokens = "gen_ai_client_token_usage_sum"
    assert scraped(telemetry, tokens, gen_ai_token_type="input") == [100]
    assert scraped(telemetry, tokens, gen_ai_token_type="output") == [7]


def test_an_answer_without_a_first_byte_says_nothing_about_first_bytes(telemetry):
    telemetry.request_started(DECISION)
    end(telemetry, status="backend_error", first_byte_s=None)
    assert scraped(telemetry, "gen_ai_server_time_to_first_token_seconds_count") == []


def test_workers_of_one_process_follow_each_other_without_leftovers(telemetry):
    end(telemetry)
    telemetry.close()
    again = Telemetry()
    assert scraped(again, "expertgate_requests_total") == []
    again.close()
