import asyncio
import contextlib
import logging
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from billing.errors import EventConflict, JournalLocked, MeteringUnavailable, UnsupportedJournal
from billing.journal.frames import FrameType, encode_frame
from billing.journal.records import SegmentHeader, encode_record
from billing.journal.segments import SEGMENT_BYTES_MIN, segment_path
from billing.meter import Meter
from billing.types import Usage, UsageEvent, UsageSource, UsageStatus
from tests.billing.metering import (
    NOON,
    FailingDisk,
    ForgetfulDisk,
    an_intent,
    an_outcome,
    event_id,
)

ROOT = Path(__file__).parents[2]

OpenMeter = Callable[..., Meter]


@pytest.fixture
async def open_meter(tmp_path: Path) -> AsyncIterator[OpenMeter]:
    meters: list[Meter] = []

    def opened(directory: str = "w0", **arguments: object) -> Meter:
        if isinstance(arguments.get("second"), str):
            arguments["second_directory"] = tmp_path / str(arguments.pop("second"))
        meter = Meter(
            tmp_path / directory,
            segment_bytes=SEGMENT_BYTES_MIN,
            now=lambda: NOON,
            retry_s=0.01,
            **arguments,  # type: ignore[arg-type]
        )
        meters.append(meter)
        meter.open()
        return meter

    yield opened
    for meter in meters:
        try:
            meter.close()
        except MeteringUnavailable:
            # A test left its disk broken; what it says about that it has asserted.
            continue


def events(meter: Meter, after: int = 0) -> list[UsageEvent]:
    batch = meter.reader(after=after).read(10**6)
    assert not batch.orphans
    return list(batch.events)


async def run_one(meter: Meter, number: int) -> None:
    slot = await meter.begin(an_intent(number))
    slot.begin_chunk()
    slot.chunk_done(10, is_content=True)
    meter.finish(an_outcome(number))
    await meter.finished(event_id(number))


async def test_an_event_is_its_intent_and_its_outcome(open_meter: OpenMeter) -> None:
    meter = open_meter()
    await run_one(meter, 1)
    assert events(meter) == [UsageEvent(an_intent(1), an_outcome(1))]
    assert (meter.open_events, meter.queued_records, meter.is_healthy) == (0, 0, True)


async def test_the_first_outcome_counts_and_strangers_are_ignored(open_meter: OpenMeter) -> None:
    meter = open_meter()
    await meter.begin(an_intent(1))
    meter.finish(an_outcome(1))
    meter.finish(an_outcome(1, usage=Usage(9, 9)))
    meter.finish(an_outcome(77))
    await meter.finished(event_id(1))
    meter.finish(an_outcome(1))
    await meter.finished(event_id(77))
    assert events(meter) == [UsageEvent(an_intent(1), an_outcome(1))]


async def test_an_open_event_is_not_begun_twice(open_meter: OpenMeter) -> None:
    meter = open_meter()
    await meter.begin(an_intent(1))
    with pytest.raises(EventConflict):
        await meter.begin(an_intent(1))


async def test_many_waiters_see_the_same_outcome(open_meter: OpenMeter) -> None:
    meter = open_meter()
    await meter.begin(an_intent(1))
    waiters = [asyncio.create_task(meter.finished(event_id(1))) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    meter.finish(an_outcome(1))
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None, None]


async def test_an_outcome_given_in_a_cancelled_finally_is_kept(open_meter: OpenMeter) -> None:
    meter = open_meter()

    begun = asyncio.Event()

    async def request() -> None:
        await meter.begin(an_intent(1))
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            meter.finish(an_outcome(1, status=UsageStatus.CLIENT_CANCELLED))

    task = asyncio.create_task(request())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await meter.finished(event_id(1))
    assert [event.outcome.status for event in events(meter)] == [UsageStatus.CLIENT_CANCELLED]


