"""The engine's commands as a platform engineer runs them: train, eval, explain."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from gateway.__main__ import build_cli
from routing_engine.artefacts import GATE_FILE, TABLE_FACTS_FILE, TABLE_FILE
from routing_engine.cli import engine_app
from routing_engine.errors import ArtefactError, TrainingDataError
from routing_engine.gate import load_gate
from tests.routing_engine.first_stage_files import LABELS, SAMPLES, write_gate, write_table
from tests.routing_engine.labelled_prompts import write_rows

LANGUAGES = ("", "_en", "_zh")
SCORERS = ("blend", "gate", "table")


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def run(data_dir):
    """Runs one command on a data directory of its own; raises what the command raises."""
    runner = CliRunner()

    def invoke(*args, exit_code=0):
        result = runner.invoke(
            engine_app,
            [*map(str, args), "--data-dir", str(data_dir)],
            catch_exceptions=False,
            env={"COLUMNS": "200"},
        )
        assert result.exit_code == exit_code, result.output
        return result

    return invoke


@pytest.fixture
def run_trained(run, data_dir, trained):
    shutil.copytree(trained, data_dir / "routing")
    return run


@pytest.fixture
def run_hand_made(run, data_dir):
    write_gate(data_dir / "routing")
    write_table(data_dir / "routing")
    return run


# train


@pytest.mark.engine
@pytest.mark.usefixtures("one_torch_thread")
def test_train_writes_the_artefacts_of_its_seed_and_reports_as_json(
    run, data_dir, own_prompts, trained
):
    report = json.loads(run("train", own_prompts, "--json").stdout)
    assert report.keys() == {
        "directory",
        "rows",
        "held_out_rows",
        "accuracy",
        "ece",
        "second_stage",
    }
    assert (report["directory"], report["rows"]) == (str(data_dir / "routing"), 192)
    assert (report["held_out_rows"], report["second_stage"]) == (48, None)
    assert report["accuracy"].keys() == {f"{name}{lang}" for name in SCORERS for lang in LANGUAGES}
    assert all(0.8 < value <= 1.0 for value in report["accuracy"].values())
    for name in (GATE_FILE, TABLE_FILE, TABLE_FACTS_FILE):
        assert (data_dir / "routing" / name).read_bytes() == (trained / name).read_bytes()


@pytest.mark.engine
@pytest.mark.usefixtures("one_torch_thread")
def test_train_shows_a_table_to_people_and_knows_what_was_not_held_out(run, tmp_path, data_dir):
    rows = [
        {"text": f"{word} {frame}", "label": label, "lang": "en", "split": "train"}
        for label, word in (("a", "bread"), ("b", "lease"))
        for frame in ("please", "now", "again", "today")
    ]
    shown = run("train", write_rows(tmp_path / "rows.jsonl", rows), "--seed", "7").stdout
    assert "accuracy on what was learned" in shown
    assert "held-out accuracy" not in shown
    assert "fallback table, 128 KiB" in shown
    assert "8 prompts, 0 of them held out" in shown
    assert load_gate(data_dir / "routing" / GATE_FILE).facts.seed == 7


@pytest.mark.engine
@pytest.mark.usefixtures("one_torch_thread")
def test_train_learns_domains_and_terms_from_a_file_of_experts(run, tmp_path, data_dir):
    rows = [
        {"text": text, "label": label, "lang": "en", "split": split}
        for label, text in (("a", "bread dough"), ("b", "rent lease"))
        for split in ("train", "test")
    ]
    experts = tmp_path / "experts.toml"
    experts.write_text('[[experts]]\nid = "c"\ndomain = "sea"\nterms_en = "keel; mast; rudder"\n')
    prompts = write_rows(tmp_path / "rows.jsonl", rows)
    assert "held-out accuracy" in run("train", prompts, "--experts", experts).stdout
    facts = load_gate(data_dir / "routing" / GATE_FILE).facts
    assert facts.labels == ("a", "b", "c")
    assert facts.domains == ("default", "default", "sea")


@pytest.mark.engine
@pytest.mark.usefixtures("one_torch_thread")
def test_train_names_file_and_line_of_a_bad_row_and_writes_nothing(run, tmp_path, data_dir):
    path = write_rows(tmp_path / "rows.jsonl", [{"text": "x"}])
    with pytest.raises(TrainingDataError, match=rf"^{path}:1: 'label' must be"):
        run("train", path)
    with pytest.raises(TrainingDataError, match="can't be read"):
        run("train", tmp_path / "nowhere.jsonl")
    assert not data_dir.exists()


# eval


@pytest.mark.engine
def test_eval_reports_the_test_rows_as_json(run_trained, own_prompts):
    report = json.loads(run_trained("eval", own_prompts, "--json").stdout)
    assert report.keys() == {"rows", "accuracy", "by_expert", "confusion", "ece", "flip_surface"}
    assert report["rows"] == 48
    assert report["by_expert"].keys() == {"baking", "cycling", "tenancy"}
    assert report["accuracy"].keys() == {f"{name}{lang}" for name in SCORERS for lang in LANGUAGES}


@pytest.mark.engine
@pytest.mark.parametrize(("split", "rows"), [("train", 144), ("test", 48), ("all", 192)])
def test_eval_takes_the_rows_of_a_split(run_trained, own_prompts, split, rows):
    done = run_trained("eval", own_prompts, "--split", split, "--json")
    assert json.loads(done.stdout)["rows"] == rows


def test_eval_shows_experts_and_confusions_to_people(run_hand_made, tmp_path):
    rows = [
        {"text": text, "label": label, "lang": "en", "split": "test"}
        for text, label in (*zip(SAMPLES, LABELS, strict=True), (SAMPLES[0], "garage"))
    ]
    shown = run_hand_made("eval", write_rows(tmp_path / "rows.jsonl", rows)).stdout
    assert "accuracy, split test" in shown
    assert "75.0%" in shown
    assert "1 × garage went to bakery" in shown
    assert "4 prompts; calibration error 0.250; 0.0% change expert" in shown


@pytest.mark.parametrize(("split", "exit_code"), [("val", 1), ("dev", 2), ("", 2)])
def test_eval_refuses_a_split_without_rows_and_one_that_is_none(
    run_hand_made, own_prompts, split, exit_code
):
    done = run_hand_made("eval", own_prompts, "--split", split, exit_code=exit_code)
    assert done.stdout == ""
    wanted = "no row has the split 'val'" if exit_code == 1 else "must be test, val, train or all"
    assert wanted in done.stderr


def test_eval_without_artefacts_is_an_error_not_a_figure(run, own_prompts, data_dir):
    with pytest.raises(ArtefactError, match="has no artefacts") as caught:
        run("eval", own_prompts, "--json")
    assert caught.value.path == str(data_dir / "routing")


# explain


def explained(run, *args):
    return json.loads(run("explain", *args, "--json").stdout)


def test_explain_shows_scores_and_reason_as_json(run_hand_made):
    found = explained(run_hand_made, SAMPLES[1])
    assert found.keys() == {"gate", "table", "expert", "source", "score", "reason"}
    assert (found["expert"], found["source"]) == ("garage", "blend")
    assert found["reason"] == "table 80% + gate 20%, request 1 of this caller"
    for name in ("gate", "table"):
        assert found[name].keys() == set(LABELS)
        assert sum(found[name].values()) == pytest.approx(1.0, abs=1e-5)
    blended = 0.8 * found["table"]["garage"] + 0.2 * found["gate"]["garage"]
    assert found["score"] == pytest.approx(blended)


def test_explain_follows_the_callers_history(run_hand_made):
    found = explained(run_hand_made, SAMPLES[1], "--requests", 50)
    assert (found["source"], found["reason"]) == ("gate", "gate alone, request 51 of this caller")
    run_hand_made("explain", "x", "--requests", "-1", exit_code=2)


def test_explain_says_when_it_does_not_know(run_hand_made):
    for text in ("", "zzz qqq"):
        found = explained(run_hand_made, text)
        assert (found["source"], found["score"]) == ("default", 0.0)
        assert found["reason"].startswith("default expert: ")


def test_explain_does_with_one_artefact(run, data_dir):
    write_table(data_dir / "routing")
    found = explained(run, SAMPLES[1])
    assert (found["gate"], found["expert"], found["source"]) == (None, "garage", "table")
    (data_dir / "routing" / TABLE_FILE).unlink()
    write_gate(data_dir / "routing")
    found = explained(run, SAMPLES[1])
    assert (found["table"], found["expert"], found["source"]) == (None, "garage", "gate")


def test_explain_shows_experts_best_first_to_people(run_hand_made):
    shown = run_hand_made("explain", SAMPLES[1]).stdout
    assert "garage: table 80% + gate 20%" in " ".join(shown.split())
    order = [line.split()[1] for line in shown.splitlines() if line.startswith("│")]
    assert order[0] == "garage"
    assert sorted(order) == sorted(LABELS)


def test_explain_without_artefacts_says_how_to_get_them(run, data_dir):
    with pytest.raises(ArtefactError, match=r"has no artefacts; run `expertgate engine train`"):
        run("explain", "x")


def test_the_one_entry_point_has_these_commands():
    found = CliRunner().invoke(build_cli(), ["engine", "--help"], env={"COLUMNS": "200"})
    assert found.exit_code == 0
    for name in ("train", "eval", "explain", "serve"):
        assert f" {name} " in found.stdout
