"""Decodes several answers at once in one worker thread, one step of each in turn.

Owns which sequence takes the next step, when a sequence ends, and the bound on how many wait. A step
is one piece of a prompt or one new token; after each step the next sequence has its turn, so that a
short answer isn't held up by a long one and a sequence that nobody wants is gone after one step.
Does not own HTTP: events go to a callback in the worker thread.
"""

# ruff: noqa: N806 -- tensors carry their shape as a suffix (STYLE.md, torch)

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from routing_engine.engine.errors import EngineBusy
from routing_engine.engine.language_model import Cache, LanguageModel
from routing_engine.engine.load_window import LoadWindow
from routing_engine.engine.metrics import EngineMetrics
from routing_engine.engine.sampling import pick_token
from routing_engine.engine.text_stream import TextStream

logger = logging.getLogger(__name__)

ACTIVE_MAX = 8
"""Sequences decoded at a time. Each holds up to 0.4 GB of keys and values at full context (8,192
tokens × 46 KB), and each slows all others down."""

QUEUED_MAX = 32
"""Sequences waiting for a place; more would wait longer than a client does."""

PREFILL_TOKENS_MAX = 64
"""Prompt tokens read in one step: about half a second on one core, the longest wait of the others."""

PREFIXES_MAX = 64
"""Directives whose keys and values are kept, least recently used first out: about 3 MB each."""

