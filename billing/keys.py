"""API keys: how one is made, checked without a database, and turned into the digest that is stored.

Owns the format ``eg_`` + 43 base-62 characters (256 random bits) + 6 base-62 characters of CRC-32. Pure: the
caller brings the random bytes. The checksum finds typing errors and lets scanners recognise leaked keys; it
proves nothing, the digest does.
"""

import hmac
import zlib
from hashlib import sha256

from billing.errors import MalformedKey

PREFIX = "eg_"
SECRET_BYTES = 32
"""Entropy of a key: 256 bits."""

PEPPER_BYTES_MIN = 32
"""A pepper shorter than the digest would be the weakest part."""

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_LENGTH = 43
_CHECKSUM_LENGTH = 6
KEY_LENGTH = len(PREFIX) + _SECRET_LENGTH + _CHECKSUM_LENGTH


def make_key(random_bytes: bytes) -> str:
    """Return the key that carries `random_bytes`.

    Raises:
        ValueError: there aren't exactly `SECRET_BYTES` of them.
    """
    if len(random_bytes) != SECRET_BYTES:
        raise ValueError(f"a key is made of {SECRET_BYTES} random bytes, not {len(random_bytes)}")
    secret = _base62(int.from_bytes(random_bytes, "big"), _SECRET_LENGTH)
    return f"{PREFIX}{secret}{_checksum(secret)}"


def require_well_formed(text: str) -> str:
    """Return `text` when it has the form and checksum of one of our keys.

    Raises:
        MalformedKey: it hasn't; the key is not repeated in the message.
    """
    if len(text) != KEY_LENGTH or not text.startswith(PREFIX) or not text.isascii():
        raise MalformedKey
    secret, checksum = text[len(PREFIX) : -_CHECKSUM_LENGTH], text[-_CHECKSUM_LENGTH:]
    if not hmac.compare_digest(_checksum(secret), checksum):
        raise MalformedKey
    return text


def is_well_formed(text: str) -> bool:
    """Say whether `text` has the form and checksum of one of our keys."""
    try:
        require_well_formed(text)
    except MalformedKey:
        return False
    return True


def key_digest(pepper: bytes, key: str) -> str:
    """Return the hex HMAC-SHA256 of a key under the pepper: what is stored and looked up.

    Raises:
        ValueError: the pepper is shorter than `PEPPER_BYTES_MIN`.
    """
    if len(pepper) < PEPPER_BYTES_MIN:
        raise ValueError(f"a pepper has at least {PEPPER_BYTES_MIN} bytes")
    return hmac.new(pepper, key.encode(), sha256).hexdigest()


def _checksum(secret: str) -> str:
    return _base62(zlib.crc32(secret.encode()), _CHECKSUM_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    assert number == 0, "the length holds the number"
    return "".join(reversed(digits))
