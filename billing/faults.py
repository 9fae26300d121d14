"""Named points at which a test may make this process die or fail; no-ops unless armed.

Owns the registry of one process. Nothing is read from the environment at import: assembly (or a test's
child process) calls `arm_from_environment` once. Production never does harm: an unarmed point costs one
comparison.
"""

import errno
import os
import signal
from dataclasses import dataclass

ENVIRONMENT_VARIABLE = "EXPERTGATE_FAULT"

ACTIONS = ("kill", "error")
"""`kill` sends this process SIGKILL; `error` raises an input/output error (EIO)."""


@dataclass(slots=True)
class _Armed:
    name: str
    action: str
    hits_left: int


_armed: list[_Armed] = []


def arm(specification: str) -> None:
    """Arm points from text like ``after_intent:kill`` or ``before_outcome_fsync:error:3`` (third hit).

    Several are separated by commas; an empty text disarms all.

    Raises:
        ValueError: the text is not of that form.
    """
    armed = []
    for part in filter(None, specification.split(",")):
        name, separator, rest = part.partition(":")
        action, _, hit = rest.partition(":")
        if not separator or action not in ACTIONS or not (hit or "1").isdecimal():
            raise ValueError(
                f"a fault is name:{'|'.join(ACTIONS)}[:hit], for example after_intent:kill: {part!r}"
            )
        armed.append(_Armed(name, action, int(hit or "1")))
    _armed[:] = armed


def arm_from_environment() -> None:
    """Arm what the environment variable `EXPERTGATE_FAULT` says; nothing when it is unset."""
    arm(os.environ.get(ENVIRONMENT_VARIABLE, ""))


def fault_point(name: str) -> None:
    """Do nothing, or what was armed for `name`.

    Raises:
        OSError: the action is `error` (EIO).
    """
    if _armed:
        _strike(name)


def _strike(name: str) -> None:
    for fault in _armed:
        if fault.name != name:
            continue
        fault.hits_left -= 1
        if fault.hits_left:
            continue
        if fault.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.EIO, f"fault {name}")