RETRY_AFTER_S = 2

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to generate. `prompt_ids` begins with `prefix_ids`, the part shared by an expert's requests.

    `seed` None means that nobody asked for repeatability.
    """

    expert_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    prefix_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that was added to the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete; `completion_tokens` counts what the model wrote, without the end token."""

    reason: FinishReason
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ends here because of a fault of the engine."""

    message: str


@dataclass(frozen=True, slots=True)
class Preheated:
    """The directive of an expert is in the cache of keys and values."""

    token_count: int
    was_warm: bool


Event = Piece | Finished | Failed | Preheated


class Sequence:
    """One answer on its way; made by `Scheduler.submit`, ended by an event or by `cancel`."""

    def __init__(
        self,
        request: GenerationRequest,
        on_event: Callable[[Event], None],
        text: TextStream,
    ) -> None:
        self.request = request
        self.on_event = on_event
        self.text = text
        self.is_cancelled = False
        self.cache: Cache | None = None
        self.unread_ids: list[int] = list(request.prompt_ids)
        self.completion_tokens = 0
        self.generator: torch.Generator | None = None
        if request.temperature > 0:
            self.generator = torch.Generator()
            if request.seed is None:
                self.generator.seed()
            else:
                self.generator.manual_seed(request.seed)


class Scheduler:
    """The worker thread and its sequences. `submit` and `cancel` may be called from any thread."""

    def __init__(
        self,
        model: LanguageModel,
        metrics: EngineMetrics,
        *,
        active_max: int = ACTIVE_MAX,
        queued_max: int = QUEUED_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model, self._metrics, self._clock = model, metrics, clock
        self._active_max, self._queued_max = active_max, queued_max
        self._queued: deque[Sequence] = deque()
        self._active: list[Sequence] = []
        self._prefixes: OrderedDict[tuple[int, ...], Cache] = OrderedDict()
        self._wakeup = threading.Condition()
        self._is_closing = False
        self._window = LoadWindow(active_max)
        self._thread = threading.Thread(target=self._run, name="engine-decode", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, on_event: Callable[[Event], None]) -> Sequence:
        """Queue `request`; `on_event` is called in the worker thread for everything that happens.

        A request for no tokens (`max_tokens` 0) only reads its prefix and ends with `Preheated`.

        Raises:
            EngineBusy: all places in the queue are taken, or the engine is closing.
        """
        sequence = Sequence(request, on_event, TextStream(self._model.decode, request.stops))
        with self._wakeup:
            taken = len(self._active) + len(self._queued)
            if taken >= self._active_max + self._queued_max or self._is_closing:
                raise EngineBusy("waiting requests", self._queued_max, RETRY_AFTER_S)
            self._queued.append(sequence)
            self._window.change(request.expert_id, 1, self._clock())
            self._wakeup.notify()
        self._report_sizes()
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Drop `sequence` before its next step; it has no further events. Twice is once."""
        sequence.is_cancelled = True
        with self._wakeup:
            if sequence in self._queued:
                self._queued.remove(sequence)
                self._window.change(sequence.request.expert_id, -1, self._clock())
                self._metrics.cancelled.inc()
        self._report_sizes()

    def loads(self) -> dict[str, float]:
        """Return the load of each expert over the last 100 ms, 0 to 1."""
        with self._wakeup:
            return self._window.loads(self._clock())

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of sequences being decoded and waiting."""
        with self._wakeup:
            return len(self._active), len(self._queued)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the worker after its current step; sequences that are not done fail."""
        with self._wakeup:
            self._is_closing = True
            self._wakeup.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while self._admit():
                for sequence in list(self._active):
                    if self._is_closing:
                        break
                    self._turn(sequence)
                    self._report_sizes()
        finally:
            # However the worker ends, nobody is left waiting.
            with self._wakeup:
                self._is_closing = True
                left = [*self._active, *self._queued]
                self._active.clear()
                self._queued.clear()
            for sequence in left:
                if not sequence.is_cancelled:
                    sequence.on_event(Failed("the engine is shutting down"))

    def _admit(self) -> bool:
        """Move waiting sequences into free places; wait for work; return False at the end."""
        with self._wakeup:
            while not (self._active or self._queued or self._is_closing):
                self._wakeup.wait()
            while self._queued and len(self._active) < self._active_max:
                self._active.append(self._queued.popleft())
            return not self._is_closing

    def _turn(self, sequence: Sequence) -> None:
        if sequence.is_cancelled:
            self._metrics.cancelled.inc()
            self._drop(sequence)
            return
        try:
            events = self._step(sequence)
        except (RuntimeError, MemoryError) as exc:
            # torch reports everything that goes wrong in a step, lack of memory included, as a
            # RuntimeError. One sequence's failure must not end the others.
            logger.exception("generation_failed", extra={"expert_id": sequence.request.expert_id})
            events = [Failed(f"the model failed: {type(exc).__name__}")]
        if any(not isinstance(event, Piece) for event in events):
            self._drop(sequence)
        if not sequence.is_cancelled:
            for event in events:
                sequence.on_event(event)

    def _drop(self, sequence: Sequence) -> None:
        with self._wakeup:
            self._active.remove(sequence)
            self._window.change(sequence.request.expert_id, -1, self._clock())
        sequence.cache = None

    def _step(self, sequence: Sequence) -> list[Event]:
        """Take one step of `sequence`; return what happened, the end included."""
        started_s = self._clock()
        events: list[Event] = []
        kind = "prefill"
        if sequence.cache is None and (begun := self._begin(sequence)) is not None:
            events = begun
        elif len(sequence.unread_ids) > PREFILL_TOKENS_MAX:
            self._model.forward(self._next_ids(sequence), self._cache_of(sequence))
        else:
            kind = "prefill" if sequence.completion_tokens == 0 else "decode"
            events = self._decode(sequence, self._cache_of(sequence))
        self._metrics.steps.labels(kind).inc()
        self._metrics.step_seconds.labels(kind).observe(self._clock() - started_s)
        return events

    def _cache_of(self, sequence: Sequence) -> Cache:
        assert sequence.cache is not None
        return sequence.cache

    def _begin(self, sequence: Sequence) -> list[Event] | None:
        """Give `sequence` its cache; return what happened, or None when the step is still free."""
        # The prefix is always read by itself, known or not: the same prompt then takes the same
        # arithmetic, and a greedy answer does not depend on what was asked before.
        prefix_ids = sequence.request.prefix_ids
        known = self._prefixes.get(prefix_ids)
        if not prefix_ids:
            sequence.cache = self._model.new_cache()
        elif known is not None:
            self._prefixes.move_to_end(prefix_ids)
            sequence.cache = self._model.copy_cache(known)
        else:
            cache = self._model.new_cache()
            for start in range(0, len(prefix_ids), PREFILL_TOKENS_MAX):
                self._model.forward(prefix_ids[start : start + PREFILL_TOKENS_MAX], cache)
            self._prefixes[prefix_ids] = cache
            if len(self._prefixes) > PREFIXES_MAX:
                self._prefixes.popitem(last=False)
            sequence.cache = self._model.copy_cache(cache)
        del sequence.unread_ids[: len(prefix_ids)]
        if sequence.request.max_tokens == 0:
            return [Preheated(len(prefix_ids), known is not None)]
        return [] if prefix_ids and known is None else None

    def _next_ids(self, sequence: Sequence) -> list[int]:
        ids = sequence.unread_ids[:PREFILL_TOKENS_MAX]
        del sequence.unread_ids[:PREFILL_TOKENS_MAX]
        return ids

    def _decode(self, sequence: Sequence, cache: Cache) -> list[Event]:
        request = sequence.request
        logits_V = self._model.forward(self._next_ids(sequence), cache)
        token_id = pick_token(
            logits_V,
            temperature=request.temperature,
            top_p=request.top_p,
            generator=sequence.generator,
        )
        if token_id in self._model.eos_ids:
            return self._end(sequence, "", "stop")
        sequence.completion_tokens += 1
        self._metrics.generated_tokens.inc()
        text = sequence.text.push(token_id)
        if sequence.text.is_stopped:
            return self._end(sequence, text, "stop")
        if sequence.completion_tokens >= request.max_tokens:
            return self._end(sequence, text, "length")
        sequence.unread_ids = [token_id]
        return [Piece(text)] if text else []

    def _end(self, sequence: Sequence, text: str, reason: FinishReason) -> list[Event]:
        text += sequence.text.finish()
        if sequence.text.is_stopped:
            reason = "stop"
        pieces: list[Event] = [Piece(text)] if text else []
        return [*pieces, Finished(reason, sequence.completion_tokens)]

    def _report_sizes(self) -> None:
        active_count, queued_count = self.counts
        self._metrics.active.set(active_count)
        self._metrics.queued.set(queued_count)
