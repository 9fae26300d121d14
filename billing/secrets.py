"""The pepper file: the secret half of every key digest, readable by its owner only.

Owns the file's creation and the refusal of a weak one. It is made once and never replaced silently: with
another pepper no stored digest matches any key.
"""

import os
import secrets
from pathlib import Path

from billing.errors import WeakPepper
from billing.keys import PEPPER_BYTES_MIN

PEPPER_BYTES = 64


def load_pepper(path: Path) -> bytes:
    """Return the pepper stored at `path`.

    Raises:
        WeakPepper: the file is missing, too short, or readable by others.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise WeakPepper(str(path), "others may read it; chmod 600 it")
        content = path.read_bytes()
    except FileNotFoundError:
        raise WeakPepper(str(path), "there is no pepper") from None
    except OSError as exc:
        raise WeakPepper(str(path), f"it can't be read ({exc.strerror})") from exc
    try:
        pepper = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        raise WeakPepper(str(path), "it isn't hexadecimal") from None
    if len(pepper) < PEPPER_BYTES_MIN:
        raise WeakPepper(str(path), f"it has {len(pepper)} bytes, fewer than {PEPPER_BYTES_MIN}")
    return pepper


def ensure_pepper(path: Path) -> bytes:
    """Return the pepper at `path`, made durable there first when there was no file.

    Raises:
        WeakPepper: a file is there, but isn't a usable pepper.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _create(path, secrets.token_bytes(PEPPER_BYTES))
    return load_pepper(path)


def _create(path: Path, pepper: bytes) -> None:
    # Written beside and linked into place: two starters agree on one pepper, and none sees half of it.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pepper.hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            return
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    finally:
        beside.unlink()
