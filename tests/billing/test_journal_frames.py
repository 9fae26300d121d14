import binascii
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.journal.frames import (
    HEADER_BYTES,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    Damage,
    Frame,
    encode_frame,
    frame_at,
    next_frame,
    scan,
)

frames = st.builds(
    Frame,
    kind=st.integers(0, 255),
    seq=st.integers(0, 2**64 - 1),
    boot_id=st.integers(0, 2**64 - 1),
    payload=st.binary(max_size=200),
)


def encoded(*items: Frame) -> bytes:
    return b"".join(encode_frame(f.kind, f.seq, f.boot_id, f.payload) for f in items)


def found(data: bytes) -> list[Frame | Damage]:
    return [item for _, item in scan(data)]


def test_the_byte_layout_never_changes() -> None:
    checked = bytes.fromhex("02000000" + "02000000" + "0500000000000000" + "0700000000000000")
    crc = binascii.crc32(checked + b"ab").to_bytes(4, "little")
    assert encode_frame(2, 5, 7, b"ab") == bytes.fromhex("ff45474a") + crc + checked + b"ab"


@given(st.lists(frames, max_size=10), st.integers(0, 100))
def test_frames_of_any_type_are_read_back(items: list[Frame], zeros: int) -> None:
    assert found(encoded(*items) + bytes(zeros)) == items


def test_a_payload_has_a_bound() -> None:
    assert frame_at(encode_frame(1, 1, 1, bytes(PAYLOAD_BYTES_MAX)), 0) is not None
    with pytest.raises(ValueError, match="65536"):
        encode_frame(1, 1, 1, bytes(PAYLOAD_BYTES_MAX + 1))


def test_every_flipped_byte_loses_one_frame_and_no_neighbour() -> None:
    items = [Frame(2, seq, 9, f"record {seq}".encode()) for seq in range(5)]
    data = encoded(*items)
    size = len(data) // 5
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x41
        hit = position // size
        survivors = [item for item in found(bytes(damaged)) if isinstance(item, Frame)]
        assert survivors == items[:hit] + items[hit + 1 :], position


@given(st.lists(frames, min_size=1, max_size=5), st.data())
def test_a_torn_tail_loses_only_the_torn_frame(items: list[Frame], data: st.DataObject) -> None:
    whole = encoded(*items)
    cut = data.draw(st.integers(0, len(whole) - 1))
    survivors = [item for item in found(whole[:cut]) if isinstance(item, Frame)]
    assert survivors == items[: len(survivors)]
    assert len(encoded(*items[: len(survivors) + 1])) > cut


def test_damage_is_reported_with_its_bounds_and_zeros_are_not_damage() -> None:
    good = encoded(Frame(2, 1, 1, b"x"))
    assert found(good + b"garbage" + good + bytes(50)) == [
        Frame(2, 1, 1, b"x"),
        Damage(33, 40),
        Frame(2, 1, 1, b"x"),
    ]
    assert found(good + b"torn") == [Frame(2, 1, 1, b"x"), Damage(33, 37)]


def test_text_in_a_payload_never_passes_for_a_frame() -> None:
    with pytest.raises(UnicodeDecodeError):
        MAGIC.decode()


@given(st.binary(max_size=300))
def test_noise_is_never_a_frame(noise: bytes) -> None:
    assert next_frame(noise, 0) is None
    assert frame_at(noise, 0) is None


def test_a_length_beyond_the_buffer_is_damage() -> None:
    whole = encoded(Frame(2, 1, 1, b"x" * 100))
    assert frame_at(whole[:-1], 0) is None
    assert frame_at(whole[: HEADER_BYTES - 1], 0) is None


def test_a_long_damaged_journal_is_scanned_in_one_pass() -> None:
    dice = random.Random(7)
    items = [Frame(3, seq, 1, dice.randbytes(40)) for seq in range(500)]
    data = bytearray(encoded(*items))
    for position in range(0, len(data), 720):
        data[position] ^= 1
    survivors = [item for item in found(bytes(data)) if isinstance(item, Frame)]
    assert len(survivors) == 450