async def test_a_cancelled_begin_closes_its_event_with_nothing_billed(
    open_meter: OpenMeter,
) -> None:
    meter = open_meter()
    task = asyncio.create_task(meter.begin(an_intent(1)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    meter.finish(an_outcome(1))
    await meter.finished(event_id(1))
    [event] = events(meter)
    assert (event.outcome.usage, event.outcome.billed_calls) == (Usage(0, 0), 0)
    assert meter.open_events == 0


async def test_too_many_requests_in_flight_are_refused(open_meter: OpenMeter) -> None:
    meter = open_meter(slots=1)
    await meter.begin(an_intent(1))
    with pytest.raises(MeteringUnavailable, match="in flight"):
        await meter.begin(an_intent(2))
    meter.finish(an_outcome(1))
    await meter.finished(event_id(1))
    await run_one(meter, 2)
    assert len(events(meter)) == 2


async def test_a_closed_meter_takes_nothing_and_can_be_opened_again(open_meter: OpenMeter) -> None:
    meter = open_meter()
    await run_one(meter, 1)
    journal_id = meter.journal_id
    meter.close()
    meter.close()
    with pytest.raises(MeteringUnavailable, match="not open"):
        await meter.begin(an_intent(2))
    meter.open()
    await run_one(meter, 2)
    assert meter.journal_id == journal_id
    assert [event.intent for event in events(meter)] == [an_intent(1), an_intent(2)]


async def test_closing_drains_what_is_queued(open_meter: OpenMeter) -> None:
    meter = open_meter()
    for number in range(200):
        await meter.begin(an_intent(number))
    for number in range(200):
        meter.finish(an_outcome(number))
    meter.close()
    assert len(events(meter)) == 200


async def test_concurrent_requests_share_segments_and_none_is_lost(open_meter: OpenMeter) -> None:
    meter = open_meter()
    await asyncio.gather(*(run_one(meter, number) for number in range(1000)))
    found = events(meter)
    assert sorted(event.intent.event_id for event in found) == [event_id(n) for n in range(1000)]
    assert len(list(meter.directories[0].glob("*.segment"))) > 2


def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    owner = Meter(tmp_path / "w0", second_directory=tmp_path / "spare")
    owner.open()
    for directory in ("w0", "spare"):
        with pytest.raises(JournalLocked, match=directory):
            Meter(tmp_path / directory).open()
    code = "import sys; from pathlib import Path; from billing.meter import Meter; Meter(Path(sys.argv[1])).open()"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "w0")],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert b"JournalLocked" in done.stderr
    owner.close()
    again = Meter(tmp_path / "spare")
    again.open()
    again.close()


async def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MeteringUnavailable, match="can't be opened"):
        Meter(tmp_path / "file" / "w0").open()
    disk = FailingDisk()
    disk.failing["create", "w0"] = 1
    meter = Meter(tmp_path / "w0", disk=disk)
    with pytest.raises(MeteringUnavailable, match="injected create"):
        meter.open()
    meter.open()
    meter.close()


async def test_after_a_failed_sync_another_directory_takes_over(open_meter: OpenMeter) -> None:
    disk = FailingDisk()
    meter = open_meter(disk=disk, second="spare")
    await run_one(meter, 1)
    disk.failing["sync", "w0"] = 1
    await run_one(meter, 2)
    await run_one(meter, 3)
    assert disk.touched_after_failure == []
    assert [path.name for path in meter.directories[1].glob("*.segment")] == [
        "000000000002.segment"
    ]
    assert [event.intent for event in events(meter)] == [an_intent(n) for n in (1, 2, 3)]
    meter.close()
    meter.open()
    assert [event.intent for event in events(meter)] == [an_intent(n) for n in (1, 2, 3)]


async def test_without_another_directory_a_failed_sync_fails_closed(open_meter: OpenMeter) -> None:
    disk = FailingDisk()
    meter = open_meter(disk=disk)
    await meter.begin(an_intent(1))
    disk.failing.update({("sync", "w0"): 1, ("create", "w0"): 1})
    disk.is_lasting = True
    with pytest.raises(MeteringUnavailable, match="injected sync"):
        await meter.begin(an_intent(2))
    assert (meter.open_events, meter.is_healthy) == (1, False)
    meter.finish(an_outcome(1))  # waits in memory until a fresh segment can be made
    with pytest.raises(MeteringUnavailable):
        await meter.begin(an_intent(3))
    assert disk.touched_after_failure == []
    disk.failing.clear()
    await asyncio.wait_for(meter.finished(event_id(1)), 10)
    await run_one(meter, 4)
    assert [event.intent for event in events(meter)] == [an_intent(1), an_intent(4)]
    assert disk.touched_after_failure == []


