import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from billing import faults
from billing.journal.segments import SEGMENT_BYTES_MIN
from billing.meter import Meter
from billing.shipper import Shipper
from billing.types import UsageEvent
from tests.billing.metering import FakeLedger, an_intent, an_outcome, event_id

DRAIN_S = 20.0


@pytest.fixture
def meter(tmp_path: Path) -> Iterator[Meter]:
    meter = Meter(tmp_path / "w0", segment_bytes=SEGMENT_BYTES_MIN)
    meter.open()
    yield meter
    meter.close()
    faults.arm("")


def run(meter: Meter, numbers: Sequence[int]) -> None:
    async def one(number: int) -> None:
        await meter.begin(an_intent(number))
        meter.finish(an_outcome(number))
        await meter.finished(event_id(number))

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number) for number in numbers))

    asyncio.run(all_of_them())


def started(meter: Meter, ledger: FakeLedger, **arguments: object) -> Shipper:
    shipper = Shipper(meter, ledger, interval_s=0.005, retry_s_min=0.001, **arguments)  # type: ignore[arg-type]
    shipper.start()
    return shipper


def segments(meter: Meter) -> list[str]:
    return sorted(path.stem.lstrip("0") for path in meter.directories[0].glob("*.segment"))


def test_every_event_is_shipped_once_and_told_after_its_transaction(meter: Meter) -> None:
    ledger = FakeLedger()
    told: list[UsageEvent] = []
    shipper = started(meter, ledger, on_shipped=told.extend, batch_events_max=64)
    run(meter, range(1000))
    assert shipper.drain(DRAIN_S)
    shipper.stop()
    assert set(ledger.events) == {event_id(number) for number in range(1000)}
    assert len(told) == 1000
    assert (shipper.status.shipped_events, shipper.backlog_records) == (1000, 0)
    assert ledger.calls >= 1000 // 64


def test_a_store_that_is_down_costs_backlog_and_nothing_else(meter: Meter) -> None:
    ledger = FakeLedger()
    ledger.failures = 10**9
    shipper = started(meter, ledger, spread=lambda: 0.0)
    run(meter, range(50))
    assert not shipper.drain(0.02)
    assert shipper.backlog_records >= 50
    run(meter, range(50, 60))
    ledger.failures = 3
    assert shipper.drain(DRAIN_S)
    shipper.stop()
    assert len(ledger.events) == 60
    assert shipper.status.consecutive_failures == 0


def test_failures_are_reported(meter: Meter) -> None:
    ledger = FakeLedger()
    ledger.failures = 1
    shipper = Shipper(meter, ledger)
    run(meter, [1])
    with pytest.raises(Exception, match="down"):
        shipper.ship_once()
    assert shipper.ship_once() is False
    assert list(ledger.events) == [event_id(1)]


def test_a_commit_whose_answer_was_lost_is_made_again_without_effect(meter: Meter) -> None:
    ledger = FakeLedger()
    ledger.loses_answers = 3
    shipper = started(meter, ledger)
    run(meter, range(20))
    assert shipper.drain(DRAIN_S)
    shipper.stop()
    assert len(ledger.events) == 20
    assert ledger.conflicts == []


def test_a_new_shipper_goes_on_at_the_stores_cursor(meter: Meter) -> None:
    ledger = FakeLedger()
    first = started(meter, ledger)
    run(meter, range(10))
    assert first.drain(DRAIN_S)
    first.stop()
    shipped: list[UsageEvent] = []
    second = Shipper(meter, ledger, shipped.extend)
    run(meter, range(10, 13))
    second.ship_once()
    assert {event.intent.event_id for event in shipped} == {event_id(n) for n in range(10, 13)}


def test_a_restored_older_store_gets_what_it_lacks_from_the_journal(meter: Meter) -> None:
    run(meter, range(30))
    restored = FakeLedger()
    shipper = Shipper(meter, restored, batch_events_max=7)
    while shipper.ship_once():
        pass
    assert len(restored.events) == 30


def test_events_survive_a_restart_before_they_were_shipped(tmp_path: Path) -> None:
    ledger = FakeLedger()
    for start in (0, 10, 20):
        meter = Meter(tmp_path / "w0", segment_bytes=SEGMENT_BYTES_MIN)
        meter.open()
        run(meter, range(start, start + 10))
        meter.close()
    meter.open()
    Shipper(meter, ledger).ship_once()
    meter.close()
    assert len(ledger.events) == 30


def test_shipping_may_be_finished_after_the_meter_is_closed(tmp_path: Path) -> None:
    ledger = FakeLedger()
    meter = Meter(tmp_path / "w0")
    meter.open()
    shipper = started(meter, ledger)
    run(meter, range(10))
    meter.close()
    assert shipper.drain(DRAIN_S)
    shipper.stop()
    assert len(ledger.events) == 10


def test_shipped_segments_are_deleted_but_for_the_last_few(meter: Meter) -> None:
    ledger = FakeLedger()
    shipper = Shipper(meter, ledger, kept_segments=2, batch_events_max=100)
    for start in range(0, 3000, 500):
        run(meter, range(start, start + 500))
        while shipper.ship_once():
            pass
    assert len(ledger.events) == 3000
    assert len(segments(meter)) == 3
    assert int(segments(meter)[-1]) > 6


def test_a_segment_with_an_open_intent_stays(meter: Meter) -> None:
    ledger = FakeLedger()
    shipper = Shipper(meter, ledger, kept_segments=0)

    async def long_request_beside_others() -> None:
        await meter.begin(an_intent(5000))
        await asyncio.to_thread(run, meter, range(1500))
        while shipper.ship_once():
            pass
        assert segments(meter)[0] == "1"
        meter.finish(an_outcome(5000))
        await meter.finished(event_id(5000))

    asyncio.run(long_request_beside_others())
    shipper.ship_once()
    assert "1" not in segments(meter)
    assert len(ledger.events) == 1501


def test_an_unreadable_segment_delays_and_loses_nothing(meter: Meter) -> None:
    ledger = FakeLedger()
    run(meter, range(1200))
    shipper = Shipper(meter, ledger, batch_events_max=10**6)
    second = meter.directories[0] / "000000000002.segment"
    hidden = second.rename(second.with_suffix(".hidden"))
    second.mkdir()  # reading it fails
    with pytest.raises(OSError, match="directory"):
        shipper.ship_once()
    second.rmdir()
    hidden.rename(second)
    shipper.ship_once()
    assert len(ledger.events) == 1200
