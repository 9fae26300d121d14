"""The dictionary that a gateway serves: the snapshot in force, swapped when another one is published.

Reads the snapshots folder only; knows no database. A damaged snapshot never takes the place of a good one.
"""

from pathlib import Path

from term_db.errors import CorruptSnapshot, UnknownVersion
from term_db.snapshot import Snapshot, empty_snapshot
from term_db.snapshot_files import (
    current_path,
    read_snapshot,
    snapshot_path,
    version_in_force,
)

_Signature = tuple[int, int, int]


class Dictionary:
    """The published dictionary in `snapshots_dir`, as of the last `refresh`.

    `snapshot` is one reference to an immutable value: a request takes it once and keeps it, whatever is
    published meanwhile.

    Raises:
        CorruptSnapshot: the snapshot in force can't be loaded; there is no older one to serve.
    """

    def __init__(self, snapshots_dir: Path) -> None:
        self._folder = snapshots_dir
        self._snapshot = empty_snapshot()
        self._target: Path | None = None
        self._seen: tuple[_Signature | None, _Signature | None] | None = None
        self.refresh()

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot in force; an empty one of version 0 when nothing was published."""
        return self._snapshot

    def refresh(self) -> bool:
        """Looks whether another version was published and takes it; whether it did.

        Costs two `stat` calls when nothing happened; loading a large dictionary takes tens of
        milliseconds, so call it from a thread. A snapshot that can't be loaded is reported once, then
        again when its file or ``CURRENT`` changes.

        Raises:
            CorruptSnapshot: the new version can't be loaded; the one before is served on.
        """
        # The signatures are taken before the content is read: what changes in between is seen next time.
        current = _signature(current_path(self._folder))
        if (current, self._target_signature()) == self._seen:
            return False
        self._target, self._seen = None, (current, None)
        version = version_in_force(self._folder)
        self._target = None if version == 0 else snapshot_path(self._folder, version)
        self._seen = (current, self._target_signature())
        if version == self._snapshot.version:
            return False
        try:
            loaded = read_snapshot(self._folder, version) if version else empty_snapshot()
        except UnknownVersion as exc:
            raise CorruptSnapshot(
                str(current_path(self._folder)), f"names version {version}, which isn't there"
            ) from exc
        self._snapshot = loaded
        return True

    def _target_signature(self) -> _Signature | None:
        return None if self._target is None else _signature(self._target)


def _signature(path: Path) -> _Signature | None:
    """What changes when a file is put in the place of another; None when there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
