"""A store whose answers are faulty: rot, cuts, torn reads, old listings, outages, stalls, errors of any operation.

Faults change what the product sees. The files keep their bytes, so the invariants compare with what was stored, and a fault
ends as if another copy of the disk took its place.
"""

from __future__ import annotations

import errno
import os
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.model.errors import OutOfSpaceError, StoreError
from tests.simulation.shells import Stalled, can_pause, pause
from tests.support.stores.forgetful import ForgetfulStorage
from wal.segments import layout
from wal.storage import AppendFile, Paths

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

#: newest changes of names that an old listing may lack
OLD_CHANGES_MAX = 4
#: what the next operation may fail with: name → the error, and whether a put is carried out all the same
ERRORS: tuple[tuple[str, Callable[[str], Exception], str], ...] = (
    ("EIO", lambda url: StoreError(f"{url}: {os.strerror(errno.EIO)}"), "never"),
    ("EIO", lambda url: StoreError(f"{url}: no answer in time"), "now"),
    ("EIO", lambda url: StoreError(f"{url}: no answer in time"), "late"),
    ("EMFILE", lambda url: StoreError(f"{url}: {os.strerror(errno.EMFILE)}"), "never"),
    ("EDQUOT", lambda url: OutOfSpaceError(f"{url}: {os.strerror(errno.EDQUOT)}"), "never"),
    ("ENOMEM", lambda url: MemoryError(url), "never"),
)


@dataclass(frozen=True, slots=True)
class StallKind:
    """What happens to the requests of a stall.

    ``is_early``: a request is carried out when it is sent, else when the stall is over. ``fails``: it ends with an error, and
    unless it is early it is not carried out. ``lands_late``: but an object that it creates may be stored later.
    """

    is_early: bool
    fails: bool
    lands_late: bool = False


STALLS = (
    StallKind(is_early=False, fails=False),
    StallKind(is_early=True, fails=False),
    StallKind(is_early=False, fails=True),
    StallKind(is_early=True, fails=True),
    StallKind(is_early=False, fails=True, lands_late=True),
)


class _Stall(Stalled):
    """A time in which no request of a thread ends."""

    __slots__ = ("kind",)

    def __init__(self, kind: StallKind) -> None:
        super().__init__()
        self.kind = kind


