"""Strict JSON in, exact bytes out."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest, InvalidJson
from gateway.json_document import JsonDocument


def test_untouched_document_is_returned_byte_for_byte():
    body = b'{ "model" : "auto", "seed": 12345678901234567890123, "t": 1.0,\n "x": {"b":1, "a":2} }'
    assert JsonDocument.parse(body).encode() == body


def test_unknown_members_keep_their_bytes_and_order_when_another_member_changes():
    body = b'{"z":1.0,"model":"auto","big":18446744073709551617,"nested":{"b" : 1, "a":2}}'
    document = JsonDocument.parse(body)
    document.set("model", "m")
    assert document.encode() == (
        b'{"z":1.0,"model":"m","big":18446744073709551617,"nested":{"b" : 1, "a":2}}'
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b"{",
        b'{"a":1,}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b"{'a':1}",
        b'{"a":1} {"b":2}',
        b'{"a":01}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800 and more text"}',
        b'{"a":{"b":["\\udc00"]}}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"a":1,"a":1}',
        b'{"n":1,"b":[1,2],"n":128}',
        b'{"a\\"":1,"b":2,"a\\"":3}',
    ],
)
def test_what_is_not_strict_json_is_refused(body):
    with pytest.raises(InvalidJson):
        JsonDocument.parse(body)


def test_equal_keys_in_nested_objects_are_not_duplicates_of_the_top_level():
    document = JsonDocument.parse(b'{"a":{"a":1},"b":"\\"a\\":", "c":[{"a":2}]}')
    assert list(document.members) == ["a", "b", "c"]


def test_member_of_another_type_is_named():
    document = JsonDocument.parse(b'{"stream":"yes"}')
    with pytest.raises(BadRequest, match="'stream' must be true or false") as caught:
        document.get("stream", bool, "true or false")
    assert caught.value.param == "stream"


def test_null_and_absent_members_read_as_none():
    document = JsonDocument.parse(b'{"stop":null}')
    assert document.get("stop", str, "a string") is None
    assert document.get("other", str, "a string") is None


def test_a_copy_changes_alone():
    document = JsonDocument.parse(b'{"model":"auto"}')
    copy = document.copy()
    copy.set("model", "other")
    copy.set("new", [1])
    assert document.encode() == b'{"model":"auto"}'
    assert copy.encode() == b'{"model":"other","new":[1]}'


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), _json, max_size=6), st.sampled_from([None, 1, 4]))
def test_every_object_without_duplicates_is_accepted(value, indent):
    import json

    body = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        encoded = body.encode()
    except UnicodeEncodeError:
        return
    document = JsonDocument.parse(encoded)
    assert list(document.members) == list(value)
    assert document.encode() == encoded


@given(st.dictionaries(st.text(alphabet='ab"\\ {}:,中'), _json, min_size=1, max_size=4), st.data())
def test_every_duplicate_of_a_top_level_key_is_refused(value, data):
    import json

    key = data.draw(st.sampled_from(sorted(value)))
    try:
        text = json.dumps(value, ensure_ascii=False).encode()[:-1]
        text += b", " + json.dumps(key, ensure_ascii=False).encode() + b": 7}"
    except UnicodeEncodeError:
        return
    with pytest.raises(InvalidJson):
        JsonDocument.parse(text)


def test_msgspec_still_reads_integers_of_any_size_exactly():
    # Pinned behaviour of the library: other decoders turn these into floats.
    assert msgspec.json.decode(b"18446744073709551617") == 18446744073709551617
