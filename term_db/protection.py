"""Which parts of a prompt are not prose: spans that normalisation never touches.

Code fences (an unclosed one runs to the end), inline code, URLs, e-mail addresses, JSON keys (their
string values are prose), markup tags, ``{{placeholders}}`` and ``[[id|links]]``. Pure; every pattern has
bounded repetition, so the time grows with the length of the text only.
"""

import re
import string
from bisect import bisect_right
from collections.abc import Iterator

from term_db.types import Span

LOCAL_PART_CHARS_MAX = 64
"""Longest local part of an e-mail address (RFC 5321, 4.5.3.1.1)."""

SCHEME_CHARS_MAX = 32
"""Longest URL scheme that is recognised."""

JSON_KEY_CHARS_MAX = 256
"""Longest JSON key that is recognised; a longer string in that place is taken for prose."""

TAG_CHARS_MAX = 1024
"""Longest markup tag, placeholder or link that is recognised."""

_FENCE = re.compile(r"^[ \t]{0,3}(?:>[ \t]?)?(`{3,}|~{3,})", re.MULTILINE)
_TICKS = re.compile(r"`+")
_URL_STOPS = (
    r"<>\"`\u3000-\u3002\u3008-\u3011\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f\u201c\u201d"
)
_URL_BODY = re.compile(
    rf"[^()\s{_URL_STOPS}]+(?:\([^()\s{_URL_STOPS}]{{0,{TAG_CHARS_MAX}}}\)[^()\s{_URL_STOPS}]*+)*+"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*$")
_LOCAL_PART = re.compile(r"[A-Za-z0-9._%+\-]+$")
_HEAD_ENDS = frozenset(string.ascii_letters + string.digits + "._%+-")
_MAIL_DOMAIN = re.compile(r"[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){1,8}")
_JSON_KEY = re.compile(
    rf'[{{,]\s{{0,256}}("(?:[^"\\\n]|\\.){{0,{JSON_KEY_CHARS_MAX}}}")\s{{0,64}}:'
)
_TAG = re.compile(rf"<!--|</?[A-Za-z][^<>]{{0,{TAG_CHARS_MAX}}}>")
_PLACEHOLDER = re.compile(rf"\{{\{{[^{{}}]{{0,{TAG_CHARS_MAX}}}\}}\}}")
_LINK = re.compile(rf"\[\[[^\[\]\n]{{1,{TAG_CHARS_MAX}}}\]\]")


class ProtectedSpans:
    """Merged protected spans of one text, ready for the question whether a match touches one."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, spans: tuple[Span, ...]) -> None:
        self._starts = [span.start for span in spans]
        self._ends = [span.end for span in spans]

    def touches(self, start: int, end: int) -> bool:
        """Whether ``[start, end)`` shares a character with a protected span."""
        if not self._starts:
            return False
        last = bisect_right(self._starts, end - 1) - 1
        return last >= 0 and self._ends[last] > start


def protected_spans(text: str) -> tuple[Span, ...]:
    """The protected spans of `text`, ascending and disjoint; cheap when it has none of the signs."""
    found: list[tuple[int, int]] = []
    if "`" in text or "~~~" in text:
        found.extend(_code(text))
    if "://" in text:
        found.extend(_around(text, "://", SCHEME_CHARS_MAX, _SCHEME, _URL_BODY))
    if "www." in text:
        found.extend(_after(text, "www."))
    if "@" in text:
        found.extend(_around(text, "@", LOCAL_PART_CHARS_MAX, _LOCAL_PART, _MAIL_DOMAIN))
    if '"' in text and ":" in text:
        found.extend(match.span(1) for match in _JSON_KEY.finditer(text))
    if "<" in text:
        found.extend(_tags(text))
    if "{{" in text:
        found.extend(match.span() for match in _PLACEHOLDER.finditer(text))
    if "[[" in text:
        found.extend(match.span() for match in _LINK.finditer(text))
    return _merged(found) if found else ()


def _code(text: str) -> Iterator[tuple[int, int]]:
    """Fenced blocks, then the inline code between them."""
    prose_start = 0
    opening = _FENCE.search(text)
    while opening is not None:
        yield from _inline_code(text, prose_start, opening.start())
        closing = _closing_fence(text, opening)
        prose_start = len(text) if closing is None else closing
        yield opening.start(1), prose_start
        opening = _FENCE.search(text, prose_start)
    yield from _inline_code(text, prose_start, len(text))


def _closing_fence(text: str, opening: re.Match[str]) -> int | None:
    fence = opening.group(1)
    for closing in _FENCE.finditer(text, opening.end()):
        ticks = closing.group(1)
        if ticks[0] == fence[0] and len(ticks) >= len(fence):
            return closing.end()
    return None


def _inline_code(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Backtick runs paired with the next run of the same length; three or more may stay unclosed."""
    runs = [match.span() for match in _TICKS.finditer(text, start, end)]
    closes: dict[int, list[int]] = {}
    for index in range(len(runs) - 1, -1, -1):
        closes.setdefault(runs[index][1] - runs[index][0], []).append(index)
    index = 0
    while index < len(runs):
        run_start, run_end = runs[index]
        later = closes[run_end - run_start]
        while later and later[-1] <= index:
            later.pop()
        if later and "\n\n" not in text[run_end : runs[later[-1]][0]]:
            index = later[-1]
            yield run_start, runs[index][1]
        elif run_end - run_start >= 3:
            yield run_start, end
            return
        index += 1


def _around(
    text: str, sign: str, before_max: int, before: re.Pattern[str], after: re.Pattern[str]
) -> Iterator[tuple[int, int]]:
    """What stands around each `sign`: `before` ends at it, `after` begins behind it."""
    position = text.find(sign)
    while position >= 0:
        behind = position + len(sign)
        head = None
        if text[max(0, position - 1) : position] in _HEAD_ENDS:
            head = before.search(text[max(0, position - before_max) : position])
        # Looked for behind a proper beginning only: "://" over and over would make this quadratic.
        tail = None if head is None else after.match(text, behind)
        if head is not None and tail is not None:
            yield position - len(head.group()), tail.end()
            behind = tail.end()
        position = text.find(sign, behind)


def _after(text: str, sign: str) -> Iterator[tuple[int, int]]:
    """Addresses that begin with `sign`."""
    position = text.find(sign)
    while position >= 0:
        body = _URL_BODY.match(text, position)
        end = position + len(sign) if body is None else body.end()
        if not position or not (text[position - 1].isascii() and text[position - 1].isalnum()):
            yield position, end
        position = text.find(sign, end)


def _tags(text: str) -> Iterator[tuple[int, int]]:
    position = 0
    is_endless = False
    while (match := _TAG.search(text, position)) is not None:
        position = match.end()
        if match.group() == "<!--":
            # What has no end is looked for once: "<!--" over and over would make this quadratic.
            close = -1 if is_endless else text.find("-->", position)
            if close < 0:
                is_endless = True
                continue
            position = close + 3
        yield match.start(), position


def _merged(found: list[tuple[int, int]]) -> tuple[Span, ...]:
    found.sort()
    spans: list[Span] = []
    start, end = found[0]
    for next_start, next_end in found:
        if next_start > end:
            spans.append(Span(start, end))
            start, end = next_start, next_end
        elif next_end > end:
            end = next_end
    spans.append(Span(start, end))
    return tuple(spans)
