"""Leftovers in an agent's block directory: damaged copies are set aside at its start, temporary files of killed writers deleted.

One file that cannot be examined, renamed or deleted is named in the log, and does not stop the work on the others.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from wal.blocks import BLOCK_SUFFIX, COPY_SUFFIX, local_files
from wal.blocks.local_writing import TEMPORARY_SUFFIX
from wal.blocks.set_aside import set_aside
from wal.segments.frame import HEADER_LENGTH, aligned, parse_header

log = logging.getLogger(__name__)

#: a younger temporary file may be in use by a receiver, which renames or removes it within seconds
TEMPORARY_AGE_MS_MIN = 60_000
#: an older temporary file is never in use, even if the agent has been running since before it
TEMPORARY_AGE_MS_MAX = 10 * TEMPORARY_AGE_MS_MIN


def tidy_up(directory: Path, now_ms: int) -> Iterator[str]:
    """Set damaged blocks aside, delete old temporary files and empty blocks. Yield one line for each change or failure.

    A file that cannot be examined, renamed or deleted stays as it is. Its readers verify it, and have other copies. Raises
    OSError if a folder cannot be listed.
    """
    for file in local_files(directory):
        path = Path(file.path)
        try:
            if path.suffix == TEMPORARY_SUFFIX:
                if now_ms - path.stat().st_mtime_ns // 1_000_000 >= TEMPORARY_AGE_MS_MIN:
                    path.unlink()
                    yield f"deleted {path}: an unfinished temporary file"
            elif path.suffix in (BLOCK_SUFFIX, COPY_SUFFIX) and (reason := _damage(path)) is not None:
                yield _without(path, reason)
        except FileNotFoundError:
            continue  # renamed or deleted meanwhile
        except OSError as error:
            yield (
                f"cannot examine or delete {path}: {error.strerror}; it stays as it is, and its readers verify it; "
                "check this host's disk and the file's owner"
            )


def status_of(file: os.DirEntry[str], now_ms: int) -> os.stat_result | None:
    """Return the status of a file in the block directory; None if it does not exist, or has no readable status.

    An old temporary file, whose writer was killed, is deleted. If that fails, its status is returned, since it takes up room.
    """
    try:
        status = file.stat(follow_symlinks=False)
        if file.name.endswith(TEMPORARY_SUFFIX) and status.st_mtime_ns < (now_ms - TEMPORARY_AGE_MS_MAX) * 1_000_000:
            return status if not _unlinked(file.path) else None
        return status
    except FileNotFoundError:
        return None
    except OSError as error:
        warn_once(f"cannot read the status of {file.path}, so its bytes are not counted: {error.strerror}")
        return None


def _unlinked(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        warn_once(f"cannot delete {path}, an unfinished temporary file: {error.strerror}")
        return False
    return True


@functools.lru_cache(1_000)  # the directory is counted every few seconds
def warn_once(message: str) -> None:
    """Log a warning about a file, unless it was logged before."""
    log.warning("%s", message)


def _without(path: Path, reason: str) -> str:
    """Set the damaged copy ``path`` aside, or delete it if it is empty. Raises FileNotFoundError."""
    try:
        if not path.stat().st_size:
            path.unlink()
            return f"deleted {path}: it is empty"
        target = set_aside(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        return (
            f"{path} is damaged ({reason}) and cannot be set aside: {error.strerror}; it stays, and its readers refuse it; "
            "resolve the cause and restart this agent"
        )
    return (
        f"renamed {path} to {target.name}: {reason}; it may be the last copy of the block, so run "
        "`forebay recover` on this host"
    )


def _damage(path: Path) -> str | None:
    """Return why ``path`` is not a whole block, None if it may be one. Checks header and length; readers verify checksums."""
    with path.open("rb") as file:
        header = parse_header(file.read(HEADER_LENGTH))
        size = os.fstat(file.fileno()).st_size
    if isinstance(header, str):
        return header
    if aligned(header.length) != size:
        return f"the file has {size} bytes, its header says {aligned(header.length)}"
    return None
