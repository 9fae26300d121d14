"""The form of API keys: length, alphabet, checksum; the digest; no secret in messages."""

import hmac
import re
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import MalformedKey
from billing.keys import KEY_LENGTH, is_well_formed, key_digest, make_key, require_well_formed

KEY = make_key(bytes(range(32)))
PEPPER = b"p" * 32


def test_key_has_prefix_secret_and_checksum():
    assert re.fullmatch(r"eg_[0-9A-Za-z]{43}[0-9A-Za-z]{6}", KEY)
    assert (len(KEY), KEY_LENGTH) == (52, 52)
    assert require_well_formed(KEY) == KEY
    assert make_key(b"\0" * 32)[:46] == "eg_" + "0" * 43
    assert is_well_formed(make_key(b"\xff" * 32))


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_every_key_is_well_formed_and_carries_its_bytes(left, right):
    assert is_well_formed(make_key(left))
    assert (make_key(left) == make_key(right)) == (left == right)


@given(st.integers(3, 51), st.sampled_from("0123456789ABCXYZabcxyz"))
def test_one_wrong_character_is_found(place, character):
    mistyped = KEY[:place] + character + KEY[place + 1 :]
    assert is_well_formed(mistyped) == (mistyped == KEY)


@pytest.mark.parametrize(
    "text", ["", "eg_", KEY[:-1], KEY + "0", "sk_" + KEY[3:], KEY[:-1] + "é", " " + KEY, KEY + "\n"]
)
def test_other_text_is_refused_without_being_repeated(text):
    with pytest.raises(MalformedKey) as caught:
        require_well_formed(text)
    assert not text.strip() or len(text) < 5 or text not in str(caught.value)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_key_is_made_of_exactly_256_bits(length):
    with pytest.raises(ValueError, match="32 random bytes"):
        make_key(b"x" * length)


def test_digest_is_hmac_sha256_of_the_whole_key():
    assert key_digest(PEPPER, KEY) == hmac.new(PEPPER, KEY.encode(), sha256).hexdigest()
    assert key_digest(b"q" * 32, KEY) != key_digest(PEPPER, KEY)


def test_short_pepper_is_refused():
    with pytest.raises(ValueError, match="at least 32 bytes"):
        key_digest(b"p" * 31, KEY)
