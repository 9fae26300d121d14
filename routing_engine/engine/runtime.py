"""The engine's loaded parts and how far loading has come.

Owns the order of loading and what is usable in which stage. The HTTP side asks; it never waits.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch

from routing_engine.engine.demo_model import prepare_demo_model
from routing_engine.engine.errors import ModelLoading, ModelUnavailable
from routing_engine.engine.experts import ExpertProfile, ExpertRegistry
from routing_engine.engine.generation import Scheduler
from routing_engine.engine.language_model import LanguageModel
from routing_engine.engine.metrics import EngineMetrics
from routing_engine.engine.requests import directive_turns
from routing_engine.engine.second_stage import SecondStage

logger = logging.getLogger(__name__)

LOADING_RETRY_AFTER_S = 5


class LoadingStage(StrEnum):
    """How far the engine has come; the last two are final."""

    STARTING = "starting"
    PREPARING = "preparing the model's files"
    LOADING = "loading the weights"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Where everything lies and how much of the machine may be used.

    `model_dir` None means the demo model; `thread_count` is the number of threads of one step.
    """

    data_dir: Path
    model_dir: Path | None = None
    thread_count: int = 1
    active_max: int = 8
    queued_max: int = 32


@dataclass(frozen=True, slots=True)
class Loaded:
    """What generation needs; there once the stage is `READY`."""

    model: LanguageModel
    scheduler: Scheduler


class EngineRuntime:
    """One engine: experts, second stage, and the model as soon as it is loaded."""

    def __init__(
        self,
        options: RuntimeOptions,
        registry: ExpertRegistry,
        announce: Callable[[str], None] = logger.info,
    ) -> None:
        self.options, self.registry = options, registry
        self.metrics = EngineMetrics()
        self.second_stage = SecondStage(
            options.data_dir / "routing" / "second_stage.safetensors",
            known_experts=frozenset(expert.expert_id for expert in registry.experts),
        )
        self.stage, self.detail = LoadingStage.STARTING, ""
        self._announce = announce
        self._loaded: Loaded | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._prefixes: dict[str, tuple[int, ...]] = {}

    def load_in_background(self) -> None:
        """Start loading in a thread of its own."""
        threading.Thread(target=self.load, name="engine-load", daemon=True).start()

    def load(self) -> None:
        """Load the model; afterwards `stage` is `READY`, or `FAILED` with the reason in `detail`."""
        started_s = time.monotonic()
        try:
            self.stage = LoadingStage.PREPARING
            model_dir = self.options.model_dir
            if model_dir is None:
                model_dir = prepare_demo_model(self.options.data_dir, self._report)
            self.stage, self.detail = LoadingStage.LOADING, ""
            torch.set_num_threads(self.options.thread_count)
            model = LanguageModel(model_dir)
        except ModelUnavailable as exc:
            self.stage, self.detail = LoadingStage.FAILED, str(exc)
            logger.error("model_unavailable", extra={"reason": str(exc)})
            self._announce(f"error: {exc}")
            return
        with self._lock:
            if self._is_closed:
                return
            options = self.options
            scheduler = Scheduler(
                model,
                self.metrics,
                active_max=options.active_max,
                queued_max=options.queued_max,
            )
            self._loaded = Loaded(model, scheduler)
            self.stage = LoadingStage.READY
        seconds = time.monotonic() - started_s
        logger.info("model_ready", extra={"seconds": round(seconds, 2)})
        self._announce(f"model ready after {seconds:.1f} s")

    def loaded(self) -> Loaded:
        """Return what generation needs.

        Raises:
            ModelLoading: loading goes on.
            ModelUnavailable: loading has failed.
        """
        if self._loaded is not None:
            return self._loaded
        if self.stage is LoadingStage.FAILED:
            raise ModelUnavailable(self.detail)
        raise ModelLoading(self.stage, LOADING_RETRY_AFTER_S)

    def prefix_of(self, expert: ExpertProfile) -> tuple[int, ...]:
        """Return the tokens that all prompts of `expert` begin with, empty for the bare model."""
        known = self._prefixes.get(expert.expert_id)
        if known is None:
            turns = directive_turns(expert)
            model = self.loaded().model
            known = tuple(model.encode_chat(turns, opens_answer=False)) if turns else ()
            self._prefixes[expert.expert_id] = known
        return known

    def loads(self) -> dict[str, float]:
        """Return each expert's load over the last 100 ms; nothing is loaded before the model is."""
        return self._loaded.scheduler.loads() if self._loaded is not None else {}

    def close(self) -> None:
        """End generation; whoever still waits for an answer gets an error."""
        with self._lock:
            self._is_closed = True
        if self._loaded is not None:
            self._loaded.scheduler.close()

    def _report(self, line: str) -> None:
        self.detail = line
        self._announce(line)
