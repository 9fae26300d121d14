import subprocess
import sys
from pathlib import Path

import pytest

from billing import faults


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    faults.arm("")


def test_an_unarmed_point_does_nothing() -> None:
    faults.arm("other:kill")
    faults.fault_point("here")


def test_an_armed_point_fails_at_the_hit_it_is_told() -> None:
    faults.arm("here:error:2,there:error")
    faults.fault_point("here")
    with pytest.raises(OSError, match="fault here"):
        faults.fault_point("here")
    faults.fault_point("here")
    with pytest.raises(OSError, match="fault there"):
        faults.fault_point("there")


@pytest.mark.parametrize("text", ["here", "here:maim", "here:kill:x", ":"])
def test_unreadable_faults_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name:kill"):
        faults.arm(text)


def test_the_environment_can_kill_a_process() -> None:
    code = "from billing import faults as f; f.arm_from_environment(); f.fault_point('x'); print('alive')"
    for value, expected in (("x:kill", (-9, b"")), ("y:kill", (0, b"alive\n"))):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"EXPERTGATE_FAULT": value},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert (done.returncode, done.stdout) == expected
