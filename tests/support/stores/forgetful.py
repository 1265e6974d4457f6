"""A store in memory that loses data that was not synced, as a host's page cache does when the power fails.

It keeps for each file and directory entry what is durable and what is only cached. :meth:`ForgetfulStorage.crash_host` drops the
cache, except parts that the caller's random numbers select. Deterministic, without threads.

Every operation is a series of small steps (write half of the bytes, write the rest, make the name durable, …), counted in
``steps``; ``crash_at_step`` raises :class:`Crash` just before one of them, so that a test can crash at each step.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from forebay.model.errors import OutOfSpaceError, StoreError
from wal.storage import AppendFile, Paths, check_path, not_appendable

if TYPE_CHECKING:
    from typing_extensions import Buffer


#: late puts kept; of more, the oldest are never carried out
LATE_MAX = 3


class Crash(BaseException):
    """The process ends here: not an Exception, so that nothing on the way handles it."""


@dataclass(slots=True)
class _Extent:
    data: bytes
    state: str  # durable | dirty | lost (a sync failed and marked it clean: never written, never again tried)


@dataclass(slots=True, eq=False)
class _Inode:
    extents: list[_Extent] = field(default_factory=list)

    @property
    def data(self) -> bytes:
        return b"".join(extent.data for extent in self.extents)

    @property
    def size(self) -> int:
        return sum(len(extent.data) for extent in self.extents)

    @property
    def durable_bytes(self) -> int:
        """How many bytes at the beginning no crash can take."""
        total = 0
        for extent in self.extents:
            if extent.state != "durable":
                break
            total += len(extent.data)
        return total

    def join(self) -> None:
        """Keep what is durable from the beginning on in one piece."""
        first = next((at for at, extent in enumerate(self.extents) if extent.state != "durable"), len(self.extents))
        if first > 1:
            self.extents[:first] = [_Extent(b"".join(extent.data for extent in self.extents[:first]), "durable")]


class ForgetfulStorage:
    """``capacity_bytes``: what fits in all files together; None: no limit.

    ``appendable=False``: a store of whole objects. What is there is durable, but a put that failed, or whose sender died,
    may have been carried out all the same, or be carried out later (``late``).
    """

    def __init__(
        self, url: str = "forgetful://test", capacity_bytes: int | None = None, appendable: bool = True
    ) -> None:
        self.url = url
        self.appendable = appendable
        #: puts under way whose sender no longer waits: path, data
        self.late: list[tuple[str, bytes]] = []
        self.capacity_bytes = capacity_bytes
        #: a path that the next listing of its folder omits
        self.omitted = ""
        self.steps = 0
        self.crash_at_step: int | None = None
        self.calls: Counter[str] = Counter()
        self._cached: dict[str, _Inode] = {}
        self._durable: dict[str, _Inode] = {}
        #: every path that was ever deleted
        self.deleted: set[str] = set()
        self._failures: dict[tuple[str, int], Exception] = {}
        self._lands = "never"  # what becomes of the next put that fails
        self._hosts = 0
        #: how often files changed by other means than a write: a crash of the host, a lost file
        self.damages = 0

    # ---- what a test does to it --------------------------------------------------------------------------------------

    @property
    def requests(self) -> dict[str, int]:
        return {}

    def fail(self, operation: str, nth: int, error: Exception | None = None, lands: str = "never") -> None:
        """The ``nth`` call from now of ``operation`` (create, append, sync, put_new, replace, read, delete) fails, by
        default with a StoreError. A failed append has written half of its bytes; the bytes of a failed sync are marked
        clean, stay readable, and are lost when the host crashes.

        On whole objects a ``sync`` is a ``put_new``; ``lands``: whether the put that fails is carried out all the same,
        ``never``, ``now`` or ``late`` (by :meth:`land`).
        """
        if operation == "sync" and not self.appendable:
            operation = "put_new"
        self._lands = lands
        self._failures[operation, self.calls[operation] + nth] = error or StoreError(f"{operation}: injected error")

    def send_late(self, path: str, data: bytes) -> None:
        """A put is under way, and its sender no longer waits."""
        self.late = [*self.late, (path, data)][-LATE_MAX:]

    def land(self, at: int) -> str:
        """The ``at``-th of the late puts is carried out, by the rule of all: only if the name is absent. The path that is there
        now; "" if it was before."""
        path, data = self.late.pop(at)
        self.steps += 1
        if path in self._cached:
            return ""
        self._cached[path] = self._durable[path] = _Inode([_Extent(data, "durable")])
        return path

    def forget(self, path: str) -> None:
        """Remove the file, as if the disk had lost it. A process that has it open writes into nothing."""
        self.steps += 1
        self.damages += 1
        self._cached.pop(path, None)
        self._durable.pop(path, None)

    def crash_process(self) -> None:
        """The process ends, the host lives: all that was written is still there to read, and is still not durable.
        Ends an armed ``crash_at_step``.
        """
        self.crash_at_step = None

    def crash_host(self, random: Random, zero_fill: bool = False) -> None:
        """The host loses its page cache. Of unsynced appends any prefix survives, which may end within one; of unsynced
        names and deletions any. With ``zero_fill`` a file may keep its length, with zeros for what is lost. Files that
        are open are of no use any more.
        """
        self.crash_at_step = None
        self._hosts += 1
        self.damages += 1
        names: dict[str, _Inode] = {}
        for path in sorted(self._cached.keys() | self._durable.keys()):
            cached, durable = self._cached.get(path), self._durable.get(path)
            inode = durable if cached is durable or random.random() < 0.5 else cached
            if inode is not None:
                names[path] = inode
        for inode in {id(inode): inode for inode in names.values()}.values():
            _forget(inode, random, zero_fill)
        self._cached, self._durable = dict(names), dict(names)

    def paths(self, prefix: str) -> list[str]:
        """Every path below ``prefix``, sorted: what :meth:`list` gives if nothing is omitted."""
        start = f"{check_path(prefix)}/" if prefix else ""
        return sorted(path for path in self._cached if path.startswith(start))

    def names(self) -> Iterable[str]:
        """Every path, in no order."""
        return self._cached

    def holds(self, path: str) -> bool:
        """Whether the file exists, for the tests' own checks."""
        return path in self._cached

    def has_any(self, prefix: str) -> bool:
        """Whether there is a file below ``prefix``."""
        start = f"{prefix}/"
        return any(path.startswith(start) for path in self._cached)

    def durable_bytes(self, path: str) -> int:
        """How many bytes at the beginning of the file no crash can take; 0 if even its name can go."""
        inode = self._durable.get(path)
        return 0 if inode is None or self._cached.get(path) is not inode else inode.durable_bytes

    def has_durable(self, prefix: str) -> bool:
        """Whether a file below ``prefix`` has bytes that no crash can take."""
        start = f"{prefix}/"
        return any(path.startswith(start) and self.durable_bytes(path) for path in self._durable)

    def durable_sizes(self, prefix: str) -> dict[str, int]:
        """:meth:`durable_bytes` of every file below ``prefix`` that has any, by path, sorted."""
        start = f"{prefix}/"
        cached = self._cached
        found = (
            (path, inode.durable_bytes)
            for path, inode in self._durable.items()
            if path.startswith(start) and cached.get(path) is inode
        )
        return dict(sorted(item for item in found if item[1]))

    def stored(self, path: str) -> bytes:
        """All bytes of the file, for the tests' own checks: no fault that was armed acts on this read."""
        return self._at(path).data

    # ---- Storage -----------------------------------------------------------------------------------------------------

    def create(self, path: str) -> AppendFile:
        if not self.appendable:
            raise not_appendable(self.url)
        self._begin("create")
        if check_path(path) in self._cached:
            raise _exists(path)
        inode = self._cached[path] = _Inode()
        self._step()
        self._durable[path] = inode
        self._step()
        return _ForgetfulFile(self, path, inode)

    def put_new(self, path: str, data: Buffer) -> None:
        failure = self._failure("put_new")
        if failure is not None:
            if self._lands != "never":
                self.send_late(check_path(path), bytes(data))
                if self._lands == "now":
                    self.land(len(self.late) - 1)
            raise failure
        self._step()
        if check_path(path) in self._cached:
            self._durable[path] = self._cached[path]  # the folder is synced also if another writer created it
            self._step()
            if self._cached[path].data == bytes(data):
                return
            raise _exists(path)
        self._put(path, data)

    def replace(self, path: str, data: Buffer) -> None:
        self._begin("replace")
        check_path(path)
        self._put(path, data)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self._begin("read")
        data = self._at(path).data
        return data[offset:] if length is None else data[offset : offset + length]

    def size(self, path: str) -> int:
        return self._at(path).size

    def exists(self, path: str) -> bool:
        return check_path(path) in self._cached

    def list(self, prefix: str) -> Paths:
        found = self.paths(prefix)
        if self.omitted in found:
            found.remove(self.omitted)
            self.omitted = ""
        return found

    def delete(self, path: str) -> None:
        self._begin("delete")
        self.deleted.add(path)
        self._cached.pop(check_path(path), None)
        self._step()
        self._durable.pop(path, None)
        self._step()

    def free_bytes(self) -> int | None:
        if self.capacity_bytes is None:
            return None
        inodes = {id(inode): inode for inode in self._cached.values()}
        return max(0, self.capacity_bytes - sum(inode.size for inode in inodes.values()))

    # ---- inner parts -------------------------------------------------------------------------------------------------

    def _put(self, path: str, data: Buffer) -> None:
        whole = bytes(data)
        free = self.free_bytes()
        if free is not None and len(whole) > free:
            raise OutOfSpaceError(f"{path}: no space left")
        if self.appendable:
            self._step()
            inode = self._cached[path] = _Inode([_Extent(whole, "durable")])
            self._step()
            self._durable[path] = inode
        else:
            try:
                self._step()
            except Crash:
                self.send_late(path, whole)
                raise
            self._cached[path] = self._durable[path] = _Inode([_Extent(whole, "durable")])
        self._step()

    def _append(self, path: str, inode: _Inode, data: bytes) -> None:
        failure = self._failure("append")
        free = self.free_bytes()
        if free is not None and len(data) > free:
            data, failure = data[:free], OutOfSpaceError(f"{path}: no space left")
        elif failure is not None:
            data = data[: len(data) // 2]
        self._step()
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            if part:
                inode.extents.append(_Extent(part, "dirty"))
                self._step()
        if failure is not None:
            raise failure

    def _sync(self, inode: _Inode) -> None:
        failure = self._failure("sync")
        self._step()
        for extent in inode.extents:
            if extent.state == "dirty":
                extent.state = "lost" if failure is not None else "durable"
        inode.join()
        if failure is not None:
            raise failure
        self._step()

    def _at(self, path: str) -> _Inode:
        try:
            return self._cached[check_path(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def _begin(self, operation: str) -> None:
        failure = self._failure(operation)
        if failure is not None:
            raise failure
        self._step()

    def _failure(self, operation: str) -> Exception | None:
        self.calls[operation] += 1
        return self._failures.pop((operation, self.calls[operation]), None)

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.crash_at_step:
            raise Crash(f"before step {self.steps}")


class _ForgetfulFile:
    def __init__(self, storage: ForgetfulStorage, path: str, inode: _Inode) -> None:
        self._storage = storage
        self._path = path
        self._inode = inode
        self._host = storage._hosts
        self._poisoned = False

    def append(self, data: Buffer) -> None:
        self._guarded(lambda: self._storage._append(self._path, self._inode, bytes(data)))

    def sync(self) -> None:
        self._guarded(lambda: self._storage._sync(self._inode))

    def close(self) -> None:
        self._poisoned = True

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._poisoned or self._host != self._storage._hosts:
            raise StoreError(f"{self._path}: closed, poisoned, or of a host that crashed")
        try:
            work()
        except BaseException:
            self._poisoned = True
            raise


def _forget(inode: _Inode, random: Random, zero_fill: bool) -> None:
    """Leaves what the disk holds: durable extents; of the dirty ones after the last durable one, a prefix."""
    last = max((at for at, extent in enumerate(inode.extents) if extent.state == "durable"), default=-1)
    kept = b"".join(e.data if e.state == "durable" else bytes(len(e.data)) for e in inode.extents[: last + 1])
    tail = b""
    for extent in inode.extents[last + 1 :]:
        if extent.state == "lost":
            break
        tail += extent.data
    survives = random.randrange(len(tail) + 1)
    zeros = bytes(len(tail) - survives) if zero_fill and random.random() < 0.5 else b""
    whole = kept + tail[:survives] + zeros
    inode.extents[:] = [_Extent(whole, "durable")] if whole else []


def _exists(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
