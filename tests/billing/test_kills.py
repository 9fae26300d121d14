"""Kill -9 at named points of a child process; afterwards, exactly one outcome per intent."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from billing.journal.segments import SEGMENT_BYTES_MIN
from billing.meter import Meter
from billing.types import Usage, UsageEvent, UsageSource
from tests.billing.metering import an_outcome, event_id

ROOT = Path(__file__).parents[2]

# The child tells on its standard output what it did, as a client would have seen it: an unbuffered
# write survives the kill that follows it.
CHILD = """
import asyncio, os, sys
from pathlib import Path
from billing import faults
from billing.faults import fault_point
from billing.journal.segments import SEGMENT_BYTES_MIN
from billing.meter import Meter
from tests.billing.metering import an_intent, an_outcome, event_id

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

async def request(meter, number, chunks):
    slot = await meter.begin(an_intent(number, request_id="r" * 1500))
    tell("begun", number)
    for index in range(chunks):
        slot.begin_chunk()
        tell("chunk", number)
        slot.chunk_done(10, is_content=True)
        if index % 3 == 0:
            await asyncio.sleep(0)
        fault_point("mid_stream")
    if number % 2:
        slot.usage_seen(100, chunks)
        fault_point("after_usage")
    meter.finish(an_outcome(number))
    await meter.finished(event_id(number))
    tell("finished", number)

async def main(directory, first, tasks, chunks):
    meter = Meter(Path(directory), segment_bytes=SEGMENT_BYTES_MIN)
    meter.open()
    faults.arm_from_environment()
    tell("ready")
    while True:
        await asyncio.gather(*(request(meter, first + n, chunks) for n in range(tasks)))
        first += tasks

directory, *numbers = sys.argv[1:]
asyncio.run(main(directory, *map(int, numbers)))
"""


class Told:
    """What a killed child had told."""

    def __init__(self, lines: list[str]) -> None:
        words = [line.split() for line in lines]
        self.begun = {int(w[1]) for w in words if w[0] == "begun"}
        self.finished = {int(w[1]) for w in words if w[0] == "finished"}
        self.chunks: dict[int, int] = {}
        for w in words:
            if w[0] == "chunk":
                self.chunks[int(w[1])] = self.chunks.get(int(w[1]), 0) + 1


def killed_child(
    directory: Path,
    *,
    fault: str = "",
    first: int = 0,
    tasks: int = 1,
    chunks: int = 5,
    lines: int = 0,
) -> Told:
    """Run a child until its fault kills it, or until it told `lines` lines and is killed from here."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory), str(first), str(tasks), str(chunks)],
        cwd=ROOT,
        env={**os.environ, "EXPERTGATE_FAULT": fault},
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        told = []
        for line in child.stdout:
            told.append(line)
            if lines and len(told) == lines:
                child.kill()
        assert child.wait(60) == -signal.SIGKILL
    return Told(told[1:])


def recovered(directory: Path) -> list[UsageEvent]:
    meter = Meter(directory, segment_bytes=SEGMENT_BYTES_MIN)
    meter.open()
    batch = meter.reader(after=0).read(10**7)
    assert (meter.open_events, batch.orphans) == (0, [])
    meter.close()
    return list(batch.events)


def check(events: list[UsageEvent], told: Told) -> dict[int, UsageEvent]:
    """Assert what must hold after any kill, and return the events by number."""
    found = {int.from_bytes(bytes.fromhex(e.intent.event_id[-8:]), "big"): e for e in events}
    assert len(found) == len(events)
    assert told.begun <= set(found)
    for number, event in found.items():
        outcome, seen = event.outcome, told.chunks.get(number, 0)
        if number in told.finished:
            assert outcome == an_outcome(number)
        elif outcome.usage_source is UsageSource.RECOVERED:
            # The client saw `seen`; what is billed is one less at most, and never more.
            assert seen - 1 <= outcome.delivered_chunks <= seen
        elif outcome.usage_source is UsageSource.NONE:
            assert seen <= 1
            assert (outcome.usage, outcome.billed_calls) == (Usage(0, 0), 0)
    return found


def test_killed_before_the_intent_is_durable(tmp_path: Path) -> None:
    told = killed_child(tmp_path, fault="before_intent_fsync:kill:3")
    assert told.begun == {0, 1}
    found = check(recovered(tmp_path), told)
    # The third was never acknowledged, so no backend was called; if its bytes survived, it costs nothing.
    assert set(found) <= {0, 1, 2}
    assert all(found[number].outcome == an_outcome(number) for number in (0, 1))


