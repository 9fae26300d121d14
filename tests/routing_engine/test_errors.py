"""The errors of routing: their tree as printed, their data, their one line for people."""

import inspect
import re

import pytest

from routing_engine import errors
from routing_engine.errors import (
    ArtefactError,
    EngineUnavailable,
    RoutingError,
    TrainingDataError,
    UnknownExpert,
)


def test_the_docstring_prints_the_tree_of_every_error():
    assert errors.__doc__ is not None
    printed = re.findall(r"^(?:[├└]── )?([A-Z]\w+)", errors.__doc__, re.MULTILINE)[1:]
    classes = inspect.getmembers(errors, inspect.isclass)
    assert sorted(printed) == sorted(name for name, _ in classes)
    assert all(issubclass(each, RoutingError) for _, each in classes)


@pytest.mark.parametrize(
    ("error", "data", "line"),
    [
        (
            UnknownExpert("pyton", ("python", "python-2")),
            {"expert_id": "pyton", "near": ("python", "python-2")},
            "no registered expert has the id 'pyton'; did you mean python or python-2?",
        ),
        (
            UnknownExpert("zzz"),
            {"expert_id": "zzz", "near": ()},
            "no registered expert has the id 'zzz'",
        ),
        (
            ArtefactError("a/table.bin", "has 3 bytes"),
            {"path": "a/table.bin", "reason": "has 3 bytes"},
            "a/table.bin: has 3 bytes",
        ),
        (
            TrainingDataError("rows.jsonl", 7, "isn't JSON"),
            {"path": "rows.jsonl", "line": 7, "reason": "isn't JSON"},
            "rows.jsonl:7: isn't JSON",
        ),
        (EngineUnavailable("late"), {}, "late"),
    ],
)
def test_errors_carry_their_data_and_say_one_line(error, data, line):
    assert {name: getattr(error, name) for name in data} == data
    assert str(error) == line
