"""The documents are true: commands, links, settings, headers and error codes in them exist, and none is missing."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

from billing.catalog import (
    CatalogDocument,
    ExpertDocument,
    PackageDocument,
    RatesDocument,
    ReplicaDocument,
    SlaTierDocument,
)
from billing.settings import BillingSettings
from gateway.__main__ import build_cli
from gateway.headers import RESPONSE_HEADERS
from gateway.problems import INTERNAL, METHOD_NOT_ALLOWED, NOT_FOUND, PROBLEMS
from gateway.settings import GatewaySettings
from routing_engine.engine.settings import EngineSettings

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ADRS = sorted((ROOT / "docs" / "adr").glob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
SHELLS = frozenset({"sh", "bash", "shell", "console"})

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

CLI = typer.main.get_command(build_cli())


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def shell_lines(text: str) -> Iterator[str]:
    """Commands of fenced shell blocks, continued lines joined, comments left out."""
    for language, block in FENCE.findall(text):
        if language in SHELLS:
            for line in block.replace("\\\n", " ").splitlines():
                line = line.removeprefix("$ ").strip()
                if line and not line.startswith("#"):
                    yield line


def inline_code(text: str) -> Iterator[str]:
    for code in INLINE.findall(FENCE.sub("", text)):
        yield " ".join(code.split())


def written_commands(program: str) -> Iterator[tuple[str, str, bool]]:
    """Yields (document, command line, whether it is to be run as it stands)."""
    for path in DOCUMENTS:
        text = read(path)
        for line in shell_lines(text):
            if line.split()[0] == program:
                yield name_of(path), line, True
        for code in inline_code(text):
            if code.startswith(f"{program} "):
                yield name_of(path), code, False
    for path in EXAMPLES:
        for line in read(path).splitlines():
            found = re.search(rf"\b{program} [a-z]+ .*", line) if line.startswith("#") else None
            if found and "`" not in found[0]:
                yield name_of(path), found[0], True


def parse_command(line: str, *, is_complete: bool) -> None:
    """Parse a command line as the program would, without running it.

    Inline mentions may stop at a group or leave arguments out; options that they name must exist.
    """
    words = shlex.split(line, comments=True)[1:]
    command: Any = CLI
    context = command.context_class(command, info_name="expertgate")
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        name = words.pop(0)
        assert name in command.commands, f"there is no command {name!r}"
        command = command.commands[name]
        context = command.context_class(command, info_name=name, parent=context)
    if hasattr(command, "commands"):
        assert not is_complete, "the line stops at a group of commands"
    if is_complete:
        command.make_context(command.name, words, parent=context.parent)
        return
    known = {option for parameter in command.params for option in parameter.opts}
    unknown = {word.split("=")[0] for word in words if word.startswith("--")} - known
    assert not unknown


COMMANDS = sorted(set(written_commands("expertgate")))


@pytest.mark.parametrize(("document", "line", "is_complete"), COMMANDS)
def test_written_commands_exist(document: str, line: str, is_complete: bool) -> None:
    parse_command(line, is_complete=is_complete)


def test_commands_are_found_at_all() -> None:
    groups = {line.split()[1] for _, line, _ in COMMANDS}
    assert groups >= set(CLI.commands) - {"demo"}


@pytest.mark.parametrize(
    "line",
    [
        "expertgate nothing",
        "expertgate terms",
        "expertgate terms rollback",
        "expertgate terms rollback one",
        "expertgate invoices preview",
        "expertgate invoices preview --period 2026-12 --colour red",
        "expertgate keys create --customer acme extra",
    ],
)
def test_wrong_commands_are_noticed(line: str) -> None:
    with pytest.raises(Exception, match=r".+"):
        parse_command(line, is_complete=True)


def test_written_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read(ROOT / "Makefile"), re.MULTILINE))
    written = {(path, line.split()[1]) for path, line, _ in written_commands("make")}
    assert written
    assert {(path, target) for path, target in written if target not in targets} == set()


def test_the_readme_begins_with_the_demo_and_the_tests() -> None:
    assert [*shell_lines(read(ROOT / "README.md"))][:2] == ["make demo", "make test"]
    first_screen = read(ROOT / "README.md").split("```")[0]
    for person in ("platform engineer", "terminologist", "finance person"):
        assert person in first_screen


def anchors_of(path: Path) -> set[str]:
    """The anchors that GitHub gives to a document's headings."""
    found = set()
    for heading in HEADING.findall(FENCE.sub("", read(path))):
        bare = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", bare).replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_relative_links_lead_somewhere(path: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", read(path))):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            broken.append(link)
    assert broken == []


