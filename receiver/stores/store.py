"""The base of both stores: it encodes pending blocks in order, in threads of its own, and hands the bytes to a subclass.

``wal_store`` writes them to the WAL, ``replica_store`` to hosts' disks alone.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from forebay.messages import ReplicaHost
from forebay.process import failpoints
from forebay.process.clock import Clock
from receiver.blocks.encoded_block import EncodedBlock, EncodingOptions, encode
from receiver.blocks.pending_block import PendingBlock
from receiver.inputs import Input, ThreadFailure

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger("forebay.receiver")

#: how long a closing store waits for the write in progress
CLOSE_SECONDS_MAX = 30.0
#: how long a block waits until its topics' ids are checked; then it is written without that mark
CHECK_SECONDS_MAX = 0.2
#: delay between two attempts to write
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class BlockWrite:
    """An encoded block that is being stored. ``local``: whether this host keeps a copy, once that is known."""

    sequence: int
    block: EncodedBlock
    local: Future[bool]


class WriteQueue:
    """Encoded blocks that wait to be stored, in order. For two threads: one puts, one takes.

    Each encoded block holds its records a second time in memory. So :meth:`put` waits while the queue holds ``bytes_max``.
    """

    def __init__(self, bytes_max: int, clock: Clock) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._blocks: list[BlockWrite] = []
        self._size_bytes = 0
        self._ended = False
        self._changed = threading.Condition()

    def put(self, write: BlockWrite) -> None:
        """Add ``write`` when there is room. After :meth:`end` it returns immediately, and ``write`` is never taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._size_bytes < self._bytes_max)
            self._blocks.append(write)
            self._size_bytes += write.block.payload.length
            self._changed.notify_all()

    def end(self) -> None:
        """End the wait of both threads: every later :meth:`take` returns []."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def take(self, not_before: float) -> list[BlockWrite]:
        """Wait for a block, then until ``not_before`` or until the queue holds ``bytes_max``; return all blocks.

        ``not_before``: in seconds of the monotonic clock. Returns [] after :meth:`end`.
        """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store writes.

    ``timeout_seconds``: how long the store may fail before the receiver ends. ``flush_seconds``: minimum time between the
    starts of two writes; blocks that arrive in between share the next write. ``gather_bytes``: if this many bytes wait, a write
    starts earlier, and encoding pauses until it starts. ``synced``: called with the duration of each write that made blocks
    durable, in any thread; it must not block.
    """

    timeout_seconds: float
    flush_seconds: float = 0.0
    gather_bytes: int = 1
    synced: Callable[[float], None] = lambda seconds: None


class Store(ABC):
    """Stores pending blocks in order and reports the outcome of each.

    It has three threads: one encodes, one writes local copies, one stores all blocks that are gathered. ``tell`` gets
    BlockStored, OutOfSpace, StoreAway, StoreFailed, Fenced or ThreadFailure, from any of them. Open the store (``with``)
    before the first :meth:`put`. Closing it waits for the write in progress, not for the blocks that are queued.
    """

    def __init__(
        self, encoding: EncodingOptions, options: StoreOptions, *, clock: Clock, tell: Callable[[Input], None]
    ) -> None:
        self._encoding = encoding
        self._flush_seconds = options.flush_seconds
        self._timeout_seconds = options.timeout_seconds
        self._synced = options.synced
        self._clock = clock
        self._tell = tell
        self._pending: queue.SimpleQueue[PendingBlock | None] = queue.SimpleQueue()  # bounded by the machine's memory
        self._write_queue = WriteQueue(options.gather_bytes, clock)
        self._local = ThreadPoolExecutor(1, thread_name_prefix="store-local")
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(step,), name=f"store-{name}", daemon=True)
            for name, step in (("encode", self._encode_all), ("write", self._write_all))
        ]
        self._checked: set[int] = set()
        self._check_came = threading.Condition()

    # ---- what subclasses do ------------------------------------------------------------------------------------------

    @abstractmethod
    def open_epoch(self, epoch: int) -> None:
        """Write all blocks that are put from now on under ``epoch`` (INV-4)."""

    @abstractmethod
    def _copy(self, block: EncodedBlock) -> bool:
        """Write the local copy, in its own thread. Return whether there is one."""

    @abstractmethod
    def _store(self, blocks: list[BlockWrite]) -> bool:
        """Store all of ``blocks`` and report each. False: the store failed for good, which is reported, or the process ends."""

    @property
    def counters(self) -> dict[str, int]:
        """Return the store's counters for heartbeats."""
        return {}

    @property
    def replica_host(self) -> str:
        """The host that replicas are sent to; "" for none."""
        return ""

    @property
    def refusing_hosts(self) -> tuple[str, ...]:
        """The hosts that recently did not take a replica."""
        return ()

    @abstractmethod
    def replicate_to(self, target: ReplicaHost) -> None:
        """Send replicas, if any are wanted, to this host from now on."""

    @abstractmethod
    def _close(self) -> None:
        """Release resources. Called after the threads have ended."""

    # ---- from any thread ---------------------------------------------------------------------------------------------

    def put(self, pending: PendingBlock) -> None:
        """Queue a block and return. The queue has no limit of its own: the machine bounds the memory of records."""
        self._pending.put(pending)

    def checked(self, sequences: Sequence[int]) -> None:
        """Note that the topic ids of these blocks were read after their last poll and equal those of the claims."""
        with self._check_came:
            self._checked.update(sequences)
            self._check_came.notify_all()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._pending.put(None)
        self._write_queue.end()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS_MAX)
            if thread.is_alive():
                # A write that hangs can't be ended. Whatever it still writes does not count: it was never reported.
                _log.error("thread %s hangs in a write: the process exits without waiting for it", thread.name)
                os._exit(1)
        self._local.shutdown(wait=True, cancel_futures=True)
        self._close()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # without this thread nothing is stored, so the process ends
            _log.exception("a store thread failed")
            self._tell(ThreadFailure(f"a store thread failed: {error!r}"))

    # ---- encoding ----------------------------------------------------------------------------------------------------

    def _encode_all(self) -> None:
        try:
            while (pending := self._pending.get()) is not None and not self._closing.is_set():
                block = encode(pending, self._encoding, self._clock.wall_ms())
                if self._is_checked(pending):
                    block = replace(block, meta=msgspec.structs.replace(block.meta, checked=True))
                local = self._local.submit(self._copy, block)
                if failpoints.armed("receiver.after-local-write"):
                    local.result()
                    failpoints.hit("receiver.after-local-write")
                self._write_queue.put(BlockWrite(pending.sequence, block, local))
        finally:
            self._write_queue.end()

    def _is_checked(self, pending: PendingBlock) -> bool:
        """Return whether the topic ids of the block are checked, after a short wait.

        A block whose check takes longer is written without the mark, because brokers may be unavailable for long and memory is
        bounded. The wait delays no report, since a block is reported only after the check.
        """
        if not any(part.topic_id for part in pending.ranges):
            return False
        with self._check_came:
            known = self._check_came.wait_for(lambda: pending.sequence in self._checked, CHECK_SECONDS_MAX)
            self._checked = {sequence for sequence in self._checked if sequence > pending.sequence}
        return known

    def _write_all(self) -> None:
        not_before = 0.0
        while blocks := self._write_queue.take(not_before):
            not_before = self._clock.monotonic() + self._flush_seconds
            if self._closing.is_set() or not self._store(blocks):
                return
