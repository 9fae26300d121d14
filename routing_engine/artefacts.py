"""Reading and writing routing artefacts: safetensors with their facts inside, refused when they don't fit.

Free of torch. A file is written beside and renamed, so that a reader never sees half of it.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from routing_engine.errors import ArtefactError

GATE_FILE = "gate.safetensors"
TABLE_FILE = "table.bin"
TABLE_FACTS_FILE = "table.json"
SECOND_STAGE_FILE = "second_stage.safetensors"

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What an artefact says of itself; `evaluation` holds held-out figures by name."""

    kind: str
    feature_version: str
    labels: tuple[str, ...]
    domains: tuple[str, ...]
    temperature: float
    abstain_below: float
    seed: int
    evaluation: Mapping[str, float]

    def to_json(self) -> str:
        """Return the facts as JSON."""
        return json.dumps(
            {
                "kind": self.kind,
                "feature_version": self.feature_version,
                "labels": list(self.labels),
                "domains": list(self.domains),
                "temperature": self.temperature,
                "abstain_below": self.abstain_below,
                "seed": self.seed,
                "evaluation": dict(self.evaluation),
            },
            ensure_ascii=False,
            sort_keys=True,
        )


def facts_from_json(text: str, path: Path) -> Facts:
    """Return the facts in `text`.

    Raises:
        ArtefactError: something is missing or of another type.
    """
    try:
        raw = json.loads(text)
        return Facts(
            kind=str(raw["kind"]),
            feature_version=str(raw["feature_version"]),
            labels=tuple(str(label) for label in raw["labels"]),
            domains=tuple(str(domain) for domain in raw["domains"]),
            temperature=float(raw["temperature"]),
            abstain_below=float(raw["abstain_below"]),
            seed=int(raw["seed"]),
            evaluation={str(name): float(value) for name, value in raw["evaluation"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ArtefactError(str(path), f"its facts can't be read: {exc!r}") from exc


def require(facts: Facts, path: Path, *, kind: str, feature_version: str) -> None:
    """Insist that an artefact is of this kind and made for these features.

    Raises:
        ArtefactError: it isn't, or it has no labels, or a domain is missing.
    """
    if facts.kind != kind:
        raise ArtefactError(str(path), f"is a {facts.kind!r} artefact, not {kind!r}")
    if facts.feature_version != feature_version:
        raise ArtefactError(
            str(path),
            f"was made for features {facts.feature_version!r}, this version computes"
            f" {feature_version!r}; train again with `expertgate engine train`",
        )
    if not facts.labels or len(facts.labels) != len(facts.domains):
        raise ArtefactError(str(path), "has no labels, or not one domain for each")


def save_tensors(path: Path, arrays: Arrays, facts: Facts) -> None:
    """Write arrays and facts to `path`."""
    from safetensors.numpy import save

    ordered = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
    write_file(path, save(ordered, metadata={"facts": facts.to_json()}))


def load_tensors(path: Path) -> tuple[Arrays, Facts]:
    """Return the arrays and facts in `path`.

    Raises:
        ArtefactError: the file can't be read or is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dict
    except (OSError, SafetensorError) as exc:
        raise ArtefactError(str(path), f"can't be read: {exc}") from exc
    return arrays, facts_from_json(metadata.get("facts", "null"), path)


def write_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def version_of(content: bytes) -> str:
    """Return a short name for exactly this content."""
    return hashlib.sha256(content).hexdigest()[:12]
