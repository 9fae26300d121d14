"""Snapshots on disk: ``<n>.terms`` files beside a ``CURRENT`` file that names the one in force.

Every file appears whole or not at all: written beside, flushed to disk, renamed. Owns the folder's layout;
what is inside a snapshot is `snapshot`'s matter.
"""

import os
from pathlib import Path

from term_db.errors import CorruptSnapshot, UnknownVersion
from term_db.snapshot import Snapshot, deserialise, serialise
from term_db.types import DictionaryVersion

SNAPSHOT_BYTES_MAX = 1 << 30
"""Largest snapshot that is loaded; a million variants take about 0.2 GB."""

_CURRENT = "CURRENT"
_CURRENT_BYTES_MAX = 64


def current_path(folder: Path) -> Path:
    """The file that names the version in force."""
    return folder / _CURRENT


def snapshot_path(folder: Path, version: DictionaryVersion) -> Path:
    """The file of a published version."""
    return folder / f"{version}.terms"


def write_snapshot(folder: Path, snapshot: Snapshot) -> Path:
    """Stores `snapshot` durably in `folder`, which is made when missing, without putting it in force."""
    folder.mkdir(parents=True, exist_ok=True)
    path = snapshot_path(folder, snapshot.version)
    _replace(path, serialise(snapshot))
    return path


def read_snapshot(folder: Path, version: DictionaryVersion) -> Snapshot:
    """The stored snapshot of `version`.

    Raises:
        UnknownVersion: `folder` has no such file.
        CorruptSnapshot: the file is damaged, too large, or holds another version.
    """
    path = snapshot_path(folder, version)
    try:
        if path.stat().st_size > SNAPSHOT_BYTES_MAX:
            raise CorruptSnapshot(str(path), f"is larger than {SNAPSHOT_BYTES_MAX} bytes")
        data = path.read_bytes()
    except FileNotFoundError as exc:
        raise UnknownVersion(version) from exc
    except OSError as exc:
        raise CorruptSnapshot(str(path), f"can't be read: {exc.strerror}") from exc
    snapshot = deserialise(data, source=str(path))
    if snapshot.version != version:
        raise CorruptSnapshot(str(path), f"holds version {snapshot.version}")
    return snapshot


def put_in_force(folder: Path, version: DictionaryVersion) -> None:
    """Points ``CURRENT`` at `version`, in one step; gateways pick it up on their next look."""
    _replace(current_path(folder), f"{version}\n".encode())


def version_in_force(folder: Path) -> DictionaryVersion:
    """The version that ``CURRENT`` names; 0 when nothing was published.

    Raises:
        CorruptSnapshot: ``CURRENT`` doesn't hold a version number.
    """
    path = current_path(folder)
    try:
        with path.open("rb") as file:
            content = file.read(_CURRENT_BYTES_MAX)
    except FileNotFoundError:
        return DictionaryVersion(0)
    except OSError as exc:
        raise CorruptSnapshot(str(path), f"can't be read: {exc.strerror}") from exc
    text = content.decode("ascii", "replace").strip()
    if not text.isdecimal() or not text.isascii():
        raise CorruptSnapshot(str(path), "doesn't name a version")
    return DictionaryVersion(int(text))


def stored_versions(folder: Path) -> tuple[DictionaryVersion, ...]:
    """Versions whose files are in `folder`, ascending."""
    names = (path.stem for path in folder.glob("*.terms")) if folder.is_dir() else ()
    return tuple(sorted(DictionaryVersion(int(name)) for name in names if name.isdecimal()))


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
