"""What every storing side of a receiver does: drafts become bytes, in order, in threads of its own; where these then lie is its
subclasses' business (``block_store``: the WAL; ``copy_store``: hosts' disks alone)."""

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
from receiver.block_draft import BlockDraft
from receiver.encoded_block import BlockWriting, EncodedBlock, encode
from receiver.inputs import Broken, Input

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger("forebay.receiver")

#: a step in hand when the store closes may take so long
CLOSE_SECONDS_MAX = 30.0
#: a block waits so long for the word that its topics' ids were checked, then goes without it
CHECK_SECONDS_MAX = 0.2
#: between two attempts to write
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Writing:
    """A block on its way: ``local`` tells whether the host keeps a copy."""

    sequence: int
    block: EncodedBlock
    local: Future[bool]


class Gathering:
    """Encoded blocks that wait for the WAL, in order: each is a second copy of its records, so :meth:`put` waits while
    ``bytes_max`` of them are here. From two threads, one that puts and one that takes."""

    def __init__(self, bytes_max: int, clock: Clock) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._blocks: list[Writing] = []
        self._size_bytes = 0
        self._ended = False
        self._changed = threading.Condition()

    def put(self, writing: Writing) -> None:
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

    def take(self, not_before: float) -> list[Writing]:
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


class DraftStore(ABC):
    """Stores drafts in order and tells what became of each, from threads of its own: one encodes, one writes local copies, one
    does the rest for all blocks that are gathered.

    ``tell`` gets BlockStored, OutOfSpace, StoreAway, StoreFailed, Fenced or Broken. Between the beginnings of two writes lie at
    least ``flush_seconds``, or ``gather_bytes``: what comes meanwhile is gathered and shares the next one, and nothing more is
    encoded once it is so much. Open (``with``) it before the first :meth:`put`; leaving waits for the step in hand, not for what
    is queued.
    """

    def __init__(
        self,
        writing: BlockWriting,
        store_timeout_seconds: float,
        clock: Clock,
        tell: Callable[[Input], None],
        flush_seconds: float = 0.0,
        gather_bytes: int = 1,
    ) -> None:
        self._flush_seconds = flush_seconds
        self._writing = writing
        self._timeout_seconds = store_timeout_seconds
        self._clock = clock
        self._tell = tell
        self._drafts: queue.SimpleQueue[BlockDraft | None] = queue.SimpleQueue()  # bounded by the machine's memory
        self._gathering = Gathering(gather_bytes, clock)
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
        """The blocks put from now on are written under ``epoch`` (INV-4)."""

    @abstractmethod
    def _copy(self, block: EncodedBlock) -> bool:
        """Writes the local copy, in its thread; whether there is one."""

    @abstractmethod
    def _store(self, blocks: list[Writing]) -> bool:
        """Stores all of ``blocks`` and tells of each. False: it failed for good, and was told, or the process is ending."""

    @property
    def counters(self) -> dict[str, int]:
        """For heartbeats."""
        return {}

    @property
    def replica_host(self) -> str:
        """Where second copies go; "": nowhere."""
        return ""

    @property
    def refusing_hosts(self) -> tuple[str, ...]:
        """That lately did not take a second copy."""
        return ()

    @abstractmethod
    def copy_to(self, second: ReplicaHost) -> None:
        """Second copies, if any are wanted, go there from now on."""

    @abstractmethod
    def _close(self) -> None:
        """Frees what it holds, when its threads have ended."""

    # ---- from any thread ---------------------------------------------------------------------------------------------

    def put(self, draft: BlockDraft) -> None:
        """Never waits: how much may be queued is the machine's business."""
        self._drafts.put(draft)

    def checked(self, sequences: Sequence[int]) -> None:
        """The topics' ids of these blocks were read after their last poll, and are those of the claims."""
        with self._check_came:
            self._checked.update(sequences)
            self._check_came.notify_all()

    def __enter__(self) -> Self:
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
        self._close()

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
                self._gathering.put(Writing(draft.sequence, block, local))
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

    def _write_all(self) -> None:
        not_before = 0.0
        while blocks := self._gathering.take(not_before):
            not_before = self._clock.monotonic() + self._flush_seconds
            if self._closing.is_set() or not self._store(blocks):
                return
