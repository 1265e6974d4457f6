"""Locks of processes that must run once on a machine, as ``forebay up`` of a stream: a second one starts nothing, and the command
that stops the first one finds it."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from forebay.model.errors import AlreadyRunningError, UsageError
from forebay.process.os_errors import failure
from forebay.process.secret_file import make_private_folder

#: a stream also runs without the lock, on a full disk or a file system without locks: the driver's lease protects it
_TOLERATED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOLCK, errno.EOPNOTSUPP})


#: the holder of a lock whose file names no process
_ANOTHER = "another process"


def lock_path(blocks: str | Path, stream: str) -> Path:
    """Return the path of the lock's file, in the machine's folder for blocks. The file is never deleted."""
    return Path(blocks) / f"up-{stream}.lock"


def broker_lock_path(data: Path) -> Path:
    """Return the path of the lock's file of the broker with the data in ``data``."""
    return data / "broker.lock"


@contextmanager
def only_one(blocks: str | Path, stream: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of ``forebay up`` while open. The kernel also releases it when the process dies.

    ``say``: called with a warning if the lock can't be taken for a reason that does not stop the stream. Raises
    AlreadyRunningError with the process that holds the lock, UsageError if the folder can't be written, StoreError if it may be
    at a new attempt.
    """
    path = lock_path(blocks, stream)

    def busy(process: str) -> str:
        end = "stop it first" if process == _ANOTHER else "`forebay down` stops it"
        return (
            f"`forebay up` of stream {stream!r} runs already on this machine: {process} holds {path}. Nothing was started; "
            f"`forebay status` shows its state; {end}"
        )

    with _held(path, "agent.blocks", busy, say):
        yield


@contextmanager
def only_broker(data: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of ``forebay broker`` in its folder ``data`` while open. Raises as :func:`only_one`."""
    path = broker_lock_path(data)

    def busy(process: str) -> str:
        return (
            f"{process} runs a broker with the data in {data} already; `forebay broker --stop --data {data}` stops it"
        )

    with _held(path, "--data", busy, say):
        yield


@contextmanager
def _held(path: Path, key: str, busy: Callable[[str], str], say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock in the file ``path``. ``key``: of its folder, for errors. ``busy``: says that a process holds it."""
    try:
        make_private_folder(path.parent)
        # os.open, whose descriptor the services do not inherit: they may outlive a killed `up` for a moment
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if error.errno not in _TOLERATED:
            raise failure(f"{key}: {path.parent} can't be written", error, kind=UsageError) from None
        say(f"{path} can't be created ({error.strerror}): a second process of this kind would not be refused")
        yield
        return
    try:
        _take(descriptor, path, key, busy, say)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path, key: str, busy: Callable[[str], str], say: Callable[[str], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        pid = _written_pid(descriptor)
        raise AlreadyRunningError(busy(f"process {pid}" if pid else _ANOTHER)) from None
    except OSError as error:
        if error.errno not in _TOLERATED:
            raise failure(f"{key}: {path} can't be locked", error, kind=UsageError) from None
        say(f"{path} can't be written or locked ({error.strerror}): a second process of this kind might not be refused")


def _written_pid(descriptor: int) -> int:
    """Return the process id in the lock's file; 0 if there is none."""
    written = os.pread(descriptor, 20, 0).strip()
    return int(written) if written.isdigit() else 0


class Holder(NamedTuple):
    """The process that holds a lock. ``descriptor``: refers to this process, even if its id is given to another one later."""

    pid: int
    descriptor: int

    def terminate(self) -> None:
        """Send SIGTERM; no error if the process has ended. Raises UsageError if it belongs to another user."""
        try:
            signal.pidfd_send_signal(self.descriptor, signal.SIGTERM)
        except ProcessLookupError:
            return
        except PermissionError:
            raise UsageError(f"process {self.pid} belongs to another user: stop it as that user or as root") from None

    def wait(self, seconds: float) -> bool:
        """Return whether the process has ended, after at most ``seconds``."""
        return bool(select.select([self.descriptor], [], [], seconds)[0])


@contextmanager
def holder(path: Path) -> Iterator[Holder | None]:
    """Yield the process that holds the lock in the file ``path``, or None if there is none.

    Raises UsageError if the lock is held, but not by the process that its file names: no other process may get a signal.
    """
    try:
        lock = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise failure(f"{path} can't be opened", error, kind=UsageError) from None
    try:
        pid = _written_pid(lock)
        # refers to the process that has this id now, which is then compared: a later one can't take its place
        process = _opened(pid)
        try:
            if process is not None and pid != os.getpid() and _has_open(pid, lock):
                yield Holder(pid, process)
            elif _is_held(lock):
                raise UsageError(
                    f"a process holds {path}, but process {pid or '?'}, which the file names, is not that process here, as in "
                    "another container: stop it where it runs"
                )
            else:
                yield None
        finally:
            if process is not None:
                os.close(process)
    finally:
        os.close(lock)


def _opened(pid: int) -> int | None:
    """Return a descriptor of process ``pid``, or None if there is no such process."""
    try:
        return os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError):
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # 0, which is none
            return None
        raise


def _is_held(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False


def _has_open(pid: int, lock: int) -> bool:
    """Return whether process ``pid`` has the lock's file open. Only the holder keeps it open."""
    wanted = os.fstat(lock)
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except PermissionError:
        raise UsageError(f"process {pid} belongs to another user: stop it as that user or as root") from None
    except OSError:  # it has ended
        return False
    for descriptor in descriptors:
        try:
            found = descriptor.stat()
        except OSError:  # closed in the meantime
            continue
        if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
    return False
