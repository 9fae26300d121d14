"""The second routing stage: asked when the first is unsure, it reads meaning instead of letters.

Text encoder → per-language centring → fingerprint → block-sparse affinity → calibrated softmax →
load. Owns how a decision is computed and how the stage is trained. Does not own when it is asked
(the gateway), nor the file format (`second_stage_artefact.py`).

Shape legend: B = texts, D = 384, E = experts, L = languages.
"""

# ruff: noqa: N803, N806 -- tensors carry their shape as a suffix (STYLE.md, torch)

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from routing_engine.engine.affinity import BLOCK_WIDTH, ExpertAffinity, damp, scores_of
from routing_engine.engine.errors import BadEngineRequest, SecondStageMissing
from routing_engine.engine.experts import DEMO_EXPERTS
from routing_engine.engine.second_stage_artefact import (
    Artefact,
    Facts,
    load_artefact,
    save_artefact,
)
from routing_engine.engine.text_encoder import TextEncoder, language_of
from routing_engine.errors import TrainingDataError
from routing_engine.types import ExpertId, ExpertScore, RouteRequest

HINT_LOGIT = 2.0
"""What a matched concept's expert hint adds: e² times the odds; a sure network still overrules it."""

CANDIDATES_MAX = 5
EPOCHS = 60
BATCH_SIZE = 64
LABEL_SMOOTHING = 0.05
CALIBRATION_SHARE = 0.15
"""Part of the training rows that the weights don't see: the temperature is fitted on it."""

CALIBRATION_ROWS_MIN = 50
"""With fewer rows every one may be right, and the best temperature would be as low as can be."""

TEMPERATURE_MIN = 0.4
"""Lower, a handful of lucky rows would turn every score into 1."""

Progress = Callable[[str, int, int], None]
"""Receives phase (``encode``, ``train``), steps done, and steps in all."""


class LabelledRow(Protocol):
    """A labelled prompt: `label` is an expert id, `lang` is ``en`` or ``zh``, `split` ``train`` or other."""

    @property
    def text(self) -> str:
        """The prompt."""

    @property
    def label(self) -> str:
        """The id of the expert that should answer."""

    @property
    def lang(self) -> str:
        """The language, for the report; routing detects its own."""

    @property
    def split(self) -> str:
        """``train``, or anything else for rows that are held out."""


@dataclass(frozen=True, slots=True)
class SecondStageDecision:
    """The chosen expert, its damped score, the best few, and which artefact said so."""

    expert_id: ExpertId
    score: float
    candidates: tuple[ExpertScore, ...]
    artefact_version: str


@dataclass(frozen=True, slots=True)
class SecondStageReport:
    """What training gave; `evaluation` has ``accuracy_<lang>``, ``accuracy``, ``ece``, ``rows_<lang>``."""

    path: Path
    artefact_version: str
    temperature: float
    train_rows: int
    evaluation: dict[str, float]
    train_s: float


