"""What a backend's answer says about usage and content."""

import json

import pytest

from billing.usage_truth import ReportedUsage
from gateway.completion import read_answer, read_chunk
from gateway.errors import BackendBroken


def chunk(**members):
    return json.dumps({"id": "c", **members}).encode()


def delta(**members):
    return {"index": 0, "delta": members}


@pytest.mark.parametrize(
    ("choices", "count"),
    [
        ([delta(role="assistant", content="")], 0),
        ([delta(content="a")], 1),
        ([delta(content="a"), delta(content="b"), delta()], 2),
        ([delta(reasoning_content="hm")], 1),
        ([delta(tool_calls=[{"index": 0}])], 1),
        ([{"index": 0, "text": "legacy"}], 1),
        ([], 0),
        ([{"index": 0, "delta": None, "finish_reason": "stop"}], 0),
    ],
)
def test_content_is_counted_per_choice(choices, count):
    assert read_chunk(chunk(choices=choices)).content_count == count


def test_done_finish_and_emptiness():
    assert read_chunk(b"[DONE]").is_done
    assert read_chunk(b"").content_count == 0
    assert read_chunk(chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])).is_finish


def test_usage_only_is_told_from_usage_with_choices():
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    alone, beside = (
        read_chunk(chunk(choices=[], usage=usage)),
        read_chunk(chunk(choices=[delta()], usage=usage)),
    )
    assert alone.usage == beside.usage == ReportedUsage(3, 2)
    assert (alone.is_usage_only, beside.is_usage_only) == (True, False)


def test_null_usage_is_no_usage():
    assert read_chunk(chunk(choices=[delta(content="a")], usage=None)).usage is None


def test_errors_in_a_stream():
    assert read_chunk(chunk(error={"message": "x"})).error == {"message": "x"}
    assert read_chunk(chunk(error="x")).error == {"message": "x"}


@pytest.mark.parametrize(
    "data", [b"{oops", b"[]", b'{"choices":7}', b'{"choices":[1]}', b"[" * 9999]
)
def test_what_is_no_chunk_is_broken(data):
    with pytest.raises(BackendBroken):
        read_chunk(data)


def test_figures_are_handed_on_as_they_are():
    usage = {
        "prompt_tokens": "7",
        "completion_tokens": -1,
        "prompt_tokens_details": {"cached_tokens": 2.5},
        "completion_tokens_details": "none",
    }
    assert read_answer(json.dumps({"choices": [], "usage": usage}).encode()) == ReportedUsage(
        "7", -1, 2.5, None
    )


@pytest.mark.parametrize("body", [b"", b"no", b"[]", b'{"error":{"message":"inside a 200"}}'])
def test_what_is_no_answer_is_broken(body):
    with pytest.raises(BackendBroken):
        read_answer(body)


def test_an_answer_without_usage_reports_nothing():
    assert read_answer(b'{"choices":[{}]}') == ReportedUsage()
