"""One JSON object a line, and no key of ours in it."""

import io
import json
import logging

import pytest

from billing.keys import SECRET_BYTES, make_key
from gateway.logs import JsonFormatter

KEY = make_key(bytes(range(SECRET_BYTES)))


@pytest.fixture
def written():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("tests.logs")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, stream.getvalue
    logger.removeHandler(handler)


def test_a_record_is_one_line_with_its_fields(written):
    logger, text = written
    logger.warning("request_completed", extra={"request_id": "req_1", "input_tokens": 7})
    line = json.loads(text())
    assert line.pop("at").endswith("+00:00")
    assert line == {
        "level": "warning", "logger": "tests.logs", "event": "request_completed",
        "request_id": "req_1", "input_tokens": 7,
    }  # fmt: skip


def test_an_exception_stays_on_its_line(written):
    logger, text = written
    try:
        raise KeyError("lost")
    except KeyError:
        logger.exception("request_failed")
    assert text().count("\n") == 1
    assert "KeyError: 'lost'" in json.loads(text())["exception"]


@pytest.mark.parametrize("place", ["message", "field", "exception", "nested"])
def test_keys_are_masked_wherever_they_stand(written, place):
    logger, text = written
    if place == "message":
        logger.warning("the key %s", KEY)
    elif place == "field":
        logger.warning("event", extra={"key": KEY})
    elif place == "nested":
        logger.warning("event", extra={"headers": {"authorization": [f"Bearer {KEY}"]}})
    else:
        try:
            raise ValueError(KEY)
        except ValueError:
            logger.exception("event")
    assert KEY[5:] not in text()
    assert "eg_…" in text()
    json.loads(text())


@pytest.mark.parametrize(
    "value", ["two\nlines", "\x00\x1b[31m", "\ud800", float("nan"), object(), b"\xff", {1: 2}]
)
def test_whatever_a_field_holds_is_one_line_of_json(written, value):
    logger, text = written
    logger.warning("event", extra={"value": value})
    assert text().count("\n") == 1
    assert json.loads(text())["event"] == "event"
