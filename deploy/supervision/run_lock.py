"""The lock that one ``forebay up`` holds for a stream on a machine, so that a second one by mistake starts nothing."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay.model.errors import AlreadyRunningError, UsageError
from forebay.process.secret_file import make_private_folder

#: a full disk, and a file system without locks, do not keep a stream from running: the driver's lease protects it
_TOLERATED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOLCK, errno.EOPNOTSUPP})


def lock_path(blocks: str | Path, stream: str) -> Path:
    """The lock's file, in the machine's folder for blocks. It is never deleted."""
    return Path(blocks) / f"up-{stream}.lock"


@contextmanager
def only_one(blocks: str | Path, stream: str, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock while open. The kernel releases it with the process, however that ends.

    Raises AlreadyRunningError, which names the process that holds it, and UsageError if the folder can't be written.
    """
    path = lock_path(blocks, stream)
    try:
        make_private_folder(path.parent)
        # os.open: not inherited by the services, which a killed `up` could leave behind for a moment
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if error.errno not in _TOLERATED:
            raise UsageError(f"agent.blocks: {path.parent} can't be written: {error.strerror}") from None
        say(f"{path} can't be made ({error.strerror}): a second `forebay up` would not be noticed")
        yield
        return
    try:
        _take(descriptor, path, stream, say)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path, stream: str, say: Callable[[str], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        process, end = (
            (f"process {holder}", f"`kill {holder}` ends it") if holder else ("another process", "end it first")
        )
        raise AlreadyRunningError(
            f"`forebay up` of stream {stream!r} runs already on this machine: {process} holds {path}. Nothing was started; "
            f"`forebay status` shows how it is; {end}"
        ) from None
    except OSError as error:
        if error.errno not in _TOLERATED:
            raise UsageError(f"agent.blocks: {path} can't be locked: {error.strerror}") from None
        say(f"{path} can't be written or locked ({error.strerror}): a second `forebay up` might not be noticed")
