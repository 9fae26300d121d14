"""Header names are found as servers send them, and documented where they are promised."""

from pathlib import Path

import pytest

from gateway import headers

DOCUMENT = Path(__file__).parents[2] / "docs" / "http-api.md"
SENT = [(b"x-api-key", b"a"), (b"host", b"h"), (b"x-api-key", b"b")]


def test_the_first_value_and_every_value():
    assert headers.find_header(SENT, headers.API_KEY) == b"a"
    assert headers.find_header(SENT, headers.AUTHORIZATION) is None
    assert headers.find_headers(SENT, headers.API_KEY) == [b"a", b"b"]
    assert headers.find_headers(SENT, headers.AUTHORIZATION) == []


def test_every_name_is_lower_case_as_asgi_wants_it():
    names = [
        value
        for name, value in vars(headers).items()
        if name.isupper()
        and isinstance(value, bytes)
        and value not in (headers.JSON, headers.EVENT_STREAM)
    ]
    assert len(names) > 10
    assert all(name == name.lower() for name in names)


@pytest.mark.parametrize("name", headers.RESPONSE_HEADERS, ids=bytes.decode)
def test_every_header_of_ours_is_documented(name):
    assert f"`{name.decode()}`" in DOCUMENT.read_text(encoding="utf-8")
