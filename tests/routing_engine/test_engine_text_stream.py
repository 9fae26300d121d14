"""Pieces of an answer are whole characters, free of stop strings, and add up to the answer."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from routing_engine.engine.text_stream import TextStream


def decode_bytes(token_ids: Sequence[int]) -> str:
    """A tokenizer whose tokens are single bytes: every character can be cut anywhere."""
    return bytes(token_ids).decode("utf-8", "replace")


def run(text: bytes, stops: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    stream = TextStream(decode_bytes, stops)
    pieces = []
    for byte in text:
        pieces.append(stream.push(byte))
        if stream.is_stopped:
            break
    pieces.append(stream.finish())
    return pieces, stream.is_stopped


@given(st.text(max_size=40))
def test_pieces_add_up_to_the_text_and_hold_whole_characters(text: str) -> None:
    pieces, _ = run(text.encode())
    assert "".join(pieces) == text or text.endswith("\ufffd")
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_half_a_character_at_the_end_is_left_out() -> None:
    assert "".join(run("快排".encode()[:-1])[0]) == "快"


def test_bytes_of_no_character_do_not_hold_the_rest_back_for_ever() -> None:
    pieces, _ = run(b"a" + b"\xff" * 4 + b"b")
    assert pieces[-2] == "b"


@given(st.text("abc", max_size=20), st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_the_answer_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    pieces, is_stopped = run(text.encode(), tuple(stops))
    answer = "".join(pieces)
    assert not any(stop in answer for stop in stops)
    # Reading token by token, the stop string that is complete first ends the answer.
    ends = [place + len(stop) for stop in stops if (place := text.find(stop)) >= 0]
    if ends:
        seen = text[: min(ends)]
        assert answer == seen[: min(p for stop in stops if (p := seen.find(stop)) >= 0)]
    else:
        assert (answer, is_stopped) == (text, False)


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_none() -> None:
    assert run(b"a<en", ("<end>",))[0] == ["a", "", "", "", "<en"]
    assert run(b"a<enx", ("<end>",))[0] == ["a", "", "", "", "<enx", ""]
