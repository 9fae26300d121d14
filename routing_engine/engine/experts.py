"""The experts this engine answers as: a directive and generation settings for each.

Owns which model names the engine accepts. An expert of the engine is a way of asking the model:
a system directive, a temperature and a length. Prices and entitlements are the gateway's.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from routing_engine.engine.errors import ModelUnavailable, UnknownEngineModel

BARE_MODEL = "smollm2"
"""Model name that reaches the model without a directive."""

EXPERTS_MAX = 1024
"""As many experts as an engine may hold; the gate is built for this many."""

DIRECTIVE_LENGTH_MAX = 4000
"""Characters of a directive: it is part of every prompt, so it must stay a small part of the context."""

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class ExpertProfile:
    """How the engine answers as one expert.

    `temperature` and `max_tokens` hold when a request doesn't say. An empty directive adds nothing.
    """

    expert_id: str
    number: int
    domain: str
    directive: str
    temperature: float = 0.0
    max_tokens: int = 256


DEMO_EXPERTS = (
    ExpertProfile(
        "general", 1, "general",
        "You are a helpful assistant. Answer briefly and in the language of the question.",
        temperature=0.2,
    ),
    ExpertProfile(
        "python-algorithm", 387, "programming",
        "You are an expert in algorithms written in Python. Give short, working Python code and say"
        " its time complexity. Answer in the language of the question.",
    ),
    ExpertProfile(
        "c-systems", 388, "programming",
        "You are an expert in C and operating systems. Give correct C11 code, say who owns memory"
        " and what can fail. Answer in the language of the question.",
    ),
    ExpertProfile(
        "database-sql", 389, "programming",
        "You are an expert in SQL databases. Give standard SQL, say which index helps and which"
        " isolation level is needed. Answer in the language of the question.",
    ),
    ExpertProfile(
        "contract-law", 512, "law",
        "You are an expert in contract law. Name the rule, apply it to the facts, and say when a"
        " lawyer is needed. Answer in the language of the question.",
    ),
    ExpertProfile(
        "labour-law", 513, "law",
        "You are an expert in labour law. Name the rights of employee and employer, the time limits,"
        " and when a lawyer is needed. Answer in the language of the question.",
    ),
    ExpertProfile(
        "internal-medicine", 640, "medicine",
        "You are an expert in internal medicine. Explain likely causes, what to check, and when to"
        " see a doctor at once. Answer in the language of the question.",
    ),
    ExpertProfile(
        "nutrition", 641, "medicine",
        "You are an expert in nutrition. Give practical advice with amounts, and say for whom it is"
        " unsuitable. Answer in the language of the question.",
    ),
    ExpertProfile(
        "corporate-accounting", 768, "finance",
        "You are an expert in corporate accounting. Show the journal entry, debit and credit, and"
        " name the standard. Answer in the language of the question.",
    ),
    ExpertProfile(
        "personal-finance", 769, "finance",
        "You are an expert in personal finance. Compare costs, risks and time, with a small"
        " calculation. Answer in the language of the question.",
    ),
)  # fmt: skip
"""The experts of the demo catalogue."""


class ExpertRegistry:
    """The experts of one engine by id; raises ValueError for ids that occur twice."""

    def __init__(
        self, experts: Iterable[ExpertProfile] = DEMO_EXPERTS, *, bare_model: str = BARE_MODEL
    ) -> None:
        self.bare_model = bare_model
        self.experts = tuple(experts)
        self._by_id = {expert.expert_id: expert for expert in self.experts}
        if len(self._by_id) != len(self.experts) or bare_model in self._by_id:
            raise ValueError(
                "expert ids must be unique, and none may be the name of the bare model"
            )

    def __contains__(self, expert_id: object) -> bool:
        return expert_id in self._by_id

    def get(self, model: str) -> ExpertProfile:
        """Return the expert that `model` names; the bare model is one without a directive.

        Raises:
            UnknownEngineModel: no expert has this id.
        """
        if model == self.bare_model:
            return ExpertProfile(self.bare_model, 0, "", "")
        expert = self._by_id.get(model)
        if expert is None:
            near = difflib.get_close_matches(model[:64], self.model_names, n=2)
            raise UnknownEngineModel(model[:64], tuple(near))
        return expert

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names that a request may use: the experts, then the bare model."""
        return (*self._by_id, self.bare_model)


def load_experts(path: Path) -> tuple[ExpertProfile, ...]:
    """Return the experts of a TOML file, a table ``[experts.<id>]`` each.

    Keys: ``number``, ``domain``, ``directive``, and optionally ``temperature`` and ``max_tokens``.

    Raises:
        ModelUnavailable: the file can't be read or a value is wrong; names file, expert and key.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ModelUnavailable(f"{path}: {exc}") from exc
    tables = document.get("experts")
    if not isinstance(tables, dict) or not 1 <= len(tables) <= EXPERTS_MAX:
        raise ModelUnavailable(f"{path}: needs 1 to {EXPERTS_MAX} tables [experts.<id>]")
    return tuple(_profile(path, expert_id, table) for expert_id, table in tables.items())


def _profile(path: Path, expert_id: str, table: object) -> ExpertProfile:
    place = f"{path}: experts.{expert_id}"
    if not _ID.match(expert_id):
        raise ModelUnavailable(f"{place}: an id is lower-case letters, digits and hyphens")
    if not isinstance(table, dict):
        raise ModelUnavailable(f"{place}: must be a table")
    known = {"number", "domain", "directive", "temperature", "max_tokens"}
    if unknown := sorted(set(table) - known):
        raise ModelUnavailable(f"{place}: unknown key {unknown[0]!r}")
    number, temperature = table.get("number"), table.get("temperature", 0.0)
    domain, directive = table.get("domain"), table.get("directive")
    max_tokens = table.get("max_tokens", 256)
    if type(number) is not int or number < 0:
        raise ModelUnavailable(f"{place}.number: must be a whole number, 0 or more")
    if not isinstance(domain, str) or not domain:
        raise ModelUnavailable(f"{place}.domain: must be a name")
    if not isinstance(directive, str) or len(directive) > DIRECTIVE_LENGTH_MAX:
        raise ModelUnavailable(
            f"{place}.directive: must be a text of at most {DIRECTIVE_LENGTH_MAX} characters"
        )
    if type(temperature) not in (int, float) or not 0 <= temperature <= 2:
        raise ModelUnavailable(f"{place}.temperature: must be a number from 0 to 2")
    if type(max_tokens) is not int or max_tokens < 1:
        raise ModelUnavailable(f"{place}.max_tokens: must be a whole number, 1 or more")
    return ExpertProfile(
        expert_id, number, domain, directive, temperature=float(temperature), max_tokens=max_tokens
    )
