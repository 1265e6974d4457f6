"""The lock that a ``forebay up`` holds for its stream on a machine, so that a second one by mistake starts nothing."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay.model.errors import AlreadyRunningError, UsageError
from forebay.process.secret_file import make_private_folder

#: a stream also runs without the lock, on a full disk or a file system without locks: the driver's lease protects it
_TOLERATED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOLCK, errno.EOPNOTSUPP})


def lock_path(blocks: str | Path, stream: str) -> Path:
    """Return the path of the lock's file, in the machine's folder for blocks. The file is never deleted."""
    return Path(blocks) / f"up-{stream}.lock"


@contextmanager
def only_one(blocks: str | Path, stream: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock while open. The kernel also releases it when the process dies.

    ``say``: called with a warning if the lock can't be taken for a reason that does not stop the stream. Raises
    AlreadyRunningError with the process that holds the lock, UsageError if the folder can't be written.
    """
    path = lock_path(blocks, stream)
    try:
        make_private_folder(path.parent)
        # os.open, whose descriptor the services do not inherit: they may outlive a killed `up` for a moment
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if error.errno not in _TOLERATED:
            raise UsageError(f"agent.blocks: {path.parent} can't be written: {error.strerror}") from None
        say(f"{path} can't be created ({error.strerror}): a second `forebay up` would not be refused")
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
            (f"process {holder}", f"`kill {holder}` stops it") if holder else ("another process", "stop it first")
        )
        raise AlreadyRunningError(
            f"`forebay up` of stream {stream!r} runs already on this machine: {process} holds {path}. Nothing was started; "
            f"`forebay status` shows its state; {end}"
        ) from None
    except OSError as error:
        if error.errno not in _TOLERATED:
            raise UsageError(f"agent.blocks: {path} can't be locked: {error.strerror}") from None
        say(f"{path} can't be written or locked ({error.strerror}): a second `forebay up` might not be refused")