class SecondStage:
    """Scores texts with the artefact in `path`, which is read again whenever the file is replaced.

    Args:
        path: the artefact; it may appear later.
        encoder: the text encoder; None loads it with the artefact.
        known_experts: the ids the artefact may route to; None allows all.
    """

    def __init__(
        self,
        path: Path,
        *,
        encoder: TextEncoder | None = None,
        known_experts: frozenset[str] | None = None,
    ) -> None:
        self.path = path
        self._encoder, self._known_experts = encoder, known_experts
        self._artefact: Artefact | None = None
        self._read_state: tuple[int, int, int] | None = None
        self._lock = threading.Lock()

    @property
    def is_there(self) -> bool:
        """Whether the artefact's file exists."""
        return self.path.is_file()

    def decide(
        self, request: RouteRequest, loads: Mapping[str, float] | None = None
    ) -> SecondStageDecision:
        """Return the best expert for `request`. Takes tens of milliseconds: call it in a worker thread.

        Args:
            request: `allowed` limits the choice, `expert_hints` favour experts; concept ids are not
                looked at, since the encoder reads their meaning in the text itself.
            loads: load of each expert over the last 100 ms, 0 to 1; missing ones are idle.

        Raises:
            SecondStageMissing: there is no artefact.
            ArtefactError: the artefact can't be used.
            BadEngineRequest: the text is blank, or no allowed expert is known.
        """
        artefact, encoder = self._current()
        labels = artefact.facts.labels
        if not request.text.replace("\0", " ").strip():
            raise BadEngineRequest("text must hold something to route by", param="text")
        choice = [
            index
            for index, label in enumerate(labels)
            if request.allowed is None or label in request.allowed
        ]
        if not choice:
            raise BadEngineRequest("none of the allowed experts is known here", param="allowed")
        with torch.inference_mode():
            x_BD = _features(artefact.facts.languages, artefact.means_LD, [request.text], encoder)
            hints_E = torch.tensor(
                [HINT_LOGIT * (label in request.expert_hints) for label in labels]
            )
            loads_E = torch.tensor([(loads or {}).get(label, 0.0) for label in labels])
            logits_BE = artefact.network(x_BD) + hints_E
            scores_BE = damp(scores_of(logits_BE, artefact.facts.temperature), loads_E)
            scores_E = scores_BE[0].tolist()
        best = sorted(choice, key=lambda index: (-scores_E[index], index))[:CANDIDATES_MAX]
        candidates = tuple(ExpertScore(ExpertId(labels[i]), scores_E[i]) for i in best)
        version = artefact.facts.artefact_version
        return SecondStageDecision(
            candidates[0].expert_id, candidates[0].score, candidates, version
        )

    def _current(self) -> tuple[Artefact, TextEncoder]:
        with self._lock:
            try:
                stat = self.path.stat()
            except OSError as exc:
                raise SecondStageMissing(str(self.path)) from exc
            state = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if self._encoder is None:
                self._encoder = TextEncoder()
            if self._artefact is None or state != self._read_state:
                self._artefact = load_artefact(
                    self.path,
                    encoder_version=self._encoder.version,
                    known_experts=self._known_experts,
                )
                self._read_state = state
            return self._artefact, self._encoder


def train_second_stage(
    rows: Iterable[LabelledRow],
    out_path: Path,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    domains: Mapping[str, str] | None = None,
) -> SecondStageReport:
    """Train on the ``train`` rows, evaluate on the others, write the artefact to `out_path`.

    The same rows and seed give the same artefact on the same machine.

    Args:
        rows: labelled prompts.
        out_path: usually ``<data>/routing/second_stage.safetensors``.
        seed: of the initial weights, the order of rows and the calibration split.
        progress: told about the two slow phases.
        domains: the domain of each expert id; the demo catalogue's by default. Experts that aren't
            in it share a domain of their own.

    Raises:
        TrainingDataError: fewer than two experts have training rows, or a row is blank.
        ModelUnavailable: the text encoder is missing.
        ArtefactError: the artefact can't be written.
    """
    started_s = time.monotonic()
    table = list(rows)
    for index, row in enumerate(table, start=1):
        if not row.text.replace("\0", " ").strip():
            raise TrainingDataError("labelled rows", index, "the text is blank")
    known = domains or {expert.expert_id: expert.domain for expert in DEMO_EXPERTS}
    labels = tuple(sorted({row.label for row in table if row.split == "train"}))
    if len(labels) < 2:
        raise TrainingDataError(
            "labelled rows", len(table), "needs rows of split 'train' for two experts or more"
        )
    encoder = TextEncoder()
    vectors_BD = _encode_all([row.text for row in table], encoder, progress)
    languages = tuple(sorted({language_of(row.text) for row in table if row.split == "train"}))
    is_train_B = torch.tensor([row.split == "train" for row in table])
    means_LD = torch.stack([
        vectors_BD[is_train_B & torch.tensor([language_of(row.text) == name for row in table])].mean(0)
        for name in languages
    ])  # fmt: skip
    x_BD = _centre(languages, means_LD, [row.text for row in table], vectors_BD)
    y_B = torch.tensor([labels.index(row.label) if row.label in labels else -1 for row in table])
    facts = Facts(
        labels=labels,
        domains=tuple(known.get(label, "other") for label in labels),
        languages=languages,
        encoder_version=encoder.version,
        temperature=1.0,
        seed=seed,
        block_width=BLOCK_WIDTH,
    )
    network, temperature = _fit(facts, x_BD[is_train_B], y_B[is_train_B], progress)
    evaluation = _evaluate(network, temperature, x_BD, y_B, table)
    facts = replace(facts, temperature=temperature, evaluation=evaluation)
    version = save_artefact(out_path, Artefact(network, means_LD, facts))
    return SecondStageReport(
        path=out_path,
        artefact_version=version,
        temperature=temperature,
        train_rows=int(is_train_B.sum()),
        evaluation=evaluation,
        train_s=time.monotonic() - started_s,
    )


