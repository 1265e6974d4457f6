"""A host's block directory: ``<directory>/<stream>/<block id>.block``. Receivers write there; the agent owns it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from forebay.clock import Clock
from forebay.errors import StoreError, UsageError
from forebay.values import check_name
from wal.blocks import BLOCK_SUFFIX, FREE_SHARE_MIN, TEMPORARY_SUFFIX, local_files, local_path
from wal.frame import HEADER_LENGTH, aligned, parse_header
from wal.storage import open_storage

#: a temporary file younger than this may be one that a receiver is writing; it is renamed or removed within seconds
TEMPORARY_AGE_MS_MIN = 60_000
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
    ``old_blocks``: some blocks, as ``<stream>/<block id>``, that have lain there for ``OLD_BLOCK_MS``.
    """

    blocks: int
    used_bytes: int
    free_bytes: int
    old_blocks: tuple[str, ...] = ()


class BlockStore:
    """The blocks of one host. Thread-safe. Constructing does no I/O; :meth:`open` does."""

    def __init__(self, directory: str | Path, quota_bytes: int, clock: Clock) -> None:
        self.directory = Path(directory).absolute()
        self._quota_bytes = quota_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._usage: Usage | None = None
        self._counted_at = 0.0

    def open(self) -> list[str]:
        """Makes the directory if it is missing and drops what a crash left: torn blocks, old temporary files.

        Returns what was dropped, one line each. Raises UsageError if the directory can't be made or written.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
            return self._drop_torn()
        except OSError as error:
            raise UsageError(
                f"agent.blocks: {self.directory} can't be written: {error.strerror}; "
                "make it writable for this user, or name another directory"
            ) from None

    def _drop_torn(self) -> list[str]:
        dropped = []
        for file in local_files(self.directory):
            with contextlib.suppress(FileNotFoundError):  # renamed or deleted meanwhile
                reason = self._torn(Path(file.path))
                if reason is not None:
                    os.unlink(file.path)
                    dropped.append(f"{file.path}: {reason}")
        return dropped

    def _torn(self, path: Path) -> str | None:
        """Why ``path`` can't be a whole block, by header and length alone: whoever reads it verifies its checksums."""
        status = path.stat()
        if path.suffix == TEMPORARY_SUFFIX:
            age_ms = self._clock.wall_ms() - status.st_mtime_ns // 1_000_000
            return "never finished" if age_ms >= TEMPORARY_AGE_MS_MIN else None
        if path.suffix != BLOCK_SUFFIX:
            return None
        with path.open("rb") as file:
            header = parse_header(file.read(HEADER_LENGTH))
        if isinstance(header, str):
            return header
        if aligned(header.length) != status.st_size:
            return f"{status.st_size} bytes, its header says {aligned(header.length)}"
        return None

    def path(self, stream: str, block_id: str) -> Path:
        """Where that block lies, if it is here. Raises ValueError for a name that could lead elsewhere."""
        return local_path(self.directory, stream, block_id)

    def delete(self, stream: str, block_id: str) -> bool:
        """Deletes a block; whether it was there. Can be repeated. Raises ValueError as :meth:`path`, StoreError."""
        path = self.path(stream, block_id)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"{path} can't be deleted: {error.strerror}") from None
        with self._lock:
            if self._usage is not None:
                self._usage = replace(
                    self._usage,
                    blocks=self._usage.blocks - 1,
                    used_bytes=self._usage.used_bytes - size,
                    free_bytes=self._usage.free_bytes + size,
                )
        return True

    def usage(self) -> Usage:
        """How full the directory is: counted at most every ``COUNT_SECONDS``, deletions in between taken off."""
        now = self._clock.monotonic()
        with self._lock:
            if self._usage is None or now - self._counted_at >= COUNT_SECONDS:
                self._usage = self._count()
                self._counted_at = now
            return self._usage

    def _count(self) -> Usage:
        blocks = used = 0
        old: list[str] = []
        old_before_ns = (self._clock.wall_ms() - OLD_BLOCK_MS) * 1_000_000
        for file in local_files(self.directory):
            with contextlib.suppress(FileNotFoundError):
                status = file.stat(follow_symlinks=False)
                used += status.st_size
                if file.name.endswith(BLOCK_SUFFIX):
                    blocks += 1
                    if status.st_mtime_ns < old_before_ns and len(old) < OLD_BLOCKS_MAX:
                        old.append(f"{Path(file.path).parent.name}/{file.name.removesuffix(BLOCK_SUFFIX)}")
        system = os.statvfs(self.directory)
        spare = int((system.f_bavail - system.f_blocks * FREE_SHARE_MIN) * system.f_frsize)
        return Usage(blocks, used, max(0, min(self._quota_bytes - used, spare)), tuple(old))

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
