"""The file of a trained second stage: tensors with everything that must fit, in safetensors.

Owns the format and the refusal of files that don't fit: another encoder, other experts, damage.
"""

# ruff: noqa: N806, N815 -- tensors carry their shape as a suffix (STYLE.md, torch)

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from routing_engine.engine.affinity import ExpertAffinity
from routing_engine.engine.text_encoder import VECTOR_LENGTH
from routing_engine.errors import ArtefactError

FORMAT = "expertgate-second-stage/1"
_METADATA_KEY = "expertgate"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a second stage was made for and how good it is.

    `labels` are expert ids in the order of the logits, `domains` their domains; `languages` in the
    order of the means. `evaluation` holds figures by name, e.g. ``accuracy_en``.
    """

    labels: tuple[str, ...]
    domains: tuple[str, ...]
    languages: tuple[str, ...]
    encoder_version: str
    temperature: float
    seed: int
    block_width: int
    evaluation: dict[str, float] = field(default_factory=dict)
    artefact_version: str = ""


@dataclass(frozen=True, slots=True)
class Artefact:
    """A second stage ready to score: network, means_LD of the languages, and its facts."""

    network: ExpertAffinity
    means_LD: Tensor
    facts: Facts


def save_artefact(path: Path, artefact: Artefact) -> str:
    """Write `artefact` so that `path` holds the old file or the new one, never a part; return its version.

    Raises:
        ArtefactError: the file can't be written.
    """
    tensors = {name: tensor.contiguous() for name, tensor in artefact.network.state_dict().items()}
    tensors["means_LD"] = artefact.means_LD.contiguous()
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().tobytes())
    facts = asdict(artefact.facts)
    facts["artefact_version"] = version = f"second-{digest.hexdigest()[:12]}"
    document = json.dumps({"format": FORMAT, **facts}, ensure_ascii=False, sort_keys=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}-", delete=False
        ) as file:
            file.write(save(tensors, {_METADATA_KEY: document}))
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(path)
    except OSError as exc:
        raise ArtefactError(str(path), f"can't be written: {exc}") from exc
    return version


def load_artefact(
    path: Path, *, encoder_version: str, known_experts: frozenset[str] | None = None
) -> Artefact:
    """Return the second stage in `path`.

    Raises:
        ArtefactError: the file is missing or damaged, was made with another encoder, or routes to
            experts outside `known_experts`.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a mapping
        document: dict[str, Any] = json.loads(metadata[_METADATA_KEY])
        found_format = document.pop("format")
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as exc:
        raise ArtefactError(str(path), f"not a readable second stage: {exc}") from exc
    if found_format != FORMAT:
        raise ArtefactError(
            str(path), f"has format {found_format!r}; this version reads {FORMAT!r}"
        )
    try:
        for name in ("labels", "domains", "languages"):
            document[name] = tuple(document[name])
        facts = Facts(**document)
        means_LD = tensors.pop("means_LD")
        network = ExpertAffinity(
            facts.domains, vector_length=VECTOR_LENGTH, block_width=facts.block_width
        )
        network.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as exc:
        raise ArtefactError(str(path), f"its parts don't fit together: {exc}") from exc
    _check(path, Artefact(network, means_LD, facts), encoder_version, known_experts)
    return Artefact(network.eval(), means_LD, facts)


def _check(
    path: Path, artefact: Artefact, encoder_version: str, known_experts: frozenset[str] | None
) -> None:
    facts = artefact.facts
    if facts.encoder_version != encoder_version:
        raise ArtefactError(
            str(path),
            f"was trained with encoder {facts.encoder_version!r}, but {encoder_version!r} is"
            " installed; train it again with `expertgate engine train`",
        )
    if known_experts is not None and (unknown := sorted(set(facts.labels) - known_experts)):
        raise ArtefactError(
            str(path), f"routes to {unknown[0]!r}, which is no expert here; train it again"
        )
    if len(facts.labels) != len(facts.domains) or len(set(facts.labels)) != len(facts.labels):
        raise ArtefactError(str(path), "its labels and domains don't fit together")
    if artefact.means_LD.shape != (len(facts.languages), VECTOR_LENGTH):
        raise ArtefactError(str(path), "its language means have another shape than its languages")
    values = [artefact.means_LD, *artefact.network.state_dict().values()]
    if not all(bool(torch.isfinite(value).all()) for value in values) or not facts.temperature > 0:
        raise ArtefactError(str(path), "holds values that aren't numbers")