def _features(
    languages: Sequence[str], means_LD: Tensor, texts: Sequence[str], encoder: TextEncoder
) -> Tensor:
    vectors_BD = torch.from_numpy(np.stack([encoder.encode(text) for text in texts]))
    return _centre(languages, means_LD, texts, vectors_BD)


def _centre(
    languages: Sequence[str], means_LD: Tensor, texts: Sequence[str], vectors_BD: Tensor
) -> Tensor:
    """Return vectors without the mean of their language, each of length √D.

    Without it the language is the strongest direction of the vectors, and what was learned in one
    language doesn't carry over to the other. A language without training rows gets the mean of all.
    """
    mean_D = means_LD.mean(0)
    names = [language_of(text) for text in texts]
    taken_BD = torch.stack(
        [means_LD[languages.index(name)] if name in languages else mean_D for name in names]
    )
    unit_BD: Tensor = torch.nn.functional.normalize(vectors_BD - taken_BD, dim=-1)
    return unit_BD * math.sqrt(vectors_BD.shape[1])


def _encode_all(texts: Sequence[str], encoder: TextEncoder, progress: Progress | None) -> Tensor:
    vectors = []
    for index, text in enumerate(texts, start=1):
        vectors.append(encoder.encode(text))
        if progress is not None:
            progress("encode", index, len(texts))
    return torch.from_numpy(np.stack(vectors))


def _fit(
    facts: Facts, x_BD: Tensor, y_B: Tensor, progress: Progress | None
) -> tuple[ExpertAffinity, float]:
    # Training must neither depend on nor disturb the random state of the process it runs in.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(facts.seed)
        network = ExpertAffinity(facts.domains, block_width=facts.block_width)
        order = torch.randperm(len(y_B))
        held_count = int(len(y_B) * CALIBRATION_SHARE)
        held, used = order[:held_count], order[held_count:]
        optimiser = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.1)
        steps = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
        batch_count = -(-len(used) // BATCH_SIZE)
        for epoch in range(1, EPOCHS + 1):
            network.train()
            for batch in used[torch.randperm(len(used))].chunk(batch_count):
                loss = torch.nn.functional.cross_entropy(
                    network(x_BD[batch]), y_B[batch], label_smoothing=LABEL_SMOOTHING
                )
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
            steps.step()
            if progress is not None:
                progress("train", epoch, EPOCHS)
    network.eval()
    if held_count < CALIBRATION_ROWS_MIN:
        return network, 1.0
    with torch.no_grad():
        return network, _best_temperature(network(x_BD[held]), y_B[held])


def _best_temperature(logits_BE: Tensor, y_B: Tensor) -> float:
    """Return the temperature with the least negative log likelihood, on a grid of 5 % steps.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2.
    """
    grid = [TEMPERATURE_MIN * 1.05**step for step in range(50)]
    losses = [float(torch.nn.functional.cross_entropy(logits_BE / t, y_B)) for t in grid]
    return grid[losses.index(min(losses))]


def _evaluate(
    network: ExpertAffinity,
    temperature: float,
    x_BD: Tensor,
    y_B: Tensor,
    table: Sequence[LabelledRow],
) -> dict[str, float]:
    """Return accuracy per language and calibration error on the held-out rows, if there are any."""
    held = [i for i, row in enumerate(table) if row.split != "train" and int(y_B[i]) >= 0]
    if not held:
        return {}
    with torch.no_grad():
        best = scores_of(network(x_BD[held]), temperature).max(-1)
    is_right = (best.indices == y_B[held]).float()
    figures = {"accuracy": float(is_right.mean()), "rows": float(len(held))}
    for name in sorted({table[i].lang for i in held}):
        of_language = torch.tensor([table[i].lang == name for i in held])
        figures[f"accuracy_{name}"] = float(is_right[of_language].mean())
        figures[f"rows_{name}"] = float(of_language.sum())
    tenth = (best.values * 10).long().clamp(max=9)
    gaps = [
        float((is_right[tenth == k].mean() - best.values[tenth == k].mean()).abs())
        * int((tenth == k).sum())
        for k in range(10)
        if bool((tenth == k).any())
    ]
    figures["ece"] = sum(gaps) / len(held)
    return figures
