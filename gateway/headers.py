"""Every header name that the gateway reads or writes, in one place.

Names are lower case; `HEADER_…` values are ASGI-ready bytes, because the data path compares and sends bytes.
"""

AUTHORIZATION = b"authorization"
API_KEY = b"x-api-key"
CONTENT_TYPE = b"content-type"
CONTENT_LENGTH = b"content-length"
CONTENT_ENCODING = b"content-encoding"
RETRY_AFTER = b"retry-after"

EXPERT_ANCHOR = b"x-expert-anchor"

REQUEST_ID = b"x-request-id"
EXPERT_ID = b"x-expert-id"
ROUTE_SOURCE = b"x-route-source"
ROUTE_SCORE = b"x-route-score"
ROUTE_REASON = b"x-route-reason"
TERMS_MATCHED = b"x-terms-matched"
BASE_POINTS = b"x-base-points"
OVERHEAD_MS = b"x-overhead-ms"
ANCHOR_IGNORED = b"x-expert-anchor-ignored"
EVENT_ID = b"x-usage-event-id"
SHOULD_RETRY = b"x-should-retry"
"""What the OpenAI SDKs obey when they decide whether an error is worth another try."""

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"

RESPONSE_HEADERS = (
    REQUEST_ID,
    EXPERT_ID,
    ROUTE_SOURCE,
    ROUTE_SCORE,
    ROUTE_REASON,
    TERMS_MATCHED,
    BASE_POINTS,
    OVERHEAD_MS,
    ANCHOR_IGNORED,
    EVENT_ID,
)
"""The headers of ours that an answer may carry; documented in docs/http-api.md."""


def find_header(headers: list[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the first value of header `name` (lower case), or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


def find_headers(headers: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Return every value of header `name` (lower case), in order."""
    return [value for key, value in headers if key == name]
