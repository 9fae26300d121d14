import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.journal.records import (
    SegmentHeader,
    decode_header,
    decode_intent,
    decode_outcome,
    encode_record,
)
from billing.types import Usage
from tests.billing.metering import an_intent, an_outcome


def test_records_are_read_back_whole() -> None:
    header = SegmentHeader(
        version=1, journal_id="j", index=4, previous_index=3, previous_end_bytes=9
    )
    assert decode_header(encode_record(header)) == header
    assert decode_intent(encode_record(an_intent())) == an_intent()
    outcome = an_outcome(flags=("recovered", "x"), usage=Usage(5, 4, 3, 2), billed_calls=0)
    assert decode_outcome(encode_record(outcome)) == outcome


def test_the_names_of_the_fields_on_disk_never_change() -> None:
    assert list(msgspec.msgpack.decode(encode_record(an_intent()))) == [
        "event_id", "request_id", "customer_id", "project_id", "key_id", "expert_id", "replica_id",
        "price_version", "catalog_version", "dictionary_version", "route_source", "operation", "streamed",
        "occurred_at", "hold", "input_tokens_max", "output_tokens_max", "input_tokens_estimate",
    ]  # fmt: skip
    fields = msgspec.msgpack.decode(encode_record(an_outcome()))
    assert list(fields) == [
        "event_id", "status", "usage", "usage_source", "ended_at", "delivered_chunks", "delivered_bytes",
        "reported_input_tokens", "reported_output_tokens", "backend_status", "time_to_first_byte_us",
        "duration_us", "flags", "billed_calls",
    ]  # fmt: skip
    assert list(fields["usage"]) == [
        "input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens",
    ]  # fmt: skip


def test_fields_of_later_versions_are_skipped_and_missing_ones_default() -> None:
    fields = msgspec.msgpack.decode(encode_record(an_outcome()))
    fields["from_the_future"] = 1
    del fields["billed_calls"]
    assert decode_outcome(msgspec.msgpack.encode(fields)) == an_outcome()


def test_records_that_break_the_rules_of_their_types_are_refused() -> None:
    fields = msgspec.msgpack.decode(encode_record(an_outcome()))
    fields["usage"]["cached_input_tokens"] = 10**6
    with pytest.raises(ValueError, match="cached"):
        decode_outcome(msgspec.msgpack.encode(fields))


@given(st.binary(max_size=100))
def test_noise_is_refused(noise: bytes) -> None:
    for decode in (decode_header, decode_intent, decode_outcome):
        with pytest.raises(ValueError):  # noqa: PT011 - any text will do for noise
            decode(noise)
