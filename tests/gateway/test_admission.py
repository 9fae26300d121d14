"""Which expert a request gets, whether its caller may have it, and what is held for it."""

from dataclasses import replace

import pytest

from billing.errors import BudgetExceeded, ExpertNotEntitled, UnpricedExpert
from billing.holds import customer_scope, key_scope
from billing.rating import hold_for
from billing.types import CustomerId, KeyId, MicroPoints
from gateway.admission import CallerHistory, with_replica
from gateway.anchors import AnchorReading
from gateway.errors import UnknownModel
from gateway.types import Anchor, AnchorOrigin
from routing_engine.types import ExpertId, RouteSource
from tests.gateway.pipeline import NOW, RATES, Pipeline


@pytest.fixture
def worker():
    return Pipeline()


async def route(worker, *, anchor=None, **options):
    context = await worker.context(**options)
    if anchor is not None:
        context.anchor = AnchorReading(Anchor(ExpertId(anchor), AnchorOrigin.FIELD))
    decision = await worker.admitter.route(context)
    return decision.expert_id, decision.source


@pytest.mark.parametrize(
    ("model", "anchor", "expected"),
    [
        ("auto", None, ("a", RouteSource.DEFAULT)),
        ("gpt-4o", None, ("a", RouteSource.DEFAULT)),
        ("expert/b", None, ("b", RouteSource.PINNED)),
        ("clever", None, ("b", RouteSource.PINNED)),
        ("auto", "b", ("b", RouteSource.ANCHOR)),
        ("expert/a", "b", ("b", RouteSource.ANCHOR)),
    ],
)
async def test_anchor_before_pin_before_routing(worker, model, anchor, expected):
    assert await route(worker, model=model, anchor=anchor) == expected


@pytest.mark.parametrize(
    "model", ["gpt-9", "expert/", "expert/nobody", "b", "AUTO", "expert/expert/b"]
)
@pytest.mark.parametrize("anchor", [None, "b"])
async def test_a_model_that_nobody_configured_is_refused_with_what_there_is(worker, model, anchor):
    with pytest.raises(UnknownModel) as caught:
        await route(worker, model=model, anchor=anchor)
    assert caught.value.known == (
        "auto", "gpt-4o", "clever", "expert/a", "expert/b", "expert/unpriced",
    )  # fmt: skip


async def test_a_package_bounds_every_way_to_an_expert(worker):
    for options in ({"model": "expert/a"}, {"anchor": "a"}):
        with pytest.raises(ExpertNotEntitled) as caught:
            await route(worker, customer="bound", **options)
        assert caught.value.entitled == ("b",)
    assert await route(worker, customer="bound", model="expert/b") == ("b", RouteSource.PINNED)
    # Routing chooses among what the caller may use; the default expert is not one of them.
    assert (await route(worker, customer="bound"))[0] == "b"


async def test_routing_has_no_side_effects(worker):
    await route(worker, model="expert/b")
    assert worker.holds.open_holds == 0
    assert worker.load.loads(0) == {}
    assert worker.callers.count(KeyId("key-free")) == 3


async def test_an_admission_holds_the_most_that_the_request_can_cost(worker):
    body = b'{"model":"expert/b","messages":[{"role":"user","content":"hello"}],"tools":[1],"n":2,"max_tokens":20,"stream":true}'
    context, admission = await worker.admitted(body=body)
    intent = admission.intent
    prompt_bytes = len(b'"user"') + len(b'"hello"') + len(b"[1]")
    input_max = prompt_bytes + 16 + 256
    assert (intent.input_tokens_max, intent.output_tokens_max) == (input_max, 40)
    assert intent.hold == hold_for(RATES, input_max, 40)
    assert intent.input_tokens_estimate == prompt_bytes // 4
    assert (intent.request_id, intent.customer_id, intent.key_id, intent.project_id) == (
        context.request_id, "free", "key-free", "p",
    )  # fmt: skip
    assert (intent.expert_id, intent.replica_id, intent.price_version, intent.catalog_version) == (
        "b", "b/0", 7, 5,
    )  # fmt: skip
    assert (intent.route_source, intent.streamed, intent.occurred_at) == ("pinned", True, NOW)
    for scope in (customer_scope(CustomerId("free")), key_scope(KeyId("key-free"))):
        assert worker.holds.standing(scope, NOW).held == intent.hold
    assert worker.callers.count(KeyId("key-free")) == 4


async def test_a_limit_is_never_overshot_and_a_refusal_leaves_no_trace(worker):
    _, admission = await worker.admitted()
    limit = MicroPoints(2 * admission.intent.hold)
    worker.store.customer_rows[0] = replace(worker.store.customer_rows[0], budget=limit)
    worker.refresh()
    await worker.admitted()
    with pytest.raises(BudgetExceeded):
        await worker.admitted()
    assert worker.holds.open_holds == 2
    assert worker.callers.count(KeyId("key-free")) == 5
    worker.holds.release(admission.event_id)
    await worker.admitted()


async def test_an_expert_without_a_price_is_never_served_for_nothing(worker):
    with pytest.raises(UnpricedExpert):
        await worker.admitted(model="expert/unpriced")
    assert worker.holds.open_holds == 0


async def test_another_replica_changes_where_a_request_goes_and_nothing_else(worker):
    _, admission = await worker.admitted(model="expert/b")
    mirror = admission.expert.replicas[1]
    moved = with_replica(admission, mirror)
    assert (moved.replica, moved.intent.replica_id) == (mirror, "b/1")
    assert replace(moved.intent, replica_id=admission.intent.replica_id) == admission.intent


def test_callers_are_counted_from_what_the_books_say():
    callers = CallerHistory({KeyId("k"): 4})
    callers.add(KeyId("k"))
    callers.add(KeyId("new"))
    assert [callers.count(KeyId(key)) for key in ("k", "new", "none")] == [5, 1, 0]
