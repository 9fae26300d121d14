"""Every error of ours has an answer, in OpenAI's shape, and none tells a secret."""

import json

import pytest

from billing import errors as billing_errors
from gateway import errors
from gateway.context import ClientGone
from gateway.problems import INTERNAL, PROBLEMS, body_of, error_event, problem_of, send_problem
from routing_engine import errors as routing_errors


def subclasses(class_):
    for child in class_.__subclasses__():
        if child.__module__.split(".")[1] != "engine":  # the engine's own process
            yield child
            yield from subclasses(child)


# Raised by commands, at start, or in background threads; never by the handling of a request.
NOT_IN_REQUESTS = {
    errors.ConfigError,
    billing_errors.UnknownRecord,
    billing_errors.DuplicateRecord,
    billing_errors.InvalidInput,
    billing_errors.InvalidCatalog,
    billing_errors.MalformedKey,
    billing_errors.WeakPepper,
    billing_errors.PeriodNotOver,
    billing_errors.InvoiceImmutable,
    billing_errors.NothingToInvoice,
    billing_errors.StoreError,
    billing_errors.StoreUnavailable,
    billing_errors.SchemaOutdated,
    billing_errors.EventConflict,
    routing_errors.ArtefactError,
    routing_errors.TrainingDataError,
}


def in_requests():
    bases = (errors.GatewayError, billing_errors.BillingError, routing_errors.RoutingError)
    return [each for base in bases for each in subclasses(base) if each not in NOT_IN_REQUESTS]


@pytest.mark.parametrize("class_", in_requests(), ids=lambda each: each.__name__)
def test_every_error_of_a_request_has_an_entry(class_):
    assert any(each in PROBLEMS for each in class_.__mro__), f"{class_.__name__} would be a 500"


def test_what_is_not_ours_is_internal_and_says_nothing():
    error = KeyError("secret detail")
    assert problem_of(error) is INTERNAL
    assert "secret" not in json.dumps(body_of(error, INTERNAL))


@pytest.mark.parametrize(
    ("status", "expected", "kind", "retry"),
    [
        (400, 400, "invalid_request_error", False),
        (404, 404, "invalid_request_error", False),
        (429, 429, "rate_limit_error", True),
        (503, 503, "backend_error", True),
        (529, 529, "backend_error", True),
        (401, 502, "backend_error", False),
        (403, 502, "backend_error", False),
        (500, 502, "backend_error", False),
        (307, 502, "backend_error", False),
    ],
)
def test_what_a_backend_s_refusal_means_to_the_client(status, expected, kind, retry):
    problem = problem_of(errors.BackendRefused(status, b"", {"retry-after": "9"}))
    assert (problem.status, problem.type, problem.should_retry) == (expected, kind, retry)


def test_a_backend_s_message_is_passed_on_only_where_it_concerns_the_client():
    body = json.dumps({"error": {"message": "context too long " + "x" * 5000}}).encode()
    shown = errors.BackendRefused(400, body, {})
    hidden = errors.BackendRefused(401, b'{"error":{"message":"bad key sk-1"}}', {})
    message = body_of(shown, problem_of(shown))["error"]["message"]
    assert "context too long" in message
    assert len(message) < 700
    assert "sk-1" not in json.dumps(body_of(hidden, problem_of(hidden)))


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b'{"error":{"message":7}}', b'{"error":null}', b"[" * 9999]
)
def test_a_rubbish_error_body_is_survived(body):
    error = errors.BackendRefused(400, body, {})
    assert body_of(error, problem_of(error))["error"]["message"]


async def test_the_answer_s_exact_bytes():
    sent = []

    async def send(message):
        sent.append(message)

    status = await send_problem(send, errors.BadRequest("no good", param="n"))
    body = b'{"error":{"message":"no good","type":"invalid_request_error","param":"n","code":null}}'
    assert status == 400
    assert sent[0]["headers"] == [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-should-retry", b"false"),
    ]
    assert sent[1]["body"] == body


def test_the_event_that_ends_a_broken_stream():
    event = error_event(errors.BackendBroken("gone"))
    assert event.startswith(b'data: {"error":')
    assert event.endswith(b"\n\n")


def test_a_client_that_left_is_no_problem_to_answer():
    assert not issubclass(ClientGone, errors.GatewayError)


def test_errors_that_another_try_can_mend_say_so_and_no_others_do():
    retried = {class_.__name__ for class_, problem in PROBLEMS.items() if problem.should_retry}
    assert retried == {
        "BackendUnreachable",
        "BackendTimeout",
        "MeteringError",
        "EngineUnavailable",
    }


def test_every_entry_is_of_openai_s_kinds():
    # 402 and other codes that SDKs don't know would raise their plainest class.
    assert {problem.status for problem in PROBLEMS.values()} <= {
        400, 401, 403, 404, 413, 415, 429, 502, 503, 504,
    }  # fmt: skip
    for class_, problem in PROBLEMS.items():
        expected = {
            401: {"authentication_error"}, 403: {"permission_error"},
            429: {"insufficient_quota", "rate_limit_error"},
        }.get(problem.status, {"invalid_request_error"})  # fmt: skip
        if problem.status >= 500:
            expected = {"backend_error", "server_error"}
        assert problem.type in expected, class_.__name__


@pytest.mark.parametrize(
    "error",
    [
        errors.Unauthenticated("the key isn't valid"),
        billing_errors.MalformedKey(),
        billing_errors.WeakPepper("/data/secrets/pepper", "it has 3 bytes"),
        billing_errors.JournalLocked("/data/journal"),
        errors.ConfigError("/etc/expertgate.toml: line 3", "backend key sk-1"),
        OSError(2, "No such file", "/data/secrets/pepper"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_no_answer_tells_of_files_or_keys_of_ours(error):
    shown = json.dumps(body_of(error, problem_of(error)))
    assert "/data" not in shown
    assert "/etc" not in shown
    assert "sk-1" not in shown
