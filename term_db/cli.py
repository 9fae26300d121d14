"""The ``expertgate terms`` commands: what a terminologist does with the dictionary, from a shell.

Owns arguments and printing only; every decision is the package's. Errors of the package pass through to
the entry point, which prints them.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from term_db.errors import InvalidTerm, TermConflict
from term_db.types import (
    CaseRule,
    Concept,
    ConceptId,
    DictionaryVersion,
    Term,
    TermAction,
    TermKind,
)

if TYPE_CHECKING:
    from term_db.interchange import ParsedDictionary, TableFormat
    from term_db.store import TermStore

IMPORT_BYTES_MAX = 512 << 20
"""Largest file that is imported; it is held in memory while it is checked."""

terms_app = typer.Typer(
    name="terms",
    help="The term dictionary: import, review, match, publish, roll back.",
    no_args_is_help=True,
)

DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir", envvar="EXPERTGATE_DATA_DIR", help="Data directory.", file_okay=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
_TOUCHED_SHOWN = 50
"""Changed concepts that an import names one by one."""

Actor = Annotated[str, typer.Option("--actor", envvar="USER", help="Name kept in the history.")]
NoPublish = Annotated[
    bool, typer.Option("--no-publish", help="Keep the edit for a later `terms publish`.")
]
_DATA_DIR = Path("expertgate-data")


@terms_app.command("import")
def import_terms(
    file: Annotated[Path, typer.Argument(help="A .csv, .tsv or .jsonl file.", dir_okay=False)],
    data_dir: DataDir = _DATA_DIR,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and count; change nothing.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove concepts that aren't in the file.")
    ] = False,
    no_publish: NoPublish = False,
    actor: Actor = "",
    as_json: AsJson = False,
) -> None:
    """Import a dictionary file: all of it or nothing, then publish."""
    from term_db.interchange import parse

    table_format = _format_of(file)
    with _working(f"Reading {file.name}"):
        parsed = parse(_read_text(file), table_format, source=str(file))
    if parsed.problems:
        for problem in parsed.problems[:-1]:
            print(f"error: {problem}", file=sys.stderr)
        raise parsed.problems[-1]
    with _store(data_dir) as store, _working(f"Importing {len(parsed.concepts)} concepts"):
        before = {concept.concept_id: concept for concept in store.all_concepts()}
        try:
            report = store.import_concepts(
                parsed.concepts, replace_all=replace, dry_run=dry_run, actor=actor
            )
        except TermConflict as exc:
            raise _placed(exc, parsed, file) from exc
        version = None if dry_run or no_publish else store.publish(actor=actor)
    result = {
        "added": list(report.added),
        "changed": list(report.changed),
        "removed": list(report.removed),
        "unchanged_count": report.unchanged_count,
        "dry_run": dry_run,
        "version": version,
    }
    if as_json:
        return _print_json(result)
    verb = "Would import" if dry_run else "Imported"
    print(
        f"{verb} {len(parsed.concepts)} concepts from {file}: {len(report.added)} added,"
        f" {len(report.changed)} changed, {report.unchanged_count} unchanged,"
        f" {len(report.removed)} removed."
    )
    after = {concept.concept_id: concept for concept in parsed.concepts}
    touched = [*report.changed, *report.removed]
    for concept_id in touched[:_TOUCHED_SHOWN]:
        # A file replaces a concept's terms, also those that somebody else added since it was exported.
        print(f"  {concept_id}: {_difference(before[concept_id], after.get(concept_id))}")
    if len(touched) > _TOUCHED_SHOWN:
        print(f"  and {len(touched) - _TOUCHED_SHOWN} more; `terms history` has them all")
    return _print_version(version, dry_run=dry_run)


@terms_app.command("export")
def export_terms(
    file: Annotated[Path, typer.Argument(help="A .csv, .tsv or .jsonl file.", dir_okay=False)],
    data_dir: DataDir = _DATA_DIR,
    domain: Annotated[str | None, typer.Option(help="Only concepts of this domain.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the dictionary to a file; .jsonl keeps every field of every concept."""
    from term_db.interchange import format_concepts

    table_format = _format_of(file)
    with _store(data_dir) as store:
        concepts = [
            concept
            for concept in store.all_concepts()
            if domain is None or concept.domain == domain
        ]
    _write_text(file, format_concepts(concepts, table_format))
    if as_json:
        return _print_json({"file": str(file), "concept_count": len(concepts)})
    return print(f"Wrote {len(concepts)} concepts to {file}.")


