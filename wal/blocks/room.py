"""Room for copies in a host's block directory: its files and their size, its quota, the free space of its filesystem."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from forebay.model.errors import OutOfSpaceError
from forebay.model.identifiers import is_name
from forebay.process.secret_file import make_private_folder

#: part of the filesystem that stays free, but no more than FREE_BYTES_MAX: a copy that would leave less is not written, since the
#: WAL may be on the same disk
FREE_SHARE = 0.05
FREE_BYTES_MAX = 10 * 2**30
#: copies after which a writer counts the directory again, since other processes write and delete there too
COPIES_PER_COUNT = 64


def kept_free(total_bytes: int) -> int:
    """Return how many bytes copies leave free on a filesystem of ``total_bytes``."""
    return min(int(total_bytes * FREE_SHARE), FREE_BYTES_MAX)


def has_room(size_bytes: int, used_bytes: int, quota_bytes: int, free_bytes: int, total_bytes: int) -> bool:
    """Return whether a copy of ``size_bytes`` fits.

    The directory has ``used_bytes`` of its quota; its filesystem has ``free_bytes`` of ``total_bytes`` free.
    """
    return used_bytes + size_bytes <= quota_bytes and free_bytes - size_bytes >= kept_free(total_bytes)


class LocalRoom:
    """One writer's estimate of the used space in its host's block directory: a running total, counted again every
    COPIES_PER_COUNT copies.

    Other receivers and the agent change the directory too. So the quota may be exceeded by what they write between two counts.
    The filesystem's free space is read for each copy.
    """

    def __init__(self, directory: str | Path, quota_bytes: int) -> None:
        self._directory = Path(directory)
        self._quota_bytes = quota_bytes
        self._used_bytes = 0
        self._copies_to_count = 0

    def count_anew(self) -> None:
        """Make the next :meth:`take` count the directory again. For a caller that waits for room."""
        self._copies_to_count = 0

    def take(self, size_bytes: int) -> None:
        """Reserve room for a copy of ``size_bytes``. Raises OutOfSpaceError if it does not fit."""
        if self._copies_to_count == 0:
            self._used_bytes = used_bytes(self._directory)
            self._copies_to_count = COPIES_PER_COUNT
        self._copies_to_count -= 1
        try:
            system = os.statvfs(self._directory)
        except FileNotFoundError:
            make_private_folder(self._directory)
            system = os.statvfs(self._directory)
        free, total = system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize
        if not has_room(size_bytes, self._used_bytes, self._quota_bytes, free, total):
            raise OutOfSpaceError(
                f"no room for a copy of {size_bytes} bytes in {self._directory}: "
                f"{self._used_bytes} of {self._quota_bytes} bytes used, {free} free on its filesystem"
            )
        self._used_bytes += size_bytes


def local_files(directory: str | Path) -> Iterator[os.DirEntry[str]]:
    """Yield every file in the folders of copies, whole or temporary; nothing if the directory does not exist.

    A folder whose name no stream can have, such as ``lost+found``, is not opened. Raises OSError if a folder cannot be listed.
    """
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as streams:
        for stream in streams:
            if is_name(stream.name) and stream.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError), os.scandir(stream.path) as files:
                    yield from filter(_is_file, files)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:  # the caller gets the error when it uses the file, and goes on with the others
        return True


def used_bytes(directory: str | Path) -> int:
    """Return the total bytes of all files in the folders of copies. Raises OSError if a folder cannot be listed."""
    total = 0
    for file in local_files(directory):
        with contextlib.suppress(OSError):  # deleted since it was listed, or its size cannot be read
            total += file.stat(follow_symlinks=False).st_size
    return total
