"""Labelled prompts: read whole, or refused with file and line; and those that the package carries."""

import json
from collections import Counter

import pytest

from routing_engine.errors import TrainingDataError
from routing_engine.features import window_of
from routing_engine.training.dataset import (
    LabelledPrompt,
    domains_of,
    packaged_prompts,
    read_prompts,
)
from routing_engine.training.vocabulary import packaged_vocabulary, read_vocabulary
from tests.routing_engine.labelled_prompts import write_rows

ROW = {"text": "bake bread", "label": "baking", "lang": "en", "split": "train"}


def test_rows_are_read_as_written(tmp_path):
    path = write_rows(
        tmp_path / "rows.jsonl",
        [
            ROW,
            {**ROW, "text": "烤面包", "lang": "zh", "split": "test"},
            {**ROW, "split": "val", "domain": "home", "concept_ids": ["food:bread"]},
            {**ROW, "note": "members that nobody knows are left alone"},
        ],
    )
    assert read_prompts(path) == [
        LabelledPrompt("bake bread", "baking", "en", "train", "", ()),
        LabelledPrompt("烤面包", "baking", "zh", "test", "", ()),
        LabelledPrompt("bake bread", "baking", "en", "val", "home", ("food:bread",)),
        LabelledPrompt("bake bread", "baking", "en", "train", "", ()),
    ]


def test_blank_lines_are_skipped_but_counted(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"\n{json.dumps(ROW)}\n   \n{json.dumps(ROW)}\n\nrubbish\n", encoding="utf-8")
    with pytest.raises(TrainingDataError) as caught:
        read_prompts(path)
    assert caught.value.line == 6
    path.write_text(f"\n{json.dumps(ROW)}\n   \n{json.dumps(ROW)}", encoding="utf-8")
    assert len(read_prompts(path)) == 2


def test_an_empty_file_has_no_rows(tmp_path):
    assert read_prompts(write_rows(tmp_path / "rows.jsonl", [])) == []


def without(name):
    return {key: value for key, value in ROW.items() if key != name}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "isn't JSON: "),
        ("rubbish", "isn't JSON: "),
        ("[" * 100_000, "isn't JSON: "),
        ('{"text": "a"} {"text": "b"}', "isn't JSON: "),
        ('["bake bread", "baking"]', "isn't a JSON object"),
        ("null", "isn't a JSON object"),
        ('"text"', "isn't a JSON object"),
        *((without(name), f"'{name}' must be a non-empty string") for name in ROW),
        *(({**ROW, name: ""}, f"'{name}' must be a non-empty string") for name in ROW),
        *(({**ROW, name: 7}, f"'{name}' must be a non-empty string") for name in ROW),
        ({**ROW, "text": " \n\t"}, "'text' must be a non-empty string"),
        ({**ROW, "label": None}, "'label' must be a non-empty string"),
        ({**ROW, "split": "dev"}, "'split' must be one of test, train, val: 'dev'"),
        ({**ROW, "split": "Train"}, "'split' must be one of test, train, val: 'Train'"),
        ({**ROW, "concept_ids": "a"}, "'concept_ids' must be an array of strings"),
        ({**ROW, "concept_ids": [1]}, "'concept_ids' must be an array of strings"),
        ({**ROW, "concept_ids": None}, "'concept_ids' must be an array of strings"),
        ({**ROW, "domain": 3}, "'domain' must be a string"),
        ({**ROW, "domain": None}, "'domain' must be a string"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, line, reason):
    path = tmp_path / "rows.jsonl"
    bad = line if isinstance(line, str) else json.dumps(line)
    path.write_text(f"{json.dumps(ROW)}\n{bad}\n{json.dumps(ROW)}\n", encoding="utf-8")
    with pytest.raises(TrainingDataError) as caught:
        read_prompts(path)
    error = caught.value
    assert (error.path, error.line) == (str(path), 2)
    assert error.reason.startswith(reason)
    assert str(error) == f"{path}:2: {error.reason}"


@pytest.mark.parametrize("content", [b"\xff\xfe{}", json.dumps(ROW).encode("utf-16")])
def test_a_file_in_another_encoding_is_refused(tmp_path, content):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(TrainingDataError, match="can't be read"):
        read_prompts(path)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    for path in (tmp_path / "rows.jsonl", tmp_path):
        with pytest.raises(TrainingDataError, match="can't be read") as caught:
            read_prompts(path)
        assert (caught.value.path, caught.value.line) == (str(path), 0)


def test_a_labels_domain_is_what_its_rows_say():
    rows = [
        LabelledPrompt("a", "baking", "en", "train"),
        LabelledPrompt("b", "baking", "en", "train", "home"),
        LabelledPrompt("c", "baking", "en", "train"),
        LabelledPrompt("d", "tenancy", "en", "train"),
    ]
    assert domains_of(rows) == {"baking": "home", "tenancy": "default"}
    assert domains_of([]) == {}


def test_the_packaged_prompts_cover_many_experts_and_domains_in_two_languages():
    rows = read_prompts(packaged_prompts())
    domains = {**domains_of(rows), **read_vocabulary(packaged_vocabulary()).domains}
    labels = {row.label for row in rows}
    assert len(labels) >= 10
    assert len({domains[label] for label in labels}) >= 4
    counts = Counter((row.label, row.lang) for row in rows)
    for label in labels:
        languages = [lang for lang in ("en", "zh") if counts[label, lang] >= 30]
        assert languages == ["en", "zh"], label
    for split in ("train", "test"):
        assert {row.label for row in rows if row.split == split} == labels


def test_no_packaged_prompt_is_both_learned_from_and_tested_on():
    rows = read_prompts(packaged_prompts())
    learned = {window_of(row.text) for row in rows if row.split != "test"}
    assert [
        row.text for row in rows if row.split == "test" and window_of(row.text) in learned
    ] == []
    texts = Counter(row.text for row in rows)
    assert [text for text, count in texts.items() if count > 1] == []
