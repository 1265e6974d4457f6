"""A host's block directory, which the agent owns: ``<directory>/<stream>/<block id>.block``.

Receivers write their local copies there. Copies that the agent receives have the suffix ``.copy``: cached copies of blocks
that a task read from the WAL, and replicas of another host's blocks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from executor_agent.incoming_copy import IncomingCopy
from executor_agent.tidying import status_of, tidy_up, warn_once
from forebay.model.errors import OutOfSpaceError, StoreError, UsageError
from forebay.model.identifiers import check_name
from forebay.process.clock import Clock
from forebay.process.os_errors import failure
from forebay.process.secret_file import make_private_folder
from wal.blocks import BLOCK_SUFFIX, COPY_SUFFIX, cached_path, kept_free, local_files, local_path
from wal.blocks.set_aside import block_of, copies_set_aside
from wal.storage import open_storage

log = logging.getLogger(__name__)

#: minimum time between two counts of the directory
COUNT_SECONDS = 5.0

#: heartbeats name blocks older than this, because their receiver may have ended before it reported them
OLD_BLOCK_MS = 60_000
#: maximum number of them in a heartbeat
OLD_BLOCKS_MAX = 1_000

#: the same number twice: a wrong bit in one of them, or its end cut off, must not let the agent obey an older driver
_EPOCH_FILES = ("driver-epoch-copy", "driver-epoch")
_EPOCH_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the directory holds.

    ``blocks``, ``used_bytes``: block files, and bytes of all files. ``free_bytes``: what quota and filesystem still allow.
    ``short_bytes``: by how much the directory is over these limits. ``old_blocks``: some blocks older than ``OLD_BLOCK_MS``,
    as ``<stream>/<block id>``. ``copies``: received copies, named alike, the oldest first. ``damaged``: blocks with a damaged
    copy, which was set aside and is not served.
    """

    blocks: int
    used_bytes: int
    free_bytes: int
    old_blocks: tuple[str, ...] = ()
    short_bytes: int = 0
    copies: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


