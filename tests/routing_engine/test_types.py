"""The nouns of routing."""

from dataclasses import FrozenInstanceError

import pytest

from routing_engine.types import (
    Expert,
    ExpertId,
    ExpertScore,
    Replica,
    ReplicaId,
    RouteRequest,
    RouteSource,
    RoutingDecision,
)


def test_sources_are_the_words_that_clients_read_in_order_of_asking():
    words = ["anchor", "pinned", "gate", "blend", "table", "default"]
    assert [str(source) for source in RouteSource] == words


def test_a_replicas_api_key_is_never_printed():
    replica = Replica(ReplicaId("a"), "http://127.0.0.1:1/v1", "m", api_key="sk-secret")
    expert = Expert(ExpertId("e"), 1, "d", "E", (replica,))
    assert "sk-secret" not in repr(expert)
    assert replica.api_key == "sk-secret"


def test_a_request_allows_every_expert_unless_it_says_otherwise():
    assert RouteRequest("hello") == RouteRequest("hello", (), (), 0, None)
    assert RouteRequest("hello").allowed != frozenset()


@pytest.mark.parametrize(
    "value",
    [
        ExpertScore(ExpertId("e"), 0.5),
        RoutingDecision(ExpertId("e"), RouteSource.GATE, 0.5),
        RouteRequest("text"),
    ],
)
def test_values_are_frozen(value):
    name = next(iter(type(value).__slots__))
    with pytest.raises(FrozenInstanceError):
        setattr(value, name, None)