@terms_app.command("add")
def add_term(
    concept_id: Annotated[str, typer.Argument(help="Concept id, e.g. algo:sorting:quick.")],
    term: Annotated[str, typer.Argument(help="The written form to add.")],
    lang: Annotated[str, typer.Option(help="Language of the term, e.g. en or zh.")],
    data_dir: DataDir = _DATA_DIR,
    domain: Annotated[
        str | None, typer.Option(help="Domain of the concept; makes it when it is new.")
    ] = None,
    kind: Annotated[TermKind, typer.Option(help="Status of the term.")] = TermKind.ADMITTED,
    case: Annotated[CaseRule, typer.Option(help="Whether case matters.")] = CaseRule.FOLD,
    countable: Annotated[
        bool, typer.Option("--countable", help="Match the English plural too.")
    ] = False,
    note: Annotated[str, typer.Option(help="A note for colleagues.")] = "",
    no_publish: NoPublish = False,
    actor: Actor = "",
    as_json: AsJson = False,
) -> None:
    """Add one term to a concept, then publish."""
    new = Term(term, lang, kind, case, countable, note)
    with _store(data_dir) as store:
        concept = store.add_term(ConceptId(concept_id), new, actor=actor, domain=domain)
        version = None if no_publish else store.publish(actor=actor)
    if as_json:
        return _print_json({"concept": _concept_row(concept), "version": version})
    print(f"Added {term!r} to {concept_id}, which has {len(concept.terms)} terms now.")
    return _print_version(version)