class BlockStore:
    """The blocks of one host. Thread-safe. Constructing does no I/O; :meth:`open` does.

    ``may_delete_copies``: the WAL holds the blocks of all received copies, so the oldest are deleted for lack of room. What a
    receiver wrote is deleted only by the driver's command, because only the driver knows what the WAL holds.
    """

    def __init__(
        self, directory: str | Path, *, quota_bytes: int, clock: Clock, may_delete_copies: bool = True
    ) -> None:
        self.directory = Path(directory).absolute()
        self._quota_bytes = quota_bytes
        self._clock = clock
        self.may_delete_copies = may_delete_copies
        self._lock = threading.RLock()
        self._usage: Usage | None = None
        self._counted_at = 0.0
        self._reserved_bytes = 0  # for copies that are being written
        self._named = 0  # index of the old block that the next count names first

    def open(self) -> list[str]:
        """Create the directory if it is missing, set damaged blocks aside, and delete what a crash left.

        A crash leaves old temporary files and empty blocks. Returns one line for each change, and for each file that cannot be
        examined, renamed or deleted. Raises UsageError if the directory cannot be created, written or listed until a person
        changes something; StoreError if a new attempt may succeed.
        """
        try:
            make_private_folder(self.directory)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise _unusable(f"cannot write to {self.directory}", error) from None
        try:
            return list(tidy_up(self.directory, self._clock.wall_ms()))
        except OSError as error:
            raise _unusable(f"cannot list {error.filename or self.directory}", error) from None

    def path(self, stream: str, block_id: str) -> Path:
        """Return the path of a receiver's local copy. Raises ValueError for a name that could lead out of the directory."""
        return local_path(self.directory, stream, block_id)

    def read(self, stream: str, block_id: str) -> int:
        """Return a descriptor of the block's file, which the caller closes. It stays readable if the block is deleted.

        Raises FileNotFoundError, ValueError as :meth:`path`, StoreError.
        """
        try:
            try:
                return os.open(self.path(stream, block_id), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return os.open(cached_path(self.directory, stream, block_id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"cannot open block {stream}/{block_id}: {error.strerror}") from None

    def delete(self, stream: str, block_id: str) -> bool:
        """Delete a block and every copy of it, also damaged ones. Return whether an undamaged one existed. Repeatable.

        Raises ValueError as :meth:`path`, StoreError.
        """
        deleted = self._delete(self.path(stream, block_id))
        deleted = self._delete(cached_path(self.directory, stream, block_id)) or deleted
        # the last name first: after a kill in between, the remaining names are still consecutive
        for path in reversed(list(copies_set_aside(self.directory, stream, block_id))):
            self._delete(path, blocks=0)
        return deleted

    def _delete(self, path: Path, blocks: int = 1) -> bool:
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"cannot delete {path}: {error.strerror}") from None
        self._changed(-blocks, -size)
        return True

    def _changed(self, blocks: int, size_bytes: int) -> None:
        with self._lock:
            if self._usage is not None:
                # not below 0: the count lacks blocks that receivers wrote since
                self._usage = replace(
                    self._usage,
                    blocks=max(0, self._usage.blocks + blocks),
                    used_bytes=max(0, self._usage.used_bytes + size_bytes),
                    free_bytes=max(0, self._usage.free_bytes - size_bytes),
                )

    def usage(self) -> Usage:
        """Return what the directory holds, counted at most every ``COUNT_SECONDS``. The agent's own changes are always in it.

        Raises StoreError.
        """
        now = self._clock.monotonic()
        with self._lock:
            if self._usage is None or now - self._counted_at >= COUNT_SECONDS:
                self._usage = self._count()
                self._counted_at = now
                stuck: set[str] = set()
                while victims := self._oldest(self._usage, self._usage.short_bytes, stuck)[0]:
                    failed = self._delete_copies(victims)
                    self._usage = self._count()
                    if not failed:  # the file system may report the freed space later
                        break
                    stuck |= failed
            return self._usage

    def _count(self) -> Usage:
        try:
            return self._counted()
        except OSError as error:
            raise StoreError(f"cannot count the blocks in {self.directory}: {error.strerror}") from None

    def _counted(self) -> Usage:
        blocks = used = 0
        old: list[str] = []
        damaged: set[str] = set()
        copies: list[tuple[int, str, int]] = []
        now_ms = self._clock.wall_ms()
        old_before_ns = (now_ms - OLD_BLOCK_MS) * 1_000_000
        for file in local_files(self.directory):
            if (status := status_of(file, now_ms)) is None:
                continue
            used += status.st_size
            name, suffix = os.path.splitext(file.name)
            set_aside_of = block_of(file.name)
            if suffix not in (BLOCK_SUFFIX, COPY_SUFFIX) and set_aside_of is None:
                continue
            name = f"{Path(file.path).parent.name}/{set_aside_of or name}"
            if set_aside_of is None:
                blocks += 1
            else:
                damaged.add(name)
            if suffix == COPY_SUFFIX:
                copies.append((status.st_mtime_ns, name, status.st_size))
            if status.st_mtime_ns < old_before_ns:
                old.append(name)
        first = self._named if self._named < len(old) else 0
        self._named = first + OLD_BLOCKS_MAX  # by turns: blocks that stay must not hide strays
        system = os.statvfs(self.directory)
        free_on_disk = system.f_bavail * system.f_frsize - kept_free(system.f_blocks * system.f_frsize)
        free = min(self._quota_bytes - used, free_on_disk)
        copies.sort()
        return Usage(
            blocks=blocks,
            used_bytes=used,
            free_bytes=max(0, free - self._reserved_bytes),
            old_blocks=tuple(old[first : first + OLD_BLOCKS_MAX]),
            short_bytes=max(0, -free),
            copies=tuple(copy[1] for copy in copies),
            damaged=tuple(sorted(damaged)),
        )

    # ---- copies that the agent receives ------------------------------------------------------------------------------

    def receive(self, stream: str, block_id: str, size_bytes: int) -> IncomingCopy:
        """Reserve room for a copy of ``size_bytes`` and return it, to be written. Closing it ends the reservation.

        Raises OutOfSpaceError, StoreError, ValueError as :meth:`path`.
        """
        path = cached_path(self.directory, stream, block_id)
        with self._lock:
            self._make_room(size_bytes)
            self._reserved_bytes += size_bytes
            self._changed(0, size_bytes)
        try:
            return IncomingCopy(path, stream=stream, block_id=block_id, size_bytes=size_bytes, closed=self._received)
        except BaseException:
            self._received(size_bytes, False)
            raise

    def _received(self, size_bytes: int, kept: bool) -> None:
        with self._lock:
            self._reserved_bytes -= size_bytes
            if kept:
                self._usage = None  # count anew, so that the next heartbeat reports the copy
            else:
                self._changed(0, -size_bytes)

    def _make_room(self, size_bytes: int) -> None:
        """Delete the oldest copies until ``size_bytes`` more have room. Copies that cannot be deleted stay.

        Raises OutOfSpaceError, without deleting any, if that is not enough.
        """
        stuck: set[str] = set()
        while True:
            usage = self.usage()
            victims, missing = self._oldest(usage, size_bytes - usage.free_bytes + usage.short_bytes, stuck)
            if missing > 0:
                raise OutOfSpaceError(
                    f"no room for a copy of {size_bytes} bytes in {self.directory}: {usage.used_bytes} bytes are used, "
                    f"{usage.free_bytes} are free (agent.quota is {self._quota_bytes})"
                )
            failed = self._delete_copies(victims)
            if not failed:
                return
            stuck |= failed

    def _oldest(self, usage: Usage, missing_bytes: int, stuck: Set[str]) -> tuple[list[str], int]:
        """Return the copies to delete for ``missing_bytes``, and how many bytes are missing then (0 or less: none).

        ``stuck``: copies that cannot be deleted. Raises StoreError.
        """
        victims: list[str] = []
        for name in usage.copies if self.may_delete_copies else ():
            if missing_bytes <= 0:
                break
            if name in stuck:
                continue
            try:
                missing_bytes -= cached_path(self.directory, *name.split("/")).stat().st_size
                victims.append(name)
            except FileNotFoundError:
                continue  # a task has replaced it
            except OSError as error:
                raise StoreError(f"cannot look at the copies in {self.directory}: {error.strerror}") from None
        return victims, missing_bytes

    def _delete_copies(self, names: Sequence[str]) -> set[str]:
        """Delete these copies. Return the names of those that cannot be deleted; the log has the reason."""
        failed: set[str] = set()
        for name in names:
            try:
                self._delete(cached_path(self.directory, *name.split("/")))
            except StoreError as error:
                warn_once(f"{error}; check this host's disk and the file's owner")
                failed.add(name)
        if names:
            self._usage = None
        return failed

    # ---- the newest driver -------------------------------------------------------------------------------------------

    def driver_epoch(self, stream: str) -> int:
        """Return the highest epoch of a driver of ``stream`` that this agent has seen; 0 if none.

        Two files have the number. If they differ, the higher one counts: the agent was killed between the two writes, an older
        release wrote one of them, or one is damaged. Raises UsageError if neither has a number, StoreError.
        """
        storage = open_storage(f"file://{self.directory}")
        found: dict[str, int | None] = {}
        for file in _EPOCH_FILES:
            name = f"{check_name('stream', stream)}/{file}"
            with contextlib.suppress(FileNotFoundError):
                found[name] = _epoch_in(storage.read(name))
        epochs = [epoch for epoch in found.values() if epoch is not None]
        if found and not epochs:
            raise UsageError(
                f"{' and '.join(str(self.directory / name) for name in found)} are damaged: they hold no number; "
                f"delete them when no older driver of {stream} can be running"
            )
        if len(set(found.values())) > 1:
            said = ", ".join(f"{self.directory / name}: {epoch or 'damaged'}" for name, epoch in found.items())
            log.warning(
                "the files with the highest epoch of a driver differ, and the agent uses %d: %s", max(epochs), said
            )
        return max(epochs, default=0)

    def keep_driver_epoch(self, stream: str, epoch: int) -> None:
        """Store ``epoch`` durably, so that this agent obeys no older driver after a restart (INV-4). Raises StoreError."""
        (self.directory / check_name("stream", stream)).mkdir(mode=0o700, exist_ok=True)
        storage = open_storage(f"file://{self.directory}")
        for file in _EPOCH_FILES:
            storage.replace(f"{stream}/{file}", b"%0*d" % (_EPOCH_DIGITS, epoch))


def _epoch_in(content: bytes) -> int | None:
    """Return the number in a file of an epoch; None if the file is damaged. An older release wrote it without zeros before it."""
    is_whole = len(content) == _EPOCH_DIGITS or (len(content) < _EPOCH_DIGITS and not content.startswith(b"0"))
    return int(content) if content.isdigit() and is_whole else None


def _unusable(what: str, error: OSError) -> UsageError | StoreError:
    """Return the error of an agent that cannot start, because the operating system refused the directory."""
    correct = "make it writable for this user, or set another directory"
    return failure(f"agent.blocks: {what}", error, correct, kind=UsageError)
