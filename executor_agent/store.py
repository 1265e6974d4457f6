"""A host's block directory: ``<directory>/<stream>/<block id>.block``. Receivers write there; the agent owns it. Beside them lie
copies that the agent was given (``.copy``): of blocks that a task read from the WAL, or whose second copy this host keeps."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from executor_agent.cached_copy import CachedCopy
from forebay.model.errors import OutOfSpaceError, StoreError, UsageError
from forebay.model.values import check_name
from forebay.process.clock import Clock
from forebay.process.secret_file import make_private_folder
from wal.blocks import (
    BLOCK_SUFFIX,
    COPY_SUFFIX,
    FREE_SHARE_MIN,
    TEMPORARY_SUFFIX,
    cached_path,
    local_files,
    local_path,
)
from wal.blocks.set_aside import block_of, copies_set_aside, set_aside
from wal.segments.frame import HEADER_LENGTH, aligned, parse_header
from wal.storage import open_storage

#: a temporary file younger than this may be one that a receiver is writing; it is renamed or removed within seconds
TEMPORARY_AGE_MS_MIN = 60_000
#: and older than this nobody writes it, though the agent has run all the while
TEMPORARY_AGE_MS_MAX = 10 * TEMPORARY_AGE_MS_MIN
#: how often the directory is counted anew
COUNT_SECONDS = 5.0

#: a block older than this is named to the driver, in case nobody will ever report it
OLD_BLOCK_MS = 60_000
#: how many of them at a time
OLD_BLOCKS_MAX = 1_000

_EPOCH_FILE = "driver-epoch"


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of all files that lie in the directory; ``free_bytes``: what the quota and the filesystem still allow;
    ``short_bytes``: by how much they are passed. ``old_blocks``: some blocks, as ``<stream>/<block id>``, that have lain there
    for ``OLD_BLOCK_MS``. ``copies``: those that the agent was given, named alike, the oldest first. ``damaged``: those of which
    a damaged copy was set aside, which nobody serves.
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

    ``gives_up_copies``: whether the WAL holds what the agent was given, so that it may go for lack of room, the oldest first.
    What a receiver wrote goes by the driver's word alone: only that one knows what the WAL holds.
    """

    def __init__(self, directory: str | Path, quota_bytes: int, clock: Clock, gives_up_copies: bool = True) -> None:
        self.directory = Path(directory).absolute()
        self._quota_bytes = quota_bytes
        self._clock = clock
        self.gives_up_copies = gives_up_copies
        self._lock = threading.RLock()
        self._usage: Usage | None = None
        self._counted_at = 0.0
        self._promised_bytes = 0  # of copies that are being written
        self._named = 0  # of the old blocks: so many were named since the first

    def open(self) -> list[str]:
        """Makes the directory if it is missing, sets damaged blocks aside, and drops what a crash left: old temporary files, and
        blocks without a byte.

        Returns what was done, one line each. Raises UsageError if the directory can't be made or written.
        """
        try:
            make_private_folder(self.directory)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
            return self._tidy_up()
        except OSError as error:
            raise UsageError(
                f"agent.blocks: {self.directory} can't be written: {error.strerror}; "
                "make it writable for this user, or name another directory"
            ) from None

    def _tidy_up(self) -> list[str]:
        done = []
        for file in local_files(self.directory):
            path = Path(file.path)
            with contextlib.suppress(FileNotFoundError):  # renamed or deleted meanwhile
                if path.suffix == TEMPORARY_SUFFIX:
                    age_ms = self._clock.wall_ms() - path.stat().st_mtime_ns // 1_000_000
                    if age_ms >= TEMPORARY_AGE_MS_MIN:
                        path.unlink()
                        done.append(f"dropped {path}: never finished")
                elif path.suffix in (BLOCK_SUFFIX, COPY_SUFFIX) and (reason := _damage(path)) is not None:
                    done.append(self._put_away(path, reason))
        return done

    def _put_away(self, path: Path, reason: str) -> str:
        if not path.stat().st_size:
            path.unlink()
            return f"dropped {path}: no byte is in it"
        return (
            f"set {path} aside as {set_aside(path).name}: {reason}. It may be the last copy: run `forebay recover` on this "
            "host"
        )

    def path(self, stream: str, block_id: str) -> Path:
        """Where that block lies, if a receiver wrote it here. Raises ValueError for a name that could lead elsewhere."""
        return local_path(self.directory, stream, block_id)

    def read(self, stream: str, block_id: str) -> int:
        """A descriptor of that block's file, for whoever closes it: what is deleted later can still be read from it.

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
            raise StoreError(f"block {stream}/{block_id} can't be opened: {error.strerror}") from None

    def delete(self, stream: str, block_id: str) -> bool:
        """Deletes a block and any copy of it, damaged ones too; whether a whole one was there. Can be repeated. Raises ValueError
        as :meth:`path`, StoreError."""
        deleted = self._delete(self.path(stream, block_id))
        deleted = self._delete(cached_path(self.directory, stream, block_id)) or deleted
        # the last name first: a kill in between leaves no name that a later one hides behind
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
            raise StoreError(f"{path} can't be deleted: {error.strerror}") from None
        self._changed(-blocks, -size)
        return True

    def _changed(self, blocks: int, size_bytes: int) -> None:
        with self._lock:
            if self._usage is not None:
                # not below 0: a block that a receiver wrote since the count is not in it
                self._usage = replace(
                    self._usage,
                    blocks=max(0, self._usage.blocks + blocks),
                    used_bytes=max(0, self._usage.used_bytes + size_bytes),
                    free_bytes=max(0, self._usage.free_bytes - size_bytes),
                )

    def usage(self) -> Usage:
        """How full the directory is: counted at most every ``COUNT_SECONDS``, changes of the agent's own in between added."""
        now = self._clock.monotonic()
        with self._lock:
            if self._usage is None or now - self._counted_at >= COUNT_SECONDS:
                self._usage = self._count()
                self._counted_at = now
                going, _ = self._oldest(self._usage, self._usage.short_bytes)
                if going:
                    self._give_up(going)
                    self._usage = self._count()
            return self._usage

    def _count(self) -> Usage:
        blocks = used = 0
        old: list[str] = []
        damaged: set[str] = set()
        copies: list[tuple[int, str, int]] = []
        now_ms = self._clock.wall_ms()
        old_before_ns = (now_ms - OLD_BLOCK_MS) * 1_000_000
        for file in local_files(self.directory):
            with contextlib.suppress(FileNotFoundError):
                status = file.stat(follow_symlinks=False)
                if (
                    file.name.endswith(TEMPORARY_SUFFIX)
                    and status.st_mtime_ns < (now_ms - TEMPORARY_AGE_MS_MAX) * 1_000_000
                ):
                    os.unlink(file.path)  # its writer was killed
                    continue
                used += status.st_size
                name, suffix = os.path.splitext(file.name)
                put_away = block_of(file.name)
                if suffix not in (BLOCK_SUFFIX, COPY_SUFFIX) and put_away is None:
                    continue
                name = f"{Path(file.path).parent.name}/{put_away or name}"
                if put_away is None:
                    blocks += 1
                else:
                    damaged.add(name)
                if suffix == COPY_SUFFIX:
                    copies.append((status.st_mtime_ns, name, status.st_size))
                if status.st_mtime_ns < old_before_ns:
                    old.append(name)
        first = self._named if self._named < len(old) else 0
        self._named = first + OLD_BLOCKS_MAX  # by turns: those that stay must not hide those that nobody needs
        system = os.statvfs(self.directory)
        spare = int((system.f_bavail - system.f_blocks * FREE_SHARE_MIN) * system.f_frsize)
        free = min(self._quota_bytes - used, spare)
        copies.sort()
        return Usage(
            blocks,
            used,
            max(0, free - self._promised_bytes),
            tuple(old[first : first + OLD_BLOCKS_MAX]),
            max(0, -free),
            tuple(copy[1] for copy in copies),
            tuple(sorted(damaged)),
        )

    # ---- copies that the agent is given ------------------------------------------------------------------------------

    def give(self, stream: str, block_id: str, size_bytes: int) -> CachedCopy:
        """A copy of that block is about to come, of ``size_bytes``: the room for it is kept until it is closed.

        Raises OutOfSpaceError, StoreError, ValueError as :meth:`path`.
        """
        path = cached_path(self.directory, stream, block_id)
        with self._lock:
            self._make_room(size_bytes)
            self._promised_bytes += size_bytes
            self._changed(0, size_bytes)
        try:
            return CachedCopy(path, stream, block_id, size_bytes, self._given)
        except BaseException:
            self._given(size_bytes, False)
            raise

    def _given(self, size_bytes: int, kept: bool) -> None:
        with self._lock:
            self._promised_bytes -= size_bytes
            if kept:
                self._usage = None  # counted anew: it is told of with the next heartbeat
            else:
                self._changed(0, -size_bytes)

    def _make_room(self, size_bytes: int) -> None:
        """Gives copies up until ``size_bytes`` more have room. Raises OutOfSpaceError, having given none up, if all of them are
        not enough."""
        usage = self.usage()
        going, missing = self._oldest(usage, size_bytes - usage.free_bytes + usage.short_bytes)
        if missing > 0:
            raise OutOfSpaceError(
                f"no room for a copy of {size_bytes} bytes: {usage.used_bytes} of {self._quota_bytes} bytes used, "
                f"{usage.free_bytes} may be written"
            )
        self._give_up(going)

    def _oldest(self, usage: Usage, missing_bytes: int) -> tuple[list[str], int]:
        """Copies that may be given up for ``missing_bytes``, and how many bytes are missing then (0 or less: none)."""
        going: list[str] = []
        for name in usage.copies if self.gives_up_copies else ():
            if missing_bytes <= 0:
                break
            with contextlib.suppress(FileNotFoundError):
                missing_bytes -= cached_path(self.directory, *name.split("/")).stat().st_size
                going.append(name)
        return going, missing_bytes

    def _give_up(self, names: Sequence[str]) -> None:
        for name in names:
            self._delete(cached_path(self.directory, *name.split("/")))
        if names:
            self._usage = None

    # ---- the newest driver -------------------------------------------------------------------------------------------

    def driver_epoch(self, stream: str) -> int:
        """The highest epoch of a driver of ``stream`` that was ever seen here; 0 if none. Raises UsageError."""
        storage = open_storage(f"file://{self.directory}")
        name = f"{check_name('stream', stream)}/{_EPOCH_FILE}"
        try:
            text = storage.read(name)
        except FileNotFoundError:
            return 0
        if not text.isdigit():
            raise UsageError(
                f"{self.directory / name} is damaged: delete it once no older driver of {stream} can be running"
            )
        return int(text)

    def keep_driver_epoch(self, stream: str, epoch: int) -> None:
        """``epoch`` is durable on return: no restart of this agent obeys an older driver (INV-4). Raises StoreError."""
        (self.directory / check_name("stream", stream)).mkdir(mode=0o700, exist_ok=True)
        open_storage(f"file://{self.directory}").replace(f"{stream}/{_EPOCH_FILE}", b"%d" % epoch)


def _damage(path: Path) -> str | None:
    """Why ``path`` can't be a whole block, by header and length alone: whoever reads it verifies its checksums."""
    with path.open("rb") as file:
        header = parse_header(file.read(HEADER_LENGTH))
        size = os.fstat(file.fileno()).st_size
    if isinstance(header, str):
        return header
    if aligned(header.length) != size:
        return f"{size} bytes, its header says {aligned(header.length)}"
    return None
