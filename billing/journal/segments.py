"""Segment files of the journal and the few disk operations everything durable goes through.

Owns file names and the `Disk` interface, which tests replace with one that fails, tears and forgets.
Does not know what is in a segment. A segment is preallocated so that what is in flight can still be
written when the file system is full.
"""

import contextlib
import fcntl
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SEGMENT_BYTES = 8 * 1024 * 1024
"""Preallocated size of a segment: some 7,000 requests, and small enough to read whole."""

SEGMENT_BYTES_MIN = 256 * 1024
"""A segment holds at least one frame of any size twice over, besides its reserve."""

_NAME = re.compile(r"(\d{12})\.segment")


def reserve_space(fd: int, size_bytes: int) -> None:
    """Make a file at least this long, with space on the disk behind it; what it holds stays."""
    if sys.platform == "darwin":
        # There is no posix_fallocate; only written zeros are sure to have space.
        offset = os.fstat(fd).st_size
        while offset < size_bytes:
            offset += os.pwrite(fd, bytes(min(size_bytes - offset, 1 << 20)), offset)
    else:
        os.posix_fallocate(fd, 0, size_bytes)


def sync_data(fd: int) -> None:
    """Return when a file's data is durable; its size is taken not to have changed."""
    if sys.platform == "darwin":
        # Only this empties the drive's own cache too.
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


class Disk(Protocol):
    """The disk operations of the journal; each raises OSError when it fails."""

    def list(self, directory: Path) -> Sequence[str]:
        """Return the names in a directory."""

    def create(self, path: Path, size_bytes: int) -> int:
        """Create a file of preallocated zeros, durably with its name, and return it open for writing.

        A file that could not be completed is removed again.
        """

    def write(self, fd: int, data: bytes, offset: int) -> int:
        """Write some of `data` at an offset and return how many bytes."""

    def sync(self, fd: int) -> None:
        """Return when what was written is durable."""

    def close(self, fd: int) -> None:
        """Close a file; it is not synced."""

    def read(self, path: Path, offset: int, size_bytes: int) -> bytes:
        """Return up to `size_bytes` bytes from an offset on; fewer at the end of the file."""

    def delete(self, path: Path) -> None:
        """Remove a file."""


class PosixDisk:
    """The real disk."""

    def list(self, directory: Path) -> Sequence[str]:
        """Return the names in a directory."""
        return os.listdir(directory)  # noqa: PTH208 - names are wanted, not paths

    def create(self, path: Path, size_bytes: int) -> int:
        """Create, preallocate and sync a file and its directory entry."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            reserve_space(fd, size_bytes)
            os.fsync(fd)
            _sync_directory(path.parent)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        return fd

    def write(self, fd: int, data: bytes, offset: int) -> int:
        """Write at an offset (pwrite)."""
        return os.pwrite(fd, data, offset)

    def sync(self, fd: int) -> None:
        """Sync data (fdatasync): the size doesn't change, so no metadata is needed."""
        sync_data(fd)

    def close(self, fd: int) -> None:
        """Close a file."""
        os.close(fd)

    def read(self, path: Path, offset: int, size_bytes: int) -> bytes:
        """Read at an offset."""
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(size_bytes)

    def delete(self, path: Path) -> None:
        """Remove a file; durable at the latest when the directory is synced for the next segment."""
        path.unlink()


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A segment file; segments of all directories of a journal are ordered by index."""

    index: int
    path: Path


def segment_path(directory: Path, index: int) -> Path:
    """Return the path of a segment."""
    return directory / f"{index:012d}.segment"


def list_segments(disk: Disk, directories: Iterable[Path]) -> list[Segment]:
    """Return the segments of a journal in order.

    Raises:
        OSError: a directory can't be read.
    """
    return sorted(
        Segment(int(match[1]), directory / name)
        for directory in directories
        for name in disk.list(directory)
        if (match := _NAME.fullmatch(name))
    )


def write_fully(disk: Disk, fd: int, data: bytes, offset: int) -> None:
    """Write all of `data`, continuing after short writes.

    Raises:
        OSError: a write failed or wrote nothing.
    """
    while data:
        written = disk.write(fd, data, offset)
        if written <= 0:
            raise OSError(f"nothing was written at byte {offset}")
        data, offset = data[written:], offset + written


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
