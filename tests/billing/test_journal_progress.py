import struct
from pathlib import Path

import pytest

from billing.errors import MeteringUnavailable
from billing.journal.progress import SLOT_BYTES, Progress, ProgressFile
from tests.billing.metering import event_id


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress.slots"


def test_a_slot_says_what_was_recorded(path: Path) -> None:
    slots = ProgressFile(path, slots=4)
    slot = slots.claim(event_id(1))
    assert slots.read() == {event_id(1): Progress(event_id(1), 0, 0, 0, 0)}
    slot.begin_chunk()
    slot.chunk_done(30, is_content=False)
    slot.begin_chunk()
    slot.chunk_done(50, is_content=True)
    slot.begin_chunk()
    slot.usage_seen(7, 8)
    slots.sync()
    expected = {event_id(1): Progress(event_id(1), 3, 2, 80, 1, 7, 8)}
    assert slots.read() == expected
    slots.close()
    again = ProgressFile(path, slots=4)
    assert again.read() == expected
    again.clear()
    assert again.read() == {}
    again.close()


def test_a_claimed_slot_starts_from_zero_whoever_had_it(path: Path) -> None:
    slots = ProgressFile(path, slots=1)
    first = slots.claim(event_id(1))
    first.begin_chunk()
    first.chunk_done(5, is_content=True)
    first.usage_seen(1, 2)
    slots.release(first)
    slots.claim(event_id(2))
    first.begin_chunk()  # too late: must not be counted for the next owner
    first.chunk_done(5, is_content=True)
    first.usage_seen(3, 4)
    assert slots.read() == {event_id(2): Progress(event_id(2), 0, 0, 0, 0)}
    slots.close()


def test_slots_are_bounded(path: Path) -> None:
    slots = ProgressFile(path, slots=2)
    held = [slots.claim(event_id(number)) for number in (1, 2)]
    assert slots.in_use == 2
    with pytest.raises(MeteringUnavailable, match="2 requests"):
        slots.claim(event_id(3))
    slots.release(held[0])
    slots.claim(event_id(3))
    slots.close()


def test_an_id_that_is_no_uuid_takes_no_slot(path: Path) -> None:
    slots = ProgressFile(path, slots=1)
    with pytest.raises(ValueError, match="UUID"):
        slots.claim("00-11")  # type: ignore[arg-type]
    assert slots.in_use == 0
    slots.close()


@pytest.mark.parametrize("figures", [(-1, 0), (0, 2**63)])
def test_absurd_usage_is_refused(path: Path, figures: tuple[int, int]) -> None:
    slots = ProgressFile(path, slots=1)
    with pytest.raises(ValueError, match="validated"):
        slots.claim(event_id(1)).usage_seen(*figures)
    slots.close()


def test_a_file_with_more_slots_is_read_whole(path: Path) -> None:
    slots = ProgressFile(path, slots=8)
    for number in range(8):
        slots.claim(event_id(number))
    slots.close()
    fewer = ProgressFile(path, slots=2)
    assert len(fewer.read()) == 8
    fewer.close()


def set_word(path: Path, word: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(word * 8)
        file.write(struct.pack("=Q", value))


@pytest.mark.parametrize(
    ("word", "value", "expected"),
    [
        (0, 99, None),  # another event's id without its check
        (15, 0, None),  # killed while claiming
        (3, 9, "damaged"),  # begun far ahead of done
        (4, 9, "damaged"),  # done ahead of begun
        (6, 9, "damaged"),  # more content than chunks
        (5, 2**63, "damaged"),
        (7, 9, "no usage"),  # killed between the two figures
        (9, 0, "no usage"),
    ],
)
def test_what_contradicts_itself_is_not_believed(
    path: Path, word: int, value: int, expected: str | None
) -> None:
    slots = ProgressFile(path, slots=1)
    slot = slots.claim(event_id(1))
    slot.begin_chunk()
    slot.chunk_done(5, is_content=True)
    slot.usage_seen(1, 2)
    slots.close()
    set_word(path, word, value)
    slots = ProgressFile(path, slots=1)
    found = slots.read().get(event_id(1))
    slots.close()
    if expected is None:
        assert found is None
    elif expected == "damaged":
        assert found is not None
        assert found.is_damaged
    else:
        assert found == Progress(event_id(1), 1, 1, 5, 1)


def test_every_interruption_of_a_chunk_is_believed_within_one_chunk(path: Path) -> None:
    # The words of one chunk in the order they are stored; a kill may come between any two.
    for killed_after in range(5):
        slots = ProgressFile(path, slots=1)
        slots.clear()
        slot = slots.claim(event_id(1))
        for _ in range(3):
            slot.begin_chunk()
            slot.chunk_done(10, is_content=True)
        slots.close()
        for word, value in [(3, 4), (5, 40), (6, 4), (4, 4)][:killed_after]:
            set_word(path, word, value)
        slots = ProgressFile(path, slots=1)
        found = slots.read()[event_id(1)]
        slots.close()
        assert not found.is_damaged
        assert found.content_chunks_done in {3, 4}


def test_the_size_of_a_slot_is_part_of_the_file_format(path: Path) -> None:
    ProgressFile(path, slots=3).close()
    assert (SLOT_BYTES, path.stat().st_size) == (128, 384)
