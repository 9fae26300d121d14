"""What `expertgate serve` refuses to start with is one line that names the file, not a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "expertgate.toml"


def serve(data_dir: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", "serve", "--config", str(EXAMPLE), "--port", "0"],
        env={**os.environ, "EXPERTGATE_DATA_DIR": str(data_dir)},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "damaged", ["routing/gate.safetensors", "routing/table.bin", "snapshots/CURRENT"]
)
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / damaged
    path.parent.mkdir()
    path.write_bytes(b"damaged")

    ended = serve(tmp_path)

    errors = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert ended.returncode == 1
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {path.parent}")
