"""The storing side where there is a WAL: a sealed block becomes bytes, a local copy and a durable frame of the WAL, in parallel.

Three threads: one encodes, one writes the local copies, one writes the WAL. All blocks that were gathered when the WAL's
thread is free share one sync: what comes during a write is the next one.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path

import tenacity

from forebay.messages import ReplicaHost
from forebay.model.errors import FencedError, OutOfSpaceError, StoreError
from forebay.model.values import Block, timeline_of
from forebay.process.clock import Clock
from receiver.draft_store import RETRY_SECONDS_MAX, RETRY_SECONDS_MIN, DraftStore, Writing
from receiver.encoded_block import BlockWriting, EncodedBlock
from receiver.inputs import BlockStored, Fenced, Input, OutOfSpace, StoreAway, StoreFailed
from wal.blocks import LocalRoom, encode_meta, write_local
from wal.segments.frame import FrameKind
from wal.segments.layout import block_segment
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import Storage

_log = logging.getLogger("forebay.receiver")


def has_room(free_bytes: int | None, needed_bytes: int, reserve_bytes: int) -> bool:
    """Whether ``needed_bytes`` more leave the reserve free. ``free_bytes``: None where the store has no such limit."""
    return free_bytes is None or free_bytes - needed_bytes >= reserve_bytes


class BlockStore(DraftStore):
    """Stores drafts in the WAL, and a copy of each on this host. ``local_directory``: None for no local copies.

    Blocks leave ``reserve_bytes`` of the WAL's store free (0: none), for what frees a full one: they wait until there is more.
    """

    def __init__(
        self,
        writing: BlockWriting,
        storage: Storage,
        limits: SegmentLimits,
        local_directory: Path | None,
        local_quota_bytes: int,
        store_timeout_seconds: float,
        clock: Clock,
        tell: Callable[[Input], None],
        flush_seconds: float = 0.0,
        gather_bytes: int = 1,
        reserve_bytes: int = 0,
    ) -> None:
        super().__init__(writing, store_timeout_seconds, clock, tell, flush_seconds, gather_bytes)
        self._reserve_bytes = reserve_bytes
        self._opened_at = clock.monotonic()
        self._storage = storage
        self._limits = limits
        self._local_directory = local_directory
        self._room = LocalRoom(local_directory, local_quota_bytes) if local_directory is not None else None
        self._writer: LogWriter | None = None
        self._local_failure_told = False

    def open_epoch(self, epoch: int) -> None:
        """The blocks put from now on are written under ``epoch``: to segments of its own (INV-4)."""
        writing = self._writing
        self._writer = LogWriter(
            self._storage,
            lambda sequence: block_segment(writing.stream, writing.receiver_id, epoch, sequence),
            SegmentIdentity(writing.stream, writing.receiver_id, epoch, timeline_of(epoch)),
            self._limits,
            now=lambda: self._clock.wall_ms() / 1000,
            new_uid=lambda: random.SystemRandom().getrandbits(64),
            failpoints=True,
        )

    @property
    def counters(self) -> dict[str, int]:
        """What was asked of a remote WAL: requests by kind, bytes, and the seconds that this counts; else nothing."""
        requests = self._storage.requests
        if not requests:
            return {}
        seconds = max(1, round(self._clock.monotonic() - self._opened_at))
        return {**{f"wal_{name}": count for name, count in requests.items()}, "wal_seconds": seconds}

    def copy_to(self, second: ReplicaHost) -> None:
        """Every block is in the WAL: no second copies are wanted."""

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _copy(self, block: EncodedBlock) -> bool:
        """The local copy may be given up, never the WAL's: readers have other tiers."""
        if self._local_directory is None:
            return False
        try:
            write_local(self._local_directory, block.meta, block.payload, self._room)
        except (StoreError, OSError) as error:
            if not self._local_failure_told:
                _log.warning("local copies are given up for now: %s", error)
            self._local_failure_told = True
            return False
        self._local_failure_told = False
        return True

    # ---- the WAL -----------------------------------------------------------------------------------------------------

    def _store(self, blocks: list[Writing]) -> bool:
        """Writes ``blocks`` and makes them durable by one sync. False: it failed for good, and was told. Empties ``blocks``:
        the writer keeps what it needs, so that no payload is held twice while it is sent."""
        assert self._writer is not None, "a block was put before its epoch was opened"
        try:
            if not self._await_room(sum(item.block.payload.size for item in blocks)):
                return False
            pending = [
                self._writer.append(FrameKind.BLOCK, encode_meta(item.block.meta), item.block.payload)
                for item in blocks
            ]
            written = [(item.sequence, item.block.meta, item.local) for item in blocks]
            blocks.clear()
            if not self._sync():
                return False
        except FencedError as error:
            self._tell(Fenced(str(error)))
            return False
        except StoreError as error:
            self._tell(StoreFailed(f"the WAL failed for {self._timeout_seconds:g} s: {error}"))
            return False
        self._writer.sealed.clear()  # who cleans up finds segments by the handles of their blocks
        for (sequence, meta, copying), frame in zip(written, pending, strict=True):
            assert frame.handle is not None
            local = copying.result()  # both must have finished before the block is reported
            self._tell(BlockStored(sequence, Block(meta=meta, handle=frame.handle, local=local)))
        return True

    def _await_room(self, needed_bytes: int) -> bool:
        """Until the store has room for so much above its reserve. False: the process is ending."""
        while self._reserve_bytes and not self._closing.is_set():
            try:
                free = self._storage.free_bytes()
            except StoreError:
                return True  # writing will tell, and is tried again
            if has_room(free, needed_bytes, self._reserve_bytes):
                return True
            self._tell(
                OutOfSpace(
                    f"{self._storage.url}: {needed_bytes} bytes are to be written, {free} are free, of which "
                    f"{self._reserve_bytes} are reserved (wal.reserve)"
                )
            )
            self._closing.wait(RETRY_SECONDS_MAX)
        return not self._closing.is_set()

    def _sync(self) -> bool:
        """Until it is durable. Raises StoreError after ``store_timeout`` of failures; waits for space without a limit,
        because lack of space is not a failure (rule 7). False: the process is ending."""
        assert self._writer is not None
        attempts = tenacity.Retrying(
            stop=tenacity.stop_any(
                tenacity.stop_after_delay(self._timeout_seconds), tenacity.stop_when_event_set(self._closing)
            ),
            wait=tenacity.wait_exponential(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX, min=RETRY_SECONDS_MIN),
            retry=tenacity.retry_if_exception(
                lambda e: isinstance(e, StoreError) and not isinstance(e, OutOfSpaceError)
            ),
            before_sleep=lambda state: self._tell(StoreAway(_reason(state))),
            sleep=tenacity.sleep_using_event(self._closing),
            reraise=True,
        )
        while not self._closing.is_set():
            try:
                attempts(self._writer.sync)
                return True
            except OutOfSpaceError as error:  # noqa: PERF203 - waits a second in between
                self._tell(OutOfSpace(str(error)))
                self._closing.wait(RETRY_SECONDS_MAX)
        return False


def _reason(state: tenacity.RetryCallState) -> str:
    return str(state.outcome.exception()) if state.outcome is not None else ""