async def test_outcomes_left_unwritten_at_closing_are_reported_and_recovered(
    open_meter: OpenMeter,
) -> None:
    disk = FailingDisk()
    meter = open_meter(disk=disk)
    slot = await meter.begin(an_intent(1))
    for _ in range(4):
        slot.begin_chunk()
        slot.chunk_done(9, is_content=True)
    disk.failing.update({("sync", "w0"): 1, ("create", "w0"): 1})
    disk.is_lasting = True
    meter.finish(an_outcome(1))
    with pytest.raises(MeteringUnavailable, match="left unwritten"):
        meter.close()
    disk.failing.clear()
    meter.open()
    # The outcome's bytes were in the file, if not surely on disk: it is found, and found once.
    assert events(meter) == [UsageEvent(an_intent(1), an_outcome(1))]


async def test_a_full_disk_refuses_intents_and_keeps_room_for_outcomes(
    open_meter: OpenMeter,
) -> None:
    disk = FailingDisk()
    meter = open_meter(disk=disk)
    disk.failing["create", "w0"] = 1
    disk.is_lasting = True
    begun = 0

    async def begin_until_refused() -> None:
        nonlocal begun
        while begun < 10_000:
            await meter.begin(an_intent(begun, request_id="r" * 2000))
            begun += 1

    with pytest.raises(MeteringUnavailable, match="injected create"):
        await begin_until_refused()
    assert begun > 50
    for number in range(begun):
        meter.finish(an_outcome(number))
        await asyncio.wait_for(meter.finished(event_id(number)), 10)
    assert len(events(meter)) == begun
    disk.failing.clear()
    async with asyncio.timeout(10):
        while len(events(meter)) == begun:
            with contextlib.suppress(MeteringUnavailable):
                await run_one(meter, begun)


async def test_short_writes_are_completed(open_meter: OpenMeter) -> None:
    disk = FailingDisk()
    meter = open_meter(disk=disk)
    disk.short_writes = 6
    await run_one(meter, 1)
    assert events(meter) == [UsageEvent(an_intent(1), an_outcome(1))]


def test_a_damaged_record_is_isolated_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def write() -> None:
        meter = Meter(tmp_path, segment_bytes=SEGMENT_BYTES_MIN)
        meter.open()
        for number in (1, 2, 3):
            await run_one(meter, number)
        meter.close()

    asyncio.run(write())
    path = segment_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    needle = encode_record(an_outcome(2))
    data[data.index(needle) + 10] ^= 1
    path.write_bytes(data)
    meter = Meter(tmp_path, segment_bytes=SEGMENT_BYTES_MIN, now=lambda: NOON)
    with caplog.at_level(logging.ERROR):
        meter.open()
    found = {event.intent.event_id: event.outcome for event in events(meter)}
    meter.close()
    assert [record.message for record in caplog.records] == ["journal_damaged"]
    assert found[event_id(1)] == an_outcome(1)
    assert found[event_id(3)] == an_outcome(3)
    # The slot had not been used again, so it still said what was delivered.
    assert found[event_id(2)].flags == ("recovered", "usage_missing")
    assert found[event_id(2)].usage == Usage(120, 1)


def test_an_event_whose_progress_is_lost_is_not_billed(tmp_path: Path) -> None:
    async def leave_open() -> None:
        meter = Meter(tmp_path)
        meter.open()
        (await meter.begin(an_intent(1))).usage_seen(5, 6)
        meter.close()

    asyncio.run(leave_open())
    (tmp_path / "progress.slots").unlink()
    meter = Meter(tmp_path)
    meter.open()
    [event] = events(meter)
    meter.close()
    assert event.outcome.flags == ("recovered", "expert_unknown", "progress_lost")
    assert (event.outcome.usage, event.outcome.billed_calls) == (Usage(0, 0), 0)


def test_an_outcome_whose_intent_is_damaged_is_reported_not_dropped(tmp_path: Path) -> None:
    async def write() -> None:
        meter = Meter(tmp_path)
        meter.open()
        await run_one(meter, 1)
        await run_one(meter, 2)
        meter.close()

    asyncio.run(write())
    path = segment_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[data.index(encode_record(an_intent(1))) + 10] ^= 1
    path.write_bytes(data)
    meter = Meter(tmp_path)
    meter.open()
    batch = meter.reader(after=0).read(100)
    meter.close()
    assert batch.orphans == [an_outcome(1)]
    assert [event.intent for event in batch.events] == [an_intent(2)]
    assert len(batch.damage) == 1


