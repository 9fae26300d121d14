"""What experts are about, apart from labelled prompts: domains, descriptions and terms, from a TOML file.

Owns reading such a file and making practice prompts of its terms. A handful of prompts per expert teaches their
own wording; the vocabulary teaches the subject (docs/adr/0009).
"""

import random
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from routing_engine.errors import TrainingDataError
from routing_engine.training.dataset import TRAIN, LabelledPrompt

COPIES = 4
"""How often each term is used in a practice prompt."""

TERMS_PER_PROMPT = (1, 1, 2, 2, 3)
"""Numbers of terms that a practice prompt mentions, drawn evenly."""

_JOINTS = {
    "en": (" and ", " ", ", ", " with ", " for "),
    "zh": ("和", "的", "，", "", " "),
}
_BARE = ("{}",)


@dataclass(frozen=True, slots=True)
class ExpertVocabulary:
    """One expert's domain and, by language, its description and terms."""

    expert_id: str
    domain: str
    descriptions: dict[str, str]
    terms: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabularies of all experts; `frames` are ways of asking, by language, with ``{}`` for the subject."""

    experts: tuple[ExpertVocabulary, ...]
    frames: dict[str, tuple[str, ...]]

    @property
    def domains(self) -> dict[str, str]:
        """The domain of each expert that names one."""
        return {each.expert_id: each.domain for each in self.experts if each.domain}

    def practice_prompts(self, seed: int) -> list[LabelledPrompt]:
        """Return prompts made of terms in frames, and the descriptions; the same seed gives the same ones."""
        draw = random.Random(seed)  # noqa: S311 -- for variety, not for secrets
        prompts = []
        for expert in self.experts:
            for lang, description in expert.descriptions.items():
                prompts.append(LabelledPrompt(description, expert.expert_id, lang, TRAIN))
            for lang, terms in expert.terms.items():
                frames = self.frames.get(lang, _BARE)
                joints = _JOINTS.get(lang, (" ",))
                for _ in range(COPIES):
                    left = draw.sample(terms, len(terms))
                    while left:
                        count = draw.choice(TERMS_PER_PROMPT)
                        subject = draw.choice(joints).join(left[:count])
                        text = draw.choice(frames).replace("{}", subject)
                        prompts.append(LabelledPrompt(text, expert.expert_id, lang, TRAIN))
                        del left[:count]
        return prompts


def packaged_vocabulary() -> Path:
    """Return the vocabulary that the package carries for the demo's experts."""
    return Path(str(files("routing_engine").joinpath("data", "experts.toml")))


def read_vocabulary(path: Path) -> Vocabulary:
    """Return the vocabulary in `path`.

    It holds ``[[experts]]`` with ``id`` and, all optional, ``domain``, ``description_<lang>`` and ``terms_<lang>``,
    and ``frames_<lang>`` at the top. Terms and frames are parted by semicolons.

    Raises:
        TrainingDataError: the file can't be read, or an entry is wrong.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise TrainingDataError(str(path), 0, f"can't be read: {exc}") from exc
    entries = document.get("experts")
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise TrainingDataError(str(path), 0, "has no [[experts]]")
    experts = tuple(_expert(entry, path, number) for number, entry in enumerate(entries, 1))
    ids = [each.expert_id for each in experts]
    if len(set(ids)) != len(ids):
        twice = next(each for each in ids if ids.count(each) > 1)
        raise TrainingDataError(str(path), 0, f"expert {twice!r} stands there twice")
    return Vocabulary(experts, _lists(document, "frames_", path, "the top level"))


def _expert(entry: dict[str, Any], path: Path, number: int) -> ExpertVocabulary:
    expert_id, domain = entry.get("id"), entry.get("domain", "")
    if not isinstance(expert_id, str) or not expert_id:
        raise TrainingDataError(str(path), 0, f"expert {number} has no 'id'")
    if not isinstance(domain, str):
        raise TrainingDataError(str(path), 0, f"'domain' of {expert_id!r} must be a string")
    terms = _lists(entry, "terms_", path, repr(expert_id))
    described = _lists(entry, "description_", path, repr(expert_id))
    descriptions = {lang: "; ".join(parts) for lang, parts in described.items()}
    return ExpertVocabulary(expert_id, domain, descriptions, terms)


def _lists(
    table: dict[str, Any], prefix: str, path: Path, owner: str
) -> dict[str, tuple[str, ...]]:
    """Return the parts of every text whose key starts with `prefix`, by the rest of the key: the language."""
    found = {}
    for key, value in table.items():
        if not key.startswith(prefix):
            continue
        if not isinstance(value, str):
            raise TrainingDataError(str(path), 0, f"{key!r} of {owner} must be a string")
        parts = (" ".join(part.split()) for part in value.split(";"))
        found[key.removeprefix(prefix)] = tuple(part for part in parts if part)
    return found
