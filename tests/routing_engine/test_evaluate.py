"""Evaluation counts what the gateway would serve: known scores in, known figures out."""

from dataclasses import replace

import numpy as np
import pytest

from routing_engine.errors import ArtefactError
from routing_engine.training.dataset import LabelledPrompt
from routing_engine.training.evaluate import Evaluation, evaluate
from tests.routing_engine.first_stage_files import (
    GATE_FACTS,
    LABELS,
    SAMPLES,
    TABLE_FACTS,
    gate_arrays,
    table_parts,
    write_gate,
    write_table,
)

BREAD, BRAKE, HELLO = SAMPLES


def prompt(text, label, lang="en"):
    return LabelledPrompt(text, label, lang, "test")


RIGHT = [prompt(text, label) for text, label in zip(SAMPLES, LABELS, strict=True)]


def test_artefacts_that_are_right_have_every_figure_right(tmp_path):
    write_gate(tmp_path)
    write_table(tmp_path)
    report = evaluate([*RIGHT, prompt(BREAD, "bakery", "zh")], tmp_path)
    scorers = ("blend", "gate", "table")
    assert report == Evaluation(
        rows=4,
        accuracy={f"{name}{lang}": 1.0 for name in scorers for lang in ("", "_en", "_zh")},
        by_expert=dict.fromkeys(LABELS, 1.0),
        confusion=[],
        ece=pytest.approx(0.0, abs=1e-3),
        flip_surface=0.0,
    )


def test_wrong_choices_are_counted_by_language_expert_and_pair(tmp_path):
    write_gate(tmp_path)
    write_table(tmp_path)
    wrong = [
        prompt(BREAD, "garage"),
        prompt(BREAD, "garage", "zh"),
        prompt(BRAKE, "bakery", "zh"),
        prompt(HELLO, "bakery"),
        prompt(HELLO, "garage"),
        prompt(BREAD, "garage"),
    ]
    report = evaluate([*RIGHT, *wrong], tmp_path)
    assert report.rows == 9
    for name in ("gate", "table", "blend"):
        assert report.accuracy[name] == pytest.approx(3 / 9)
        assert report.accuracy[f"{name}_en"] == pytest.approx(3 / 7)
        assert report.accuracy[f"{name}_zh"] == 0.0
    assert report.by_expert == {"bakery": 1 / 3, "garage": 1 / 5, "general": 1.0}
    assert report.confusion[0] == ("garage", "bakery", 3)
    assert sorted(report.confusion[1:]) == [
        ("bakery", "garage", 1),
        ("bakery", "general", 1),
        ("garage", "general", 1),
    ]


def test_an_abstention_counts_as_the_default_expert_that_would_answer(tmp_path):
    write_gate(tmp_path)
    rows = [prompt("zzz qqq", "general"), prompt("zzz qqq", "bakery"), prompt(BRAKE, "garage")]
    report = evaluate(rows, tmp_path)
    assert report.accuracy["blend"] == pytest.approx(2 / 3)
    assert report.confusion == [("bakery", "general", 1)]


def test_a_new_callers_blend_is_mostly_the_tables(tmp_path):
    write_gate(tmp_path)
    cells, scale, head, bias = table_parts()
    write_table(tmp_path, parts=(cells, scale, head[:, [1, 0, 2]], bias))
    report = evaluate(RIGHT[:2], tmp_path)
    assert (report.accuracy["gate"], report.accuracy["table"]) == (1.0, 0.0)
    assert report.accuracy["blend"] == 0.0


def test_only_the_ten_most_frequent_wrong_pairs_are_named(tmp_path):
    write_gate(tmp_path)
    rows = [prompt(BREAD, f"label-{n:02}") for n in range(12) for _ in range(n + 1)]
    report = evaluate([*rows, *RIGHT], tmp_path)
    assert report.confusion == [(f"label-{n:02}", "bakery", n + 1) for n in range(11, 1, -1)]


def test_the_calibration_error_is_the_gap_between_score_and_accuracy(tmp_path):
    arrays = gate_arrays()
    arrays["bag"] *= 0.0
    # Whatever is asked, the gate says bakery with 0.7.
    arrays["affinity_bias"] = np.log(np.array([0.7, 0.2, 0.1], dtype=np.float32))
    write_gate(tmp_path, **arrays)
    rows = [prompt(BREAD, "bakery"), prompt(BREAD, "garage"), prompt(BREAD, "general")]
    assert evaluate([rows[0], rows[0], *rows], tmp_path).ece == pytest.approx(0.7 - 3 / 5)
    assert evaluate(rows, tmp_path).ece == pytest.approx(0.7 - 1 / 3)


def test_a_choice_that_moves_with_capitals_would_be_noticed_but_none_does(tmp_path):
    write_gate(tmp_path)
    rows = [
        prompt("Bread, FLOUR; oven", "bakery"),
        prompt("  brake engine\ttyre?! ", "garage"),
        prompt("hello weather。", "general"),
        prompt("straße OVEN", "bakery"),
    ]
    assert evaluate(rows, tmp_path).flip_surface == 0.0


@pytest.mark.parametrize("missing", ["gate", "table"])
def test_a_missing_scorer_has_no_figures(tmp_path, missing):
    if missing == "gate":
        write_table(tmp_path)
    else:
        write_gate(tmp_path)
    present = "table" if missing == "gate" else "gate"
    report = evaluate(RIGHT, tmp_path)
    assert report.accuracy == dict.fromkeys((present, f"{present}_en", "blend", "blend_en"), 1.0)


def test_nothing_to_evaluate_is_no_result(tmp_path):
    with pytest.raises(ArtefactError, match="has no artefacts; run `expertgate engine train`"):
        evaluate(RIGHT, tmp_path / "nowhere")


def test_artefacts_of_other_labels_are_refused(tmp_path):
    write_gate(tmp_path)
    with pytest.raises(ArtefactError, match="knows none"):
        evaluate([prompt("a", "python"), prompt("b", "law")], tmp_path)


def test_gate_and_table_of_different_labels_are_both_counted(tmp_path):
    """A label that one of them lacks is wrong with that one only."""
    write_gate(tmp_path, replace(GATE_FACTS, labels=("bakery", "garage", "unheard")))
    write_table(tmp_path, TABLE_FACTS)
    report = evaluate(RIGHT, tmp_path)
    assert report.accuracy["gate"] == pytest.approx(2 / 3)
    assert report.accuracy["table"] == 1.0


def test_rows_are_shown_one_by_one_as_they_are_evaluated(tmp_path):
    write_gate(tmp_path)
    shown = []

    def progress(rows):
        for row in rows:
            shown.append(row)
            yield row

    evaluate(RIGHT, tmp_path, progress)
    assert shown == RIGHT