class FaultyStorage(ForgetfulStorage):
    """``shown``: how often the product got another answer than it would have without a fault."""

    def __init__(self, url: str, pass_time: Callable[[float], None], appendable: bool = True) -> None:
        super().__init__(url, appendable=appendable)
        self.shown = 0
        self.is_away = False
        self.slow_seconds = 0.0
        self._stall: _Stall | None = None
        self._pass_time = pass_time
        self._rot: dict[str, tuple[str, int]] = {}  # path → "flip" or "cut", at which byte
        self.rotted: set[str] = set()  # all paths that ever had a fault
        self._torn: int | None = None  # the next read is torn here
        self._torn_path = ""  # of this file; "": of any
        self._next: tuple[Exception, str] | None = None
        self._changes: deque[tuple[str, bool]] = deque(maxlen=OLD_CHANGES_MAX)  # path, whether it was created
        self._lists_old = 0
        self._omits: int | None = None  # which segment the next listing of blocks lacks

    # ---- what the simulation does to it ------------------------------------------------------------------------------

    @property
    def is_faulty(self) -> bool:
        """Whether a fault acts until it is ended."""
        return self.is_away or bool(self._rot) or bool(self.slow_seconds)

    @property
    def is_stalled(self) -> bool:
        return self._stall is not None

    def stall(self, number: int) -> None:
        """From now on no request of a thread ends; ``STALLS[number]`` says what becomes of it."""
        self._stall = _Stall(STALLS[number])

    def end_stall(self) -> None:
        """Let the requests end, each when its thread goes on."""
        if self._stall is not None:
            self._stall.is_over, self._stall = True, None

    def is_rotten(self, path: str) -> bool:
        """Return whether a fault of this file acts now."""
        return path in self._rot

    def rotten(self) -> set[str]:
        """Return the files with a fault that acts now."""
        return set(self._rot)

    def rot(self, paths: list[str], seed: int, cuts: bool) -> None:
        """Flip a bit of one of ``paths``, or cut it, at any byte."""
        random = Random(seed)
        path = random.choice(paths)
        kind = random.choice(("flip", "cut")) if cuts else "flip"
        self.damage(path, kind, random.randrange(max(1, len(self.stored(path)))))

    def damage(self, path: str, kind: str, at: int) -> None:
        """Flip a bit of the byte ``at``, or cut the file there."""
        self._rot[path] = (kind, at)
        self.rotted.add(path)
        self.steps += 1

    def tear(self, at: int, path: str = "") -> None:
        """Make the next read of more bytes than ``at`` end there: of the file ``path``, or of any."""
        self._torn, self._torn_path = at, path

    def list_old(self, changes: int) -> None:
        """Make the next listing lack this many of the newest changes."""
        self._lists_old = changes

    def omit(self, which: int) -> None:
        """Make the next listing of segments of blocks lack one of them."""
        self._omits = which

    def fail_next(self, number: int) -> None:
        """Make the next operation of any kind fail by ``ERRORS[number]``."""
        _, error, lands = ERRORS[number]
        self._next = error(self.url), lands

    def heal(self) -> None:
        """End all faults."""
        self._rot.clear()
        self.end_outage()

    def end_outage(self) -> None:
        """End all faults except rot."""
        self.end_stall()
        self.is_away, self.slow_seconds, self._torn, self._next, self._lists_old = False, 0.0, None, None, 0
        self._omits = None

    # ---- Storage -----------------------------------------------------------------------------------------------------

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if self._stall is not None and can_pause():
            return self._stalled(self._stall, lambda: self.read(path, offset, length))
        data = super().read(path, offset, length)
        if path in self._rot:
            data = self._rotten(path, data, offset)
        if self._torn is not None and len(data) > self._torn and self._torn_path in ("", path):
            data, self._torn = data[: self._torn], None
            self.shown += 1
        return data

    def size(self, path: str) -> int:
        if self._stall is not None and can_pause():
            return self._stalled(self._stall, lambda: self.size(path))
        self._answer()
        size = super().size(path)
        kind, at = self._rot.get(path, ("", 0))
        if kind == "cut" and at < size:
            self.shown += 1
            return at
        return size

    def exists(self, path: str) -> bool:
        if self._stall is not None and can_pause():
            return self._stalled(self._stall, lambda: self.exists(path))
        self._answer()
        return super().exists(path)

    def list(self, prefix: str) -> Paths:
        if self._stall is not None and can_pause():
            return self._stalled(self._stall, lambda: self.list(prefix))
        self._answer()
        found = super().list(prefix)
        if self._lists_old:
            found = self._without_changes(prefix, found)
        if self._omits is not None and (omitted := _omissible(found)):
            path, self._omits = omitted[self._omits % len(omitted)], None
            found = [other for other in found if other != path]
        return found

    def _without_changes(self, prefix: str, found: Paths) -> Paths:
        changes, self._lists_old = list(self._changes)[-self._lists_old :], 0
        old = set(found)
        for path, created in reversed(changes):
            if path.startswith(f"{prefix}/"):
                (old.discard if created else old.add)(path)
        self.shown += old != set(found)
        return sorted(old)

    def create(self, path: str) -> AppendFile:
        if self._stall is not None and can_pause():
            return self._stalled(self._stall, lambda: self.create(path))
        file = super().create(path)
        self._changes.append((path, True))
        return file

    def put_new(self, path: str, data: Buffer) -> None:
        if self._stall is not None and can_pause():
            late = (path, data) if not self.appendable and self._stall.kind.lands_late else None
            return self._stalled(self._stall, lambda: self.put_new(path, data), late)
        is_new = path not in self._cached
        super().put_new(path, data)
        if is_new:
            self._changes.append((path, True))
        return None

    def replace(self, path: str, data: Buffer) -> None:
        if self._stall is not None and can_pause():
            return self._stalled(self._stall, lambda: self.replace(path, data))
        return super().replace(path, data)

    def delete(self, path: str) -> None:
        if self._stall is not None and can_pause():
            return self._stalled(self._stall, lambda: self.delete(path))
        there = path in self._cached
        super().delete(path)
        if there:
            self._changes.append((path, False))
        return None

    def _append(self, path: str, inode: Any, data: bytes) -> None:
        if self._stall is not None and can_pause():
            return self._stalled(self._stall, lambda: self._append(path, inode, data))
        return super()._append(path, inode, data)

    def _sync(self, inode: Any) -> None:
        if self._stall is not None and can_pause():
            return self._stalled(self._stall, lambda: self._sync(inode))
        return super()._sync(inode)

    # ---- inner parts -------------------------------------------------------------------------------------------------

    def _stalled(self, stall: _Stall, operation: Callable[[], T], late: tuple[str, Buffer] | None = None) -> T:
        """Let a thread wait until the stall is over, and end its request. ``late``: the object that may be stored later."""
        early = self._early(operation) if stall.kind.is_early else None
        pause(stall)
        if stall.kind.fails:
            if late is not None:
                self.send_late(late[0], bytes(late[1]))
            self.shown += 1
            raise StoreError(f"{self.url}: no answer in time")
        return early() if early is not None else operation()

    def _early(self, operation: Callable[[], T]) -> Callable[[], T]:
        """Carry a request out now, and return how it ends."""
        stall, self._stall = self._stall, None
        try:
            result = operation()
        except Exception as error:
            return partial(_raise, error)
        finally:
            self._stall = stall
        return lambda: result

    def _rotten(self, path: str, data: bytes, offset: int) -> bytes:
        kind, at = self._rot[path]
        if at >= offset + len(data) or (kind == "flip" and at < offset):
            return data
        self.shown += 1
        if kind == "cut":
            return data[: max(0, at - offset)]
        broken = bytearray(data)
        broken[at - offset] ^= 1 << at % 8
        return bytes(broken)

    def _answer(self) -> None:
        """Raise the error of an operation that :class:`ForgetfulStorage` lets fail in no other way."""
        error = self._drawn()
        if error is not None:
            raise error

    def _failure(self, operation: str) -> Exception | None:
        return self._drawn() or super()._failure(operation)

    def _drawn(self) -> Exception | None:
        """Return the error of an outage, or that of the next operation."""
        if self.is_away:
            self._lands = "never"
            error: Exception = StoreError(f"{self.url}: the store does not answer")
        elif self._next is not None:
            (error, self._lands), self._next = self._next, None
        else:
            return None
        self.shown += 1
        return error

    def _step(self) -> None:
        if self.slow_seconds:
            self._pass_time(self.slow_seconds)
        super()._step()


def _omissible(paths: Paths) -> list[str]:
    """Return the segments of blocks that a search finds by name: any but the first one of an epoch that has more of them."""
    segments = [path for path in paths if layout.parse_block(path) is not None]
    of_epoch = Counter(path.rpartition("/")[0] for path in segments)
    firsts = {path.rpartition("/")[0]: path for path in reversed(segments)}
    return [path for path in segments if of_epoch[folder := path.rpartition("/")[0]] == 1 or firsts[folder] != path]


def _raise(error: Exception) -> Any:
    raise error
