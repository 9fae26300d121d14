"""The terms commands, as a terminologist runs them."""

import json

import pytest
from typer.testing import CliRunner

from term_db.cli import terms_app
from term_db.errors import InvalidTerm, TermConflict, UnknownVersion

TABLE = """concept_id,domain,lang,term,kind,case,action,expert_hint,definition,note
quick,programming,en,quicksort,preferred,,,python-algorithm,,
quick,,en,qsort,,,,,,
quick,,zh,快速排序,preferred,,,,,
quick,,zh,快排,,,,,,
"""


@pytest.fixture
def run(tmp_path):
    """Runs one command on a data directory of its own; raises what the command raises."""
    runner = CliRunner()

    def invoke(*args, exit_code=0, text=None):
        result = runner.invoke(
            terms_app,
            [*args, "--data-dir", str(tmp_path / "data")],
            input=text,
            catch_exceptions=False,
            env={"COLUMNS": "200", "USER": "li"},
        )
        assert result.exit_code == exit_code, result.output
        return result.stdout

    return invoke


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "terms.csv"
    path.write_text(TABLE, encoding="utf-8")
    return str(path)


def test_import_publishes_and_match_shows_the_prompt(run, table):
    assert json.loads(run("import", table, "--json")) == {
        "added": ["quick"],
        "changed": [],
        "removed": [],
        "unchanged_count": 0,
        "dry_run": False,
        "version": 1,
    }
    assert json.loads(run("match", "用qsort", "--json")) == {
        "version": 1,
        "text": "用quicksort",
        "rewritten_count": 1,
        "matches": [
            {
                "start": 1,
                "end": 6,
                "surface": "qsort",
                "concept_id": "quick",
                "lang": "en",
                "preferred": "quicksort",
                "action": "rewrite",
                "expert_hint": "python-algorithm",
            }
        ],
    }
    shown = run("match", "-", text="用快排")
    assert "快速排序" in shown
    assert shown.endswith("The prompt becomes:\n用快速排序\n")
    assert "1..3" in shown


def test_match_modes_and_draft(run, table):
    run("import", table, "--no-publish")
    assert "is empty" in run("match", "qsort")
    assert json.loads(run("match", "qsort", "--draft", "--json"))["text"] == "quicksort"
    tagged = json.loads(run("match", "qsort", "--draft", "--mode", "tag", "--json"))
    assert (tagged["text"], tagged["matches"][0]["action"]) == ("qsort", "tag")


def test_dry_run_changes_nothing(run, table):
    assert "Would import 1 concepts" in run("import", table, "--dry-run")
    assert json.loads(run("list", "--json")) == []
    assert json.loads(run("stats", "--json"))["version"] == 0


def test_bad_file_names_its_lines_and_imports_nothing(run, table, tmp_path, capsys):
    bad = tmp_path / "bad.csv"
    bad.write_text(TABLE + "x,law,en,,,,,,,\nx,law,en,y,,,,,,\n", encoding="utf-8")
    with pytest.raises(InvalidTerm, match=r"bad\.csv:7: "):
        run("import", str(bad))
    assert json.loads(run("list", "--json")) == []


def test_conflict_names_the_line(run, table, tmp_path):
    run("import", table)
    rival = tmp_path / "rival.csv"
    rival.write_text(
        "concept_id,domain,lang,term\nr,law,en,other\nr,law,en,QSort\n", encoding="utf-8"
    )
    with pytest.raises(TermConflict, match=r"rival\.csv:3: .*claimed by quick, r"):
        run("import", str(rival))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", "concept_id\n快".encode("gbk")])
def test_file_that_is_not_utf8_is_named(run, tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidTerm, match=r"x\.csv:\d: isn't UTF-8"):
        run("import", str(path))


def test_missing_file_and_unknown_suffix(run, tmp_path):
    with pytest.raises(InvalidTerm, match="No such file"):
        run("import", str(tmp_path / "missing.csv"))
    run("import", str(tmp_path / "terms.docx"), exit_code=2)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_export_is_importable_again(run, table, tmp_path, suffix):
    run("import", table)
    out = tmp_path / f"out.{suffix}"
    assert json.loads(run("export", str(out), "--json"))["concept_count"] == 1
    report = json.loads(run("import", str(out), "--replace", "--json"))
    assert (report["unchanged_count"], report["removed"]) == (1, [])


def test_add_history_and_rollback(run, table):
    run("import", table)
    assert "Version 2 is in force" in run("add", "quick", "快速排序法", "--lang", "zh")
    run("add", "heap", "heapsort", "--lang", "en", "--domain", "programming", "--json")
    assert json.loads(run("stats", "--json"))["version"] == 3
    entries = json.loads(run("history", "quick", "--json"))
    assert [(entry["change"], entry["actor"]) for entry in entries] == [
        ("changed", "li"),
        ("added", "li"),
    ]
    assert "+快速排序法" in run("history")
    assert json.loads(run("rollback", "1", "--json")) == {"version": 1}
    assert json.loads(run("match", "heapsort", "--json"))["matches"] == []
    with pytest.raises(UnknownVersion):
        run("rollback", "9")
    assert json.loads(run("publish", "--json")) == {"version": 4}
    assert "in force" in run("stats")


def test_conflicts_exit_with_one(run, tmp_path):
    assert run("conflicts") == "No conflicts.\n"
    path = tmp_path / "rivals.csv"
    path.write_text(
        "concept_id,domain,lang,term,status\na,law,en,ab,proposed\nb,law,en,AB,approved\n",
        encoding="utf-8",
    )
    run("import", str(path))
    assert json.loads(run("conflicts", "--json", exit_code=1)) == [
        {"variant": "ab", "concepts": ["a", "b"]}
    ]
    assert "a, b" in run("conflicts", exit_code=1)


def test_list_marks_preferred_terms(run, table):
    run("import", table)
    assert "quicksort*, qsort" in run("list", "快")


def test_a_dry_run_names_the_terms_that_the_file_would_take_away(run, table):
    run("import", table)
    run("add", "quick", "partition-exchange sort", "--lang", "en")
    shown = run("import", table, "--dry-run")
    assert "1 changed" in shown
    assert "  quick: -partition-exchange sort\n" in shown


def test_a_rollback_says_what_becomes_of_later_edits(run, table):
    run("import", table)
    run("add", "quick", "partition-exchange sort", "--lang", "en")
    assert "Edits made since then stay in the dictionary" in run("rollback", "1")
