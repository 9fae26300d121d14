"""Labelled prompts: JSON lines of ``text, label, lang, split`` (and optionally ``domain``, ``concept_ids``).

Owns reading and checking them. Any labels are allowed: they are the experts that will be routed to.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from routing_engine.errors import TrainingDataError

ROWS_MAX = 1_000_000
"""Most rows that are read; training keeps all of them in memory."""

TRAIN = "train"
_SPLITS = frozenset({"train", "val", "test"})


@dataclass(frozen=True, slots=True)
class LabelledPrompt:
    """One prompt with the expert that should answer it; `domain` is empty when the row names none."""

    text: str
    label: str
    lang: str
    split: str
    domain: str = ""
    concept_ids: tuple[str, ...] = ()


def packaged_prompts() -> Path:
    """Return the labelled prompts that the package carries, written for the demo's experts."""
    return Path(str(files("routing_engine").joinpath("data", "prompts.jsonl")))


def read_prompts(path: Path) -> list[LabelledPrompt]:
    """Return the rows of `path`.

    Raises:
        TrainingDataError: the file can't be read, or a row is wrong; names file and line.
    """
    rows: list[LabelledPrompt] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append(_row(line, path, number))
                if len(rows) > ROWS_MAX:
                    raise TrainingDataError(str(path), number, f"more than {ROWS_MAX} rows")
    except (OSError, UnicodeDecodeError) as exc:
        raise TrainingDataError(str(path), 0, f"can't be read: {exc}") from exc
    return rows


def domains_of(rows: Sequence[LabelledPrompt]) -> dict[str, str]:
    """Return the domain of each label: its rows' own, else a domain named like the label's first row says."""
    domains: dict[str, str] = {}
    for row in rows:
        if row.domain or row.label not in domains:
            domains[row.label] = row.domain or domains.get(row.label, "default")
    return domains


def _row(line: str, path: Path, number: int) -> LabelledPrompt:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise TrainingDataError(str(path), number, f"isn't JSON: {exc}") from exc
    if not isinstance(raw, dict):
        raise TrainingDataError(str(path), number, "isn't a JSON object")
    for name in ("text", "label", "lang", "split"):
        if not isinstance(raw.get(name), str) or not raw[name].strip():
            raise TrainingDataError(str(path), number, f"{name!r} must be a non-empty string")
    if raw["split"] not in _SPLITS:
        raise TrainingDataError(
            str(path),
            number,
            f"'split' must be one of {', '.join(sorted(_SPLITS))}: {raw['split']!r}",
        )
    concepts = raw.get("concept_ids", [])
    if not isinstance(concepts, list) or not all(isinstance(each, str) for each in concepts):
        raise TrainingDataError(str(path), number, "'concept_ids' must be an array of strings")
    domain = raw.get("domain", "")
    if not isinstance(domain, str):
        raise TrainingDataError(str(path), number, "'domain' must be a string")
    return LabelledPrompt(
        raw["text"], raw["label"], raw["lang"], raw["split"], domain, tuple(concepts)
    )
