import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.ids import EventIdMint, event_id_bytes, event_id_text, new_event_id

instants = st.integers(0, 2**40 * 1000)


def test_event_id_has_the_layout_of_rfc_9562() -> None:
    text = new_event_id(1_645_557_742_000_500, b"\xff" * 8)
    assert text == "017f22e2-79b0-7800-bfff-ffffffffffff"
    parsed = uuid.UUID(text)
    assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, text)


@given(st.lists(instants, min_size=2, max_size=2, unique=True), st.binary(min_size=8, max_size=8))
def test_event_ids_order_as_their_microseconds(pair: list[int], random_bytes: bytes) -> None:
    first, second = sorted(pair)
    assert new_event_id(first, b"\xff" * 8) < new_event_id(second, random_bytes)


@given(instants, st.binary(min_size=8, max_size=8))
def test_event_id_bytes_and_text_are_inverse(now_us: int, random_bytes: bytes) -> None:
    text = new_event_id(now_us, random_bytes)
    assert event_id_text(event_id_bytes(text)) == text
    assert event_id_bytes(text) == uuid.UUID(text).bytes


@pytest.mark.parametrize(
    "text",
    ["", "x", "017F22E2-79B0-7800-BFFF-FFFFFFFFFFFF", "017f22e279b07800bfffffffffffffff", "é" * 36],
)
def test_text_that_is_no_canonical_uuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"UUID|hexadecimal"):
        event_id_bytes(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(("now_us", "size"), [(-1, 8), (2**48 * 1000, 8), (0, 7), (0, 9)])
def test_event_id_needs_an_instant_and_eight_bytes(now_us: int, size: int) -> None:
    with pytest.raises(ValueError, match="random bytes"):
        new_event_id(now_us, b"\0" * size)


def test_mint_increases_strictly_when_the_clock_stands_still_or_steps_back() -> None:
    clock = iter([1000, 1000, 1000, 400, 3_600_000_000, 5, 3_600_000_002])
    mint = EventIdMint(clock_us=lambda: next(clock))
    minted = [mint.mint() for _ in range(7)]
    assert minted == sorted(set(minted))


def test_mint_draws_fresh_randomness_for_every_id() -> None:
    ids = [EventIdMint(clock_us=lambda: 7).mint() for _ in range(3)]
    mint = EventIdMint(clock_us=lambda: 7)
    ids += [mint.mint() for _ in range(2000)]
    assert len({text[19:] for text in ids}) == len(ids)
