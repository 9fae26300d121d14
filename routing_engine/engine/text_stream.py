"""Turns a growing list of token ids into pieces of text that are safe to send.

Owns three rules: no piece ends inside a character, no piece contains a stop string or the beginning
of one that may still be completed, and the joined pieces are the whole answer. Knows no model: the
tokenizer comes in as a function from ids to text.
"""

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
_CHARACTER_TOKENS_MAX = 4
"""A UTF-8 character has four bytes at most, so at most this many byte tokens; what is still not a
character after them is not a half, but bytes that no character has."""


class TextStream:
    """The text of one answer while it grows.

    Args:
        decode: the text of a list of token ids, special tokens left out.
        stops: strings that end the answer; they never appear in it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: tuple[str, ...] = ()) -> None:
        self._decode = decode
        self._stops = stops
        # Tokens are decoded in a sliding window: some tokenizers give a token another text at the
        # start than after its neighbour. `_window[:_read_count]` has been turned into text already.
        self._window: list[int] = []
        self._read_count = 0
        self._held = ""
        self.is_stopped = False

    def push(self, token_id: int) -> str:
        """Add a token; return the text that can be sent now, perhaps empty.

        After a stop string was completed, `is_stopped` is true and nothing more may be pushed.
        """
        self._window.append(token_id)
        return self._release(self._read())

    def finish(self) -> str:
        """Return the text held back, at the end of the answer; half characters are left out."""
        if self.is_stopped:
            return ""
        text = self._held + self._unread().rstrip(_REPLACEMENT)
        self._held, self._window, self._read_count = "", [], 0
        return self._cut_at_stop(text)

    def _unread(self) -> str:
        seen = self._decode(self._window[: self._read_count])
        return self._decode(self._window)[len(seen) :]

    def _read(self) -> str:
        text = self._unread()
        pending_count = len(self._window) - self._read_count
        if not text or (text.endswith(_REPLACEMENT) and pending_count < _CHARACTER_TOKENS_MAX):
            return ""
        self._window = self._window[self._read_count :]
        self._read_count = len(self._window)
        return text

    def _release(self, text: str) -> str:
        text = self._cut_at_stop(self._held + text)
        if self.is_stopped:
            self._held = ""
            return text
        held_count = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held_count :]
        return text[: len(text) - held_count]

    def _cut_at_stop(self, text: str) -> str:
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.is_stopped = True
            return text[: min(places)]
        return text


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest proper beginning of `stop` that `text` ends with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
