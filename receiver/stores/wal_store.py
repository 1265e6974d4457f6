"""The store of a stream with a WAL: each block becomes a durable frame of the WAL and a local copy, in parallel.

All blocks that are gathered when the WAL's thread is free share one sync. Blocks that come during a write are in the next.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from forebay.messages import ReplicaHost
from forebay.model.errors import FencedError, OutOfSpaceError, StoreError
from forebay.model.identifiers import timeline_of
from forebay.model.values import Block
from forebay.process.clock import Clock
from receiver.blocks.encoded_block import EncodedBlock, EncodingOptions
from receiver.inputs import BlockStored, Fenced, Input, OutOfSpace, StoreAway, StoreFailed
from receiver.stores.optional_replicas import REPLICA_SECONDS_MAX, OptionalReplicas
from receiver.stores.store import RETRY_SECONDS_MAX, RETRY_SECONDS_MIN, BlockWrite, Store, StoreOptions
from wal.blocks import LocalRoom, encode_meta
from wal.blocks.local_writing import write_local
from wal.segments.frame import FrameKind
from wal.segments.layout import block_segment, timeline_marker
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import Storage

_log = logging.getLogger("forebay.receiver")


def has_room(free_bytes: int | None, needed_bytes: int, reserve_bytes: int) -> bool:
    """Return whether the reserve stays free after ``needed_bytes`` more. ``free_bytes``: None if the store has no limit."""
    return free_bytes is None or free_bytes - needed_bytes >= reserve_bytes


class WalStore(Store):
    """Stores blocks in the WAL, and a copy of each on this host if ``local_directory`` is not None.

    ``replicas``: sends a replica of each; None: there are no replicas.
    ``new_uid``: a random number of 64 bits for each segment.
    ``reserve_bytes``: space in the WAL's store that blocks leave free, because clean-up needs it to free a full store. 0 for
    none. Blocks wait until they fit above the reserve.
    ``check_timeline``: write a first block only if the store has the driver's marker of the epoch's timeline. Otherwise a WAL
    that is not mounted on this host would be created on another disk.
    """

    writer_type: type[LogWriter] = LogWriter

    def __init__(
        self,
        encoding: EncodingOptions,
        options: StoreOptions,
        *,
        clock: Clock,
        tell: Callable[[Input], None],
        storage: Storage,
        limits: SegmentLimits,
        reserve_bytes: int = 0,
        local_directory: Path | None = None,
        local_quota_bytes: int = 0,
        replicas: OptionalReplicas | None = None,
        new_uid: Callable[[], int] = lambda: random.SystemRandom().getrandbits(64),
        check_timeline: bool = True,
    ) -> None:
        super().__init__(encoding, options, clock=clock, tell=tell)
        self._check_timeline = check_timeline
        self._marker = ""  # of the timeline; looked for before the epoch's first write
        self._new_uid = new_uid
        self._reserve_bytes = reserve_bytes
        self._opened_at = clock.monotonic()
        self._storage = storage
        self._limits = limits
        self._local_directory = local_directory
        self._room = LocalRoom(local_directory, local_quota_bytes) if local_directory is not None else None
        self._replicas = replicas
        self._writer: LogWriter | None = None
        self._local_failure_logged = False

    def open_epoch(self, epoch: int) -> None:
        """Write all blocks that are put from now on under ``epoch``, to segments of its own (INV-4)."""
        encoding = self._encoding
        self._marker = timeline_marker(encoding.stream, timeline_of(epoch)) if self._check_timeline else ""
        self._writer = self.writer_type(
            self._storage,
            lambda sequence: block_segment(encoding.stream, encoding.receiver_id, epoch, sequence),
            identity=SegmentIdentity(encoding.stream, encoding.receiver_id, epoch, timeline_of(epoch)),
            limits=self._limits,
            now=lambda: self._clock.wall_ms() / 1000,
            new_uid=self._new_uid,
            failpoints=True,
        )

    @property
    def counters(self) -> dict[str, int]:
        """Return the requests to a remote WAL by kind, their bytes, and the seconds counted; {} for a local WAL."""
        requests = self._storage.requests
        if not requests:
            return {}
        seconds = max(1, round(self._clock.monotonic() - self._opened_at))
        return {**{f"wal_{name}": count for name, count in requests.items()}, "wal_seconds": seconds}

    def replicate_to(self, target: ReplicaHost) -> None:
        if self._replicas is not None:
            self._replicas.target.name(target)

    @property
    def replica_host(self) -> str:
        return self._replicas.target.host if self._replicas is not None else ""

    @property
    def refusing_hosts(self) -> tuple[str, ...]:
        return self._replicas.target.refusing if self._replicas is not None else ()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._replicas is not None:
            self._replicas.close()

    def _copy(self, block: EncodedBlock) -> bool:
        """A local copy is optional: readers have other tiers. The WAL's copy is not."""
        if self._local_directory is None:
            return False
        try:
            write_local(self._local_directory, block.meta, block.payload, self._room)
        except (StoreError, OSError) as error:
            if not self._local_failure_logged:
                _log.warning("cannot write a local copy, blocks are stored in the WAL alone for now: %s", error)
            self._local_failure_logged = True
            return False
        self._local_failure_logged = False
        return True

    # ---- the WAL -----------------------------------------------------------------------------------------------------

    def _store(self, blocks: list[BlockWrite]) -> bool:
        """Write ``blocks`` and make them durable by one sync. False: the WAL failed for good, which is reported.

        Empties ``blocks``: the writer keeps what it needs, so no payload is held twice while it is sent.
        """
        assert self._writer is not None, "a block was put before its epoch was opened"
        try:
            if self._marker and not self._succeeds(self._find_marker):
                return False
            if not self._await_room(sum(item.block.payload.length for item in blocks)):
                return False
            appended = [
                self._writer.append(FrameKind.BLOCK, encode_meta(item.block.meta), item.block.payload)
                for item in blocks
            ]
            written = [(item.sequence, item.block.meta, item.local, self._begin_replica(item.block)) for item in blocks]
            blocks.clear()
            if not self._sync():
                return False
        except FencedError as error:
            self._tell(Fenced(str(error)))
            return False
        except StoreError as error:
            self._tell(StoreFailed(f"the WAL failed for {self._timeout_seconds:g} s (receiver.store_timeout): {error}"))
            return False
        self._writer.sealed.clear()  # clean-up finds segments by the handles of their blocks
        until = self._clock.monotonic() + REPLICA_SECONDS_MAX
        for (sequence, meta, copying, sending), frame in zip(written, appended, strict=True):
            assert frame.handle is not None
            local = copying.result()  # both must have finished before the block is reported
            others = self._replicas.end(sending, until) if self._replicas is not None else ()
            self._tell(BlockStored(sequence, Block(meta=meta, handle=frame.handle, local=local, other_hosts=others)))
        return True

    def _begin_replica(self, block: EncodedBlock) -> Future[str] | None:
        return self._replicas.begin(block.meta, block.payload) if self._replicas is not None else None

    def _await_room(self, needed_bytes: int) -> bool:
        """Wait until the store has room for ``needed_bytes`` above its reserve. False: the process is ending."""
        while self._reserve_bytes and not self._closing.is_set():
            try:
                free = self._storage.free_bytes()
            except StoreError:
                return True  # the write reports the error and is retried
            if has_room(free, needed_bytes, self._reserve_bytes):
                return True
            self._tell(
                OutOfSpace(
                    f"{self._storage.url}: blocks need {needed_bytes} bytes, {free} are free, "
                    f"{self._reserve_bytes} of these are reserved (wal.reserve)"
                )
            )
            self._closing.wait(RETRY_SECONDS_MAX)
        return not self._closing.is_set()

    def _find_marker(self) -> None:
        """Raise StoreError unless the store is this stream's WAL. Once for an epoch."""
        marker = self._marker
        if not self._storage.exists(marker):
            raise StoreError(
                f"{self._storage.url} has no file {marker}, which the driver created in its WAL: the WAL is not mounted on "
                "this host, or wal.url here is not the driver's"
            )
        if self._marker == marker:  # no other epoch was opened meanwhile
            self._marker = ""

    def _sync(self) -> bool:
        """Sync until all is durable. False: the process is ending. Raises as :meth:`_succeeds`."""
        assert self._writer is not None
        began = self._clock.monotonic()
        if not self._succeeds(self._writer.sync):
            return False
        self._synced(self._clock.monotonic() - began)
        return True

    def _succeeds(self, request: Callable[[], object]) -> bool:
        """Repeat a request to the WAL until it succeeds. False: the process is ending.

        Lack of space is no failure: the request waits for space without a limit (rule 7). Raises StoreError when other failures
        last for ``store_timeout``.
        """
        failing_since = self._clock.monotonic()
        delay = RETRY_SECONDS_MIN
        while not self._closing.is_set():
            try:
                request()
            except OutOfSpaceError as error:
                self._tell(OutOfSpace(str(error)))
                self._closing.wait(RETRY_SECONDS_MAX)
                failing_since, delay = self._clock.monotonic(), RETRY_SECONDS_MIN
            except StoreError as error:
                if self._clock.monotonic() - failing_since >= self._timeout_seconds:
                    raise
                self._tell(StoreAway(str(error)))
                self._closing.wait(delay)
                delay = min(2 * delay, RETRY_SECONDS_MAX)
            else:
                return True
        return False