def test_killed_after_the_intent(tmp_path: Path) -> None:
    told = killed_child(tmp_path, fault="after_intent:kill:3")
    found = check(recovered(tmp_path), told)
    assert set(found) == {0, 1, 2}
    outcome = found[2].outcome
    assert (outcome.usage, outcome.billed_calls) == (Usage(0, 0), 0)
    assert outcome.flags == ("recovered", "expert_unknown")


@pytest.mark.parametrize("chunk", [1, 2, 5, 33])
def test_killed_in_the_middle_of_a_stream(tmp_path: Path, chunk: int) -> None:
    told = killed_child(tmp_path, fault=f"mid_stream:kill:{chunk}", chunks=40)
    [event] = check(recovered(tmp_path), told).values()
    assert event.outcome.delivered_chunks == told.chunks[0] == chunk
    assert event.outcome.usage == Usage(120, chunk)
    assert event.outcome.usage_source is UsageSource.RECOVERED


def test_killed_after_the_backend_reported_its_usage(tmp_path: Path) -> None:
    told = killed_child(tmp_path, fault="after_usage:kill", chunks=7)
    outcome = check(recovered(tmp_path), told)[1].outcome
    assert (outcome.usage, outcome.usage_source) == (Usage(100, 7), UsageSource.RECOVERED)


def test_killed_before_the_outcome_is_durable(tmp_path: Path) -> None:
    told = killed_child(tmp_path, fault="before_outcome_fsync:kill", chunks=4)
    outcome = check(recovered(tmp_path), told)[0].outcome
    assert outcome.delivered_chunks in {4, 20}  # from the slot, or the outcome's bytes survived


def test_killed_after_the_outcome(tmp_path: Path) -> None:
    told = killed_child(tmp_path, fault="after_outcome:kill:2")
    assert told.finished == {0}
    found = check(recovered(tmp_path), told)
    assert found[1].outcome == an_outcome(1)


def test_killed_while_recovering(tmp_path: Path) -> None:
    told = killed_child(tmp_path, fault="mid_stream:kill:3", chunks=40)
    code = (
        "import sys; from pathlib import Path; from billing import faults; from billing.meter import Meter;"
        "faults.arm_from_environment(); Meter(Path(sys.argv[1])).open()"
    )
    again = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "EXPERTGATE_FAULT": "before_outcome_fsync:kill"},
        timeout=60,
        check=False,
    )
    assert again.returncode == -signal.SIGKILL
    [event] = check(recovered(tmp_path), told).values()
    assert event.outcome.delivered_chunks == 3
    assert [event] == recovered(tmp_path)


def test_a_storm_of_kills_loses_and_doubles_nothing(tmp_path: Path) -> None:
    dice = random.Random(1)
    first, everything = 0, Told([])
    for _ in range(12):
        told = killed_child(
            tmp_path, first=first, tasks=16, chunks=6, lines=dice.randrange(1, 1500)
        )
        everything.begun |= told.begun
        everything.finished |= told.finished
        everything.chunks |= told.chunks
        first += 100_000
    found = check(recovered(tmp_path), everything)
    assert len(found) >= len(everything.begun) > 100


def test_killed_between_the_ledgers_commit_and_the_next_batch(tmp_path: Path) -> None:
    code = """
import asyncio, json, sys
from pathlib import Path
from billing import faults
from billing.meter import Meter
from billing.shipper import Shipper
from tests.billing.metering import FakeLedger, an_intent, an_outcome, event_id

class FileLedger(FakeLedger):
    def record_events(self, events, *, journal_id, position):
        new = super().record_events(events, journal_id=journal_id, position=position)
        with Path(sys.argv[2]).open("a") as file:
            file.write(json.dumps([list(new), position]) + "\\n")
        return new

async def main():
    meter = Meter(Path(sys.argv[1]))
    meter.open()
    for number in range(50):
        await meter.begin(an_intent(number))
        meter.finish(an_outcome(number))
        await meter.finished(event_id(number))
    faults.arm_from_environment()
    shipper = Shipper(meter, FileLedger(), batch_events_max=10)
    while shipper.ship_once():
        pass

asyncio.run(main())
"""
    books = tmp_path / "books"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "w0"), str(books)],
        cwd=ROOT,
        env={**os.environ, "EXPERTGATE_FAULT": "after_ledger_commit:kill:3"},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    commits = [json.loads(line) for line in books.read_text().splitlines()]
    assert len(commits) == 3
    meter = Meter(tmp_path / "w0")
    meter.open()
    rest = meter.reader(after=commits[-1][1]).read(1000).events
    meter.close()
    shipped = [event for ids, _ in commits for event in ids]
    assert shipped + [event.intent.event_id for event in rest] == [event_id(n) for n in range(50)]
