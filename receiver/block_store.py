"""The storing side: a sealed block becomes bytes, a local copy and a durable frame of the WAL, in parallel.

Three threads: one encodes, one writes the local copies, one writes the WAL. All blocks that were gathered when the WAL's
thread is free share one sync: what comes during a write is the next one.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import tenacity

from forebay import failpoints
from forebay.clock import Clock
from forebay.errors import FencedError, OutOfSpaceError, StoreError
from forebay.values import Block, lineage_of
from receiver.block_draft import BlockDraft
from receiver.encoded_block import BlockWriting, EncodedBlock, encode
from receiver.inputs import BlockStored, Broken, Fenced, Input, OutOfSpace, StoreAway, StoreFailed
from wal.blocks import LocalRoom, encode_meta, write_local
from wal.frame import FrameKind
from wal.layout import block_segment
from wal.storage import Storage
from wal.writer import LogWriter, SegmentIdentity, SegmentLimits

_log = logging.getLogger("forebay.receiver")

#: a step in hand when the store closes may take so long
CLOSE_SECONDS_MAX = 30.0
#: a block waits so long for the word that its topics' ids were checked, then goes without it
CHECK_SECONDS_MAX = 0.2
#: between two attempts to write
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 1.0


def has_room(free_bytes: int | None, needed_bytes: int, reserve_bytes: int) -> bool:
    """Whether ``needed_bytes`` more leave the reserve free. ``free_bytes``: None where the store has no such limit."""
    return free_bytes is None or free_bytes - needed_bytes >= reserve_bytes


@dataclass(frozen=True, slots=True)
class _Writing:
    """A block on its way: ``local`` tells whether the host keeps a copy."""

    sequence: int
    block: EncodedBlock
    local: Future[bool]


class _Gathering:
    """Encoded blocks that wait for the WAL, in order: each is a second copy of its records, so :meth:`put` waits while
    ``bytes_max`` of them are here. From two threads, one that puts and one that takes."""

    def __init__(self, bytes_max: int, clock: Clock) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._blocks: list[_Writing] = []
        self._size_bytes = 0
        self._ended = False
        self._changed = threading.Condition()

    def put(self, writing: _Writing) -> None:
        """After :meth:`end` without a wait, and in vain."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._size_bytes < self._bytes_max)
            self._blocks.append(writing)
            self._size_bytes += writing.block.payload.size
            self._changed.notify_all()

    def end(self) -> None:
        """Nothing is waited for any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def take(self, not_before: float) -> list[_Writing]:
        """All that is here at ``not_before`` (the clock's monotonic seconds), or once that is ``bytes_max``; at least one.
        [] after :meth:`end`."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._blocks)
            while not self._ended and self._size_bytes < self._bytes_max:
                left_seconds = not_before - self._clock.monotonic()
                if left_seconds <= 0:
                    break
                self._changed.wait(left_seconds)
            blocks, self._blocks, self._size_bytes = self._blocks, [], 0
            self._changed.notify_all()
            return [] if self._ended else blocks


class BlockStore:
    """Stores drafts in order and tells what became of each, from threads of its own.

    ``tell`` gets BlockStored, OutOfSpace, StoreAway, StoreFailed, Fenced or Broken. ``local_directory``: None for no local
    copies. Between the beginnings of two writes lie at least ``flush_seconds``, or ``gather_bytes``: what comes meanwhile is
    gathered and shares the next one, and nothing more is encoded once it is so much. Blocks leave ``reserve_bytes`` of the
    WAL's store free (0: none), for what frees a full one: they wait until there is more.
    Open (``with``) it before the first :meth:`put`; leaving waits for the step in hand, not for what is queued.
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
        self._flush_seconds = flush_seconds
        self._reserve_bytes = reserve_bytes
        self._opened_at = clock.monotonic()
        self._writing = writing
        self._storage = storage
        self._limits = limits
        self._local_directory = local_directory
        self._room = LocalRoom(local_directory, local_quota_bytes) if local_directory is not None else None
        self._timeout_seconds = store_timeout_seconds
        self._clock = clock
        self._tell = tell
        self._writer: LogWriter | None = None
        self._drafts: queue.SimpleQueue[BlockDraft | None] = queue.SimpleQueue()  # bounded by the machine's memory
        self._gathering = _Gathering(gather_bytes, clock)
        self._local = ThreadPoolExecutor(1, thread_name_prefix="store-local")
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(step,), name=f"store-{name}", daemon=True)
            for name, step in (("encode", self._encode_all), ("wal", self._write_all))
        ]
        self._local_failure_told = False
        self._checked: set[int] = set()
        self._check_came = threading.Condition()

    def open_epoch(self, epoch: int) -> None:
        """The blocks put from now on are written under ``epoch``: to segments of its own (INV-4)."""
        writing = self._writing
        self._writer = LogWriter(
            self._storage,
            lambda sequence: block_segment(writing.stream, writing.receiver_id, epoch, sequence),
            SegmentIdentity(writing.stream, writing.receiver_id, epoch, lineage_of(epoch)),
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

    def put(self, draft: BlockDraft) -> None:
        """Never waits: how much may be queued is the machine's business."""
        self._drafts.put(draft)

    def checked(self, sequences: Sequence[int]) -> None:
        """The topics' ids of these blocks were read after their last poll, and are those of the claims."""
        with self._check_came:
            self._checked.update(sequences)
            self._check_came.notify_all()

    def __enter__(self) -> BlockStore:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._drafts.put(None)
        self._gathering.end()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS_MAX)
            if thread.is_alive():
                # A write that hangs can't be ended, and nothing it still does counts: it was never reported.
                _log.error("%s hangs in a write: the process ends without waiting for it", thread.name)
                os._exit(1)
        self._local.shutdown(wait=True, cancel_futures=True)
        if self._writer is not None:
            self._writer.close()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # whatever it is, the process must not go on as if it stored
            _log.exception("the store broke")
            self._tell(Broken(f"the store broke: {error!r}"))

    # ---- encoding ----------------------------------------------------------------------------------------------------

    def _encode_all(self) -> None:
        try:
            while (draft := self._drafts.get()) is not None and not self._closing.is_set():
                block = encode(draft, self._writing, self._clock.wall_ms())
                if self._is_checked(draft):
                    block = replace(block, meta=msgspec.structs.replace(block.meta, checked=True))
                local = self._local.submit(self._copy, block)
                if failpoints.armed("receiver.after-local-write"):
                    local.result()
                    failpoints.hit("receiver.after-local-write")
                self._gathering.put(_Writing(draft.sequence, block, local))
        finally:
            self._gathering.end()

    def _is_checked(self, draft: BlockDraft) -> bool:
        """It is written all the same without that word: brokers may be gone for long, and memory is bounded. A block is
        reported only when its topics' ids were read, so what this waits for costs nothing but the overlap."""
        if not any(part.topic_id for part in draft.ranges):
            return False
        with self._check_came:
            known = self._check_came.wait_for(lambda: draft.sequence in self._checked, CHECK_SECONDS_MAX)
            self._checked = {sequence for sequence in self._checked if sequence > draft.sequence}
        return known

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

    def _write_all(self) -> None:
        not_before = 0.0
        while blocks := self._gathering.take(not_before):
            not_before = self._clock.monotonic() + self._flush_seconds
            if self._closing.is_set() or not self._store(blocks):
                return

    def _store(self, blocks: list[_Writing]) -> bool:
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
