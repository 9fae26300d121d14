"""Events are cut right however the bytes arrive, and their raw bytes are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sse import EVENT_BYTES_MAX, EventParser, EventTooLong


def parse(*chunks):
    parser = EventParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return [event.data for event in events], [event.raw for event in events], parser.pending


@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b": comment\n\ndata: a\n\n", [b"", b"a"]),
        (b"event: x\ndata: a\ndata: b\nid: 3\n\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b"data:  two spaces\n\n", [b" two spaces"]),
        (b"data: a\r\rdata: b\r\r\n", [b"a", b"b"]),
        ("data: 北京🚀\n\n".encode(), ["北京🚀".encode()]),
    ],
)
def test_framings_of_the_field(stream, data):
    assert parse(stream)[0] == data


def test_half_an_event_is_kept_back():
    data, raw, pending = parse(b'data: a\n\ndata: {"cho')
    assert (data, raw) == ([b"a"], [b"data: a\n\n"])
    assert pending == b'data: {"cho'


@given(
    st.lists(
        st.sampled_from(
            [
                b"data: a\n\n",
                b"data: b\r\n\r\n",
                b": ping\n\n",
                "data: 北🚀\n\n".encode(),
                b"data: x\ndata: y\n\n",
            ]
        ),
        max_size=8,
    ),
    st.data(),
)
def test_any_split_gives_the_same_events_and_loses_no_byte(events, data):
    stream = b"".join(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [
        stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]
    whole, split = parse(stream), parse(*pieces)
    assert split[0] == whole[0]
    assert b"".join(split[1]) + split[2] == stream


def test_an_event_without_end_is_refused_at_the_bound():
    parser = EventParser()
    for _ in range(EVENT_BYTES_MAX // 65536):
        assert parser.feed(b"x" * 65536) == []
    with pytest.raises(EventTooLong):
        parser.feed(b"x")


@pytest.mark.timeout(30)
def test_events_that_arrive_together_are_cut_in_one_pass():
    for separator in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        event = b"data: " + b"x" * 60 + separator
        assert len(EventParser().feed(event * 15_000 + b"data")) == 15_000