@terms_app.command("match")
def match_text(
    text: Annotated[str, typer.Argument(help="A prompt; - reads standard input.")],
    data_dir: DataDir = _DATA_DIR,
    mode: Annotated[TermAction, typer.Option(help="As the gateway is set.")] = TermAction.REWRITE,
    draft: Annotated[
        bool, typer.Option("--draft", help="Match with unpublished edits included.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a prompt would become, and why."""
    from term_db.normalise import normalise

    prompt = sys.stdin.read() if text == "-" else text
    with _store(data_dir) as store:
        snapshot = store.draft() if draft else store.published()
    result = normalise(snapshot, prompt, mode=mode)
    rows = [
        {
            "start": match.span.start,
            "end": match.span.end,
            "surface": match.surface,
            "concept_id": match.concept_id,
            "lang": match.lang,
            "preferred": match.preferred,
            "action": match.action.value,
            "expert_hint": match.expert_hint,
        }
        for match in result.matches
    ]
    if as_json:
        return _print_json(
            {
                "version": snapshot.version,
                "text": result.text,
                "rewritten_count": result.rewritten_count,
                "matches": rows,
            }
        )
    if not snapshot.variant_count:
        print("The dictionary in force is empty: publish one, or match with --draft.")
    _print_table(
        ("span", "surface", "concept", "lang", "preferred", "action", "expert hint"),
        [
            (
                f"{row['start']}..{row['end']}",
                row["surface"],
                row["concept_id"],
                row["lang"],
                row["preferred"],
                row["action"],
                row["expert_hint"] or "",
            )
            for row in rows
        ],
    )
    print(f"{result.rewritten_count} of {len(rows)} matches rewritten. The prompt becomes:")
    return print(result.text)


@terms_app.command("list")
def list_terms(
    query: Annotated[str | None, typer.Argument(help="Part of an id or term.")] = None,
    data_dir: DataDir = _DATA_DIR,
    domain: Annotated[str | None, typer.Option(help="Only concepts of this domain.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most concepts shown.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List concepts with their terms; the preferred one of each language is marked with *."""
    with _store(data_dir) as store:
        concepts = store.list_concepts(domain=domain, text=query, limit=limit)
    if as_json:
        return _print_json([_concept_row(concept) for concept in concepts])
    return _print_table(
        ("concept", "domain", "status", "action", "expert hint", "terms"),
        [
            (
                concept.concept_id,
                concept.domain,
                concept.status.value,
                concept.action.value,
                concept.expert_hint or "",
                ", ".join(
                    f"{term.text}{'*' if term.kind is TermKind.PREFERRED else ''}"
                    for term in concept.terms
                ),
            )
            for concept in concepts
        ],
    )


@terms_app.command("conflicts")
def list_conflicts(data_dir: DataDir = _DATA_DIR, as_json: AsJson = False) -> None:
    """List variants that several concepts claim; exit code 1 when there are any."""
    with _store(data_dir) as store:
        found = store.conflicts()
    if as_json:
        _print_json([{"variant": item.variant, "concepts": item.concept_ids} for item in found])
    elif found:
        _print_table(
            ("variant", "claimed by"),
            [(conflict.variant, ", ".join(conflict.concept_ids)) for conflict in found],
        )
    else:
        print("No conflicts.")
    if found:
        raise typer.Exit(1)


@terms_app.command("history")
def show_history(
    concept_id: Annotated[str | None, typer.Argument(help="Only this concept.")] = None,
    data_dir: DataDir = _DATA_DIR,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most entries shown.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show edits, newest first."""
    with _store(data_dir) as store:
        entries = store.history(None if concept_id is None else ConceptId(concept_id), limit=limit)
    if as_json:
        return _print_json(
            [
                {
                    "changed_at": entry.changed_at.isoformat(),
                    "actor": entry.actor,
                    "concept_id": entry.concept_id,
                    "change": entry.change.value,
                    "before": None if entry.before is None else _concept_row(entry.before),
                    "after": None if entry.after is None else _concept_row(entry.after),
                }
                for entry in entries
            ]
        )
    return _print_table(
        ("when", "who", "concept", "change", "what"),
        [
            (
                entry.changed_at.isoformat(timespec="seconds"),
                entry.actor,
                entry.concept_id,
                entry.change.value,
                _difference(entry.before, entry.after),
            )
            for entry in entries
        ],
    )


@terms_app.command("publish")
def publish_terms(
    data_dir: DataDir = _DATA_DIR, actor: Actor = "", as_json: AsJson = False
) -> None:
    """Compile the dictionary and put it in force; running gateways take it within a second."""
    with _store(data_dir) as store, _working("Publishing"):
        version = store.publish(actor=actor)
    if as_json:
        return _print_json({"version": version})
    return _print_version(version)


@terms_app.command("rollback")
def rollback_terms(
    version: Annotated[int, typer.Argument(min=1, help="A published version; see `terms stats`.")],
    data_dir: DataDir = _DATA_DIR,
    actor: Actor = "",
    as_json: AsJson = False,
) -> None:
    """Put an earlier version in force again; edits stay in the dictionary."""
    with _store(data_dir) as store:
        store.rollback(DictionaryVersion(version), actor=actor)
    if as_json:
        return _print_json({"version": version})
    print(f"Version {version} is in force.")
    return print(
        "Edits made since then stay in the dictionary: the next import, add or publish puts them in force."
    )


@terms_app.command("stats")
def show_stats(data_dir: DataDir = _DATA_DIR, as_json: AsJson = False) -> None:
    """Show the sizes of the dictionary and its published versions."""
    with _store(data_dir) as store:
        stats, versions = store.stats(), store.versions()
    if as_json:
        return _print_json(
            {
                "concept_count": stats.concept_count,
                "term_count": stats.term_count,
                "terms_by_lang": dict(stats.terms_by_lang),
                "concepts_by_domain": dict(stats.concepts_by_domain),
                "version": stats.version,
                "served_concept_count": stats.served_concept_count,
                "served_variant_count": stats.served_variant_count,
                "versions": [
                    {
                        "version": item.version,
                        "published_at": item.published_at.isoformat(),
                        "digest": item.digest,
                        "concept_count": item.concept_count,
                        "variant_count": item.variant_count,
                        "is_current": item.is_current,
                    }
                    for item in versions
                ],
            }
        )
    langs = ", ".join(f"{count} {lang}" for lang, count in stats.terms_by_lang)
    domains = ", ".join(f"{count} {domain}" for domain, count in stats.concepts_by_domain)
    print(f"{stats.concept_count} concepts ({domains or 'none'})")
    print(f"{stats.term_count} terms ({langs or 'none'})")
    print(f"version {stats.version} in force serves {stats.served_variant_count} variants")
    return _print_table(
        ("version", "published", "concepts", "variants", "digest", ""),
        [
            (
                str(item.version),
                item.published_at.isoformat(timespec="seconds"),
                str(item.concept_count),
                str(item.variant_count),
                item.digest[:12],
                "in force" if item.is_current else "",
            )
            for item in versions
        ],
    )


def _store(data_dir: Path) -> "TermStore":
    from term_db.store import TermStore

    return TermStore(data_dir / "terms.sqlite", data_dir / "snapshots")


def _format_of(file: Path) -> "TableFormat":
    from term_db.interchange import TableFormat

    try:
        return TableFormat(file.suffix.removeprefix(".").lower())
    except ValueError:
        names = ", ".join(f".{table_format}" for table_format in TableFormat)
        raise typer.BadParameter(f"{file}: the name must end in one of {names}") from None


def _read_text(file: Path) -> str:
    try:
        if file.stat().st_size > IMPORT_BYTES_MAX:
            raise InvalidTerm(f"is over the limit of {IMPORT_BYTES_MAX} bytes", source=str(file))
        data = file.read_bytes()
    except OSError as exc:
        raise InvalidTerm(exc.strerror or str(exc), source=str(file)) from exc
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise InvalidTerm("isn't UTF-8: save it as UTF-8", source=str(file), line=line) from exc


def _write_text(file: Path, content: str) -> None:
    try:
        file.write_text(content, encoding="utf-8", newline="")
    except OSError as exc:
        raise InvalidTerm(exc.strerror or str(exc), source=str(file)) from exc


def _placed(conflict: TermConflict, parsed: "ParsedDictionary", file: Path) -> TermConflict:
    """The conflict with the first line of the file that claims the variant."""
    from term_db.fold import fold_term

    folded = fold_term(conflict.variant)
    lines = [
        line
        for (concept_id, text), line in parsed.lines.items()
        if concept_id in conflict.concept_ids and fold_term(text) == folded
    ]
    place = f"{file}:{max(lines)}" if lines else ""
    return TermConflict(
        conflict.variant, conflict.concept_ids, place=place, more_count=conflict.more_count
    )


def _concept_row(concept: Concept) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(concept)


def _difference(before: Concept | None, after: Concept | None) -> str:
    old = set() if before is None else {term.text for term in before.terms}
    new = set() if after is None else {term.text for term in after.terms}
    words = [
        *(f"+{text}" for text in sorted(new - old)),
        *(f"-{text}" for text in sorted(old - new)),
    ]
    return " ".join(words)


@contextmanager
def _working(label: str) -> Iterator[None]:
    """Shows on a terminal that something takes its time."""
    from rich.console import Console

    with Console(stderr=True).status(label):
        yield


def _print_version(version: DictionaryVersion | None, *, dry_run: bool = False) -> None:
    if version is not None:
        print(f"Version {version} is in force.")
    elif not dry_run:
        print("Not published yet: `expertgate terms publish` puts it in force.")


def _print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console().print(table)