def test_documents_that_sources_refer_to_exist() -> None:
    packages = ("gateway", "routing_engine", "billing", "term_db", "migrations", "examples")
    referred = {
        (name_of(path), document)
        for package in packages
        for suffix in ("*.py", "*.toml")
        for path in (ROOT / package).rglob(suffix)
        for document in re.findall(r"docs/adr/\d{4}|docs/[\w/.-]+\.md", read(path))
    }
    assert referred
    missing = {each for each in referred if not [*ROOT.glob(f"{each[1].removesuffix('.md')}*.md")]}
    assert missing == set()


@pytest.mark.parametrize("path", ADRS, ids=name_of)
def test_decisions_have_context_decision_consequences(path: Path) -> None:
    text = read(path)
    assert HEADING.findall(text)[1:] == ["Context", "Decision", "Consequences"]
    assert text.startswith(f"# {path.name[:4]}: ")
    assert all(section.strip() for section in re.split(r"^## \w+$", text, flags=re.MULTILINE))


def test_decisions_are_numbered_without_gaps() -> None:
    assert [path.name[:4] for path in ADRS] == [f"{n:04}" for n in range(1, len(ADRS) + 1)]


def rows_of(path: Path) -> dict[str, list[str]]:
    """The rows of a document's tables by their first cell, which is code."""
    return {
        cells[0].strip("`"): cells[1:]
        for line in read(path).splitlines()
        if line.startswith("| `")
        for cells in [[cell.strip() for cell in line.strip("| \n").split(" | ")]]
    }


def written_default(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str | Path):
        return f'`"{value}"`'
    return f"`{value}`"


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields (name, default as written) of every setting, sections entered."""
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        if isinstance(default, BaseModel):
            yield from settings_of(type(default), f"{prefix}{name}.")
        elif field.is_required():
            yield f"{prefix}{name}", "required"
        else:
            yield f"{prefix}{name}", written_default(default)


def environment_of(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        yield str(field.validation_alias or prefix + name.upper()), written_default(field.default)


EVERY_SETTING = dict(
    [
        *settings_of(GatewaySettings),
        *settings_of(CatalogDocument),
        *settings_of(ExpertDocument, "experts."),
        *settings_of(ReplicaDocument, "experts.replicas."),
        *settings_of(RatesDocument, "experts.rates."),
        *settings_of(SlaTierDocument, "sla_tiers."),
        *settings_of(PackageDocument, "packages."),
        *environment_of(BillingSettings, "EXPERTGATE_BILLING_"),
        *environment_of(EngineSettings, "EXPERTGATE_"),
    ]
)


def test_every_setting_is_documented_with_its_default() -> None:
    rows = rows_of(ROOT / "docs" / "configuration.md")
    written = {name: rows[name][0] for name in EVERY_SETTING if name in rows}
    assert written == EVERY_SETTING


def test_no_setting_is_documented_that_does_not_exist() -> None:
    elsewhere = {"FONT_DIR", "FAULT", "TEST_REQUIRE", "TEST_CACHE"}
    known = {*EVERY_SETTING, *(f"EXPERTGATE_{name}" for name in elsewhere)}
    assert rows_of(ROOT / "docs" / "configuration.md").keys() - known == set()


def test_every_response_header_is_documented() -> None:
    rows = rows_of(ROOT / "docs" / "http-api.md")
    written = {name for name in rows if name.startswith("x-")}
    assert written == {header.decode() for header in RESPONSE_HEADERS}


def test_every_problem_is_documented_with_status_and_type() -> None:
    problems = [*PROBLEMS.values(), INTERNAL, NOT_FOUND, METHOD_NOT_ALLOWED]
    expected = {
        problem.code or "null": [str(problem.status), f"`{problem.type}`"] for problem in problems
    }
    rows = rows_of(ROOT / "docs" / "http-api.md")
    written = {code: cells[:2] for code, cells in rows.items() if cells[0].isdigit()}
    assert written == expected


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_examples_pass_the_check(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CLI(["config", "check", str(path)], standalone_mode=False)
    assert capsys.readouterr().out.startswith(f"{path}: ok\n")