def write_segment(directory: Path, index: int, *frames: bytes, version: int = 1) -> None:
    header = SegmentHeader(version=version, journal_id="j", index=index)
    data = encode_frame(FrameType.HEADER, 1, 1, encode_record(header)) + b"".join(frames)
    segment_path(directory, index).write_bytes(data)


def test_unknown_records_are_passed_over_unless_they_must_be_understood(tmp_path: Path) -> None:
    intent = encode_frame(FrameType.INTENT, 2, 1, encode_record(an_intent(1)))
    outcome = encode_frame(FrameType.OUTCOME, 4, 1, encode_record(an_outcome(1)))
    write_segment(tmp_path, 1, intent, encode_frame(77, 3, 1, b"?"), outcome)
    before = segment_path(tmp_path, 1).read_bytes()
    meter = Meter(tmp_path)
    meter.open()
    assert events(meter) == [UsageEvent(an_intent(1), an_outcome(1))]
    assert segment_path(tmp_path, 1).read_bytes() == before
    meter.close()
    write_segment(tmp_path, 1, intent, encode_frame(128, 3, 1, b"?"), outcome)
    with pytest.raises(UnsupportedJournal, match="type 128"):
        meter.open()
    write_segment(tmp_path, 1, version=2)
    with pytest.raises(UnsupportedJournal, match="version 2"):
        meter.open()


def test_a_half_made_segment_stops_nobody(tmp_path: Path) -> None:
    async def one(number: int) -> list[UsageEvent]:
        meter = Meter(tmp_path)
        meter.open()
        await run_one(meter, number)
        found = events(meter)
        meter.close()
        return found

    asyncio.run(one(1))
    segment_path(tmp_path, 2).write_bytes(bytes(5000))
    assert len(asyncio.run(one(2))) == 2
    assert len(asyncio.run(one(3))) == 3


def test_recovery_of_many_open_intents_is_written_once(tmp_path: Path) -> None:
    async def leave_open() -> None:
        meter = Meter(tmp_path, segment_bytes=SEGMENT_BYTES_MIN)
        meter.open()
        await asyncio.gather(*(meter.begin(an_intent(number)) for number in range(2000)))
        meter.close()

    asyncio.run(leave_open())
    for _ in range(2):
        meter = Meter(tmp_path, segment_bytes=SEGMENT_BYTES_MIN)
        meter.open()
        found = events(meter)
        meter.close()
        assert len(found) == len({event.intent.event_id for event in found}) == 2000
        assert {event.outcome.usage_source for event in found} == {UsageSource.NONE}


@pytest.mark.parametrize("seed", range(40))
def test_power_loss_takes_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    acknowledged_intents, acknowledged_outcomes = set(), set()
    disk = ForgetfulDisk(cut_after=dice.randrange(5, 120))

    async def work(meter: Meter, number: int) -> None:
        await meter.begin(an_intent(number, request_id="r" * dice.randrange(3000)))
        acknowledged_intents.add(event_id(number))
        meter.finish(an_outcome(number))
        await meter.finished(event_id(number))
        acknowledged_outcomes.add(event_id(number))

    async def until_the_power_fails() -> None:
        meter = Meter(tmp_path, disk=disk, segment_bytes=SEGMENT_BYTES_MIN, retry_s=1000)
        meter.open()
        for start in range(0, 600, 6):
            tasks = [asyncio.create_task(work(meter, n)) for n in range(start, start + 6)]
            done, waiting = await asyncio.wait(tasks, timeout=0.1)
            failures = [task.exception() for task in done]
            if waiting or any(failures):
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
                break
        # Whether something was left unwritten depends on where the cut fell.
        with contextlib.suppress(MeteringUnavailable):
            meter.close()

    asyncio.run(until_the_power_fails())
    meter = Meter(tmp_path, disk=disk.after_power_loss(dice), segment_bytes=SEGMENT_BYTES_MIN)
    meter.open()
    batch = meter.reader(after=0).read(10**6)
    meter.close()
    found = [event.intent.event_id for event in batch.events]
    billed = {
        event.intent.event_id
        for event in batch.events
        if event.outcome == replace(an_outcome(1), event_id=event.intent.event_id)
    }
    assert len(found) == len(set(found))
    assert acknowledged_intents <= set(found)
    assert acknowledged_outcomes <= billed
