"""A strict JSON object whose unknown members keep their exact bytes.

Owns what the gateway accepts as a request body. Top-level members stay raw until somebody asks for one, so
that what nobody touches is forwarded byte for byte: 64-bit integers, 1.0 against 1, key order, vendor fields.
Knows nothing of chat or HTTP.
"""

from typing import TypeVar

import msgspec

from gateway.errors import BadRequest, InvalidJson

T = TypeVar("T")

_WHITESPACE = b" \t\n\r"
_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class JsonDocument:
    """One JSON object, parsed once; members are decoded on demand and replaced by value.

    Args:
        members: raw members in the order of the source.
        source: the bytes they came from; returned by `encode` while nothing was changed.
    """

    __slots__ = ("_changed", "_source", "members")

    def __init__(self, members: dict[str, msgspec.Raw], source: bytes) -> None:
        self.members = members
        self._source = source
        self._changed = False

    @classmethod
    def parse(cls, body: bytes) -> "JsonDocument":
        """Return the document in `body`.

        Raises:
            InvalidJson: not UTF-8, not an object, NaN or Infinity, nested too deeply, or a duplicate key at
                the top level. The message says where, never what.
        """
        try:
            # One pass in C that also covers members which nobody decodes later.
            body.decode("utf-8")
            members = _object_decoder.decode(body)
        except UnicodeDecodeError as exc:
            raise InvalidJson(f"the body isn't valid UTF-8 at byte {exc.start}") from exc
        except RecursionError as exc:
            raise InvalidJson("the body is nested too deeply") from exc
        except msgspec.ValidationError as exc:
            raise InvalidJson("the body must be a JSON object") from exc
        except msgspec.DecodeError as exc:
            raise InvalidJson(f"the body isn't valid JSON: {exc}") from exc
        _refuse_duplicate_keys(body, members)
        return cls(members, body)

    def __contains__(self, name: str) -> bool:
        return name in self.members

    def get(self, name: str, type_: type[T], expected: str) -> T | None:
        """Return member `name` decoded as `type_`; None when absent or null.

        Args:
            expected: how the error names the type, e.g. ``a string``.

        Raises:
            BadRequest: the member has another type; `param` names it.
        """
        raw = self.members.get(name)
        if raw is None or bytes(raw) == b"null":
            return None
        try:
            return msgspec.json.decode(raw, type=type_, strict=True)
        except msgspec.ValidationError as exc:
            raise BadRequest(f"'{name}' must be {expected}: {exc}", param=name) from exc
        except (msgspec.DecodeError, RecursionError) as exc:
            raise InvalidJson(f"'{name}' isn't valid JSON: {exc}", param=name) from exc

    def set(self, name: str, value: object) -> None:
        """Replace member `name`, keeping its place, or append it."""
        self.members[name] = msgspec.Raw(msgspec.json.encode(value))
        self._changed = True

    def drop(self, name: str) -> None:
        """Remove member `name` when it is there."""
        if self.members.pop(name, None) is not None:
            self._changed = True

    def copy(self) -> "JsonDocument":
        """Return a document that can be changed without changing this one."""
        twin = JsonDocument(dict(self.members), self._source)
        twin._changed = self._changed
        return twin

    @property
    def is_changed(self) -> bool:
        """Whether `encode` returns something other than the source."""
        return self._changed

    def encode(self) -> bytes:
        """Return the JSON text: the source itself while nothing was changed."""
        return msgspec.json.encode(self.members) if self._changed else self._source


def _refuse_duplicate_keys(body: bytes, members: dict[str, msgspec.Raw]) -> None:
    """Walk the members in source order and insist that the object ends after the last one.

    The decoder keeps the last of two equal keys at the place of the first, so with a duplicate the walk meets
    a value that isn't the one kept, or doesn't end at the closing brace. Cost: microseconds for a chat body.
    """
    if not members:
        return
    index = body.index(b"{") + 1
    for raw in members.values():
        index = _skip_whitespace(body, index)
        index = _skip_whitespace(body, _skip_string(body, index)) + 1  # the colon
        index = _skip_whitespace(body, index)
        value = bytes(raw)
        if not body.startswith(value, index):
            raise InvalidJson("the body has a duplicate key at its top level")
        index = _skip_whitespace(body, index + len(value)) + 1  # a comma or the closing brace
    if body[index - 1] != ord("}"):
        raise InvalidJson("the body has a duplicate key at its top level")


def _skip_whitespace(body: bytes, index: int) -> int:
    while body[index] in _WHITESPACE:
        index += 1
    return index


def _skip_string(body: bytes, index: int) -> int:
    """Return the index after the string that starts at `index`."""
    index += 1
    while True:
        end = body.index(b'"', index)
        backslash_count = 0
        while body[end - 1 - backslash_count] == ord("\\"):
            backslash_count += 1
        index = end + 1
        if backslash_count % 2 == 0:
            return index
