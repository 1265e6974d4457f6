"""The store of a stream without a WAL: each block is synced on this host's disk before it is reported (INV-1).

With ``receiver.copies = 2`` the block is also synced on a replica host, which the driver names. The agent of that host checks
and syncs the block before it answers. If no host takes the replica, the block waits without a limit; it is never reported with
only one copy. If the answer for a replica is lost, the replica may exist. No block handle names it, and the driver deletes it
as a stray copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.messages import ReplicaHost
from forebay.model.errors import ForebayError, OutOfSpaceError, StoreError
from forebay.model.values import Block, BlockMeta, Handle
from forebay.process.clock import Clock
from receiver.blocks.encoded_block import EncodedBlock, EncodingOptions
from receiver.inputs import BlockStored, Input, OutOfSpace, StoreAway, StoreFailed
from receiver.stores.replication import ReplicaSender, ReplicaTarget
from receiver.stores.store import RETRY_SECONDS_MAX, RETRY_SECONDS_MIN, BlockWrite, Store, StoreOptions
from wal.blocks import LocalRoom
from wal.blocks.local_writing import local_frame, write_local_frame
from wal.segments.frame import HEADER_LENGTH, parse_header

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger("forebay.receiver")

#: values of ``OutOfSpace.lacking``
LOCAL_SPACE = "space in this host's block directory"
REPLICA_HOST = "replica host"


def copy_handle(frame: Sequence[Buffer]) -> Handle:
    """Return the handle of a block without a WAL: length and checksum of ``frame``, no path."""
    header = parse_header(memoryview(frame[0])[:HEADER_LENGTH])
    assert not isinstance(header, str), header
    return Handle("", 0, header.length, header.payload_checksum)


class ReplicaStore(Store):
    """Stores blocks on this host, and a replica of each on another one unless ``sender`` is None.

    It waits for space and for a replica host without a limit (rule 7). It fails only when this host's disk fails for
    ``store_timeout``.
    """

    def __init__(
        self,
        encoding: EncodingOptions,
        options: StoreOptions,
        *,
        clock: Clock,
        tell: Callable[[Input], None],
        directory: Path,
        quota_bytes: int,
        sender: ReplicaSender | None = None,
    ) -> None:
        super().__init__(encoding, options, clock=clock, tell=tell)
        self._directory = directory
        self._room = LocalRoom(directory, quota_bytes)
        self._sender = sender
        self._target = ReplicaTarget(clock)

    def open_epoch(self, epoch: int) -> None:
        """Do nothing: the id of a block names its epoch."""

    def replicate_to(self, target: ReplicaHost) -> None:
        self._target.name(target)

    @property
    def replica_host(self) -> str:
        return self._target.host

    @property
    def refusing_hosts(self) -> tuple[str, ...]:
        return self._target.refusing

    def _close(self) -> None:
        if self._sender is not None:
            self._sender.close()

    # ---- storing -----------------------------------------------------------------------------------------------------

    def _copy(self, block: EncodedBlock) -> bool:
        """Write this host's copy. False: the disk failed for good, which is reported, or the process is ending."""
        return self._write(block.meta, local_frame(block.meta, block.payload))

    def _store(self, blocks: list[BlockWrite]) -> bool:
        for item in blocks:
            meta = item.block.meta
            frame = local_frame(meta, item.block.payload)
            others: tuple[str, ...] = ()
            if self._sender is not None:
                replica_host = self._send(self._sender, meta, frame)
                if not replica_host:
                    return False
                others = (replica_host,)
            if not item.local.result():
                return False
            self._tell(BlockStored(item.sequence, Block(meta, copy_handle(frame), True, others)))
        return True

    def _write(self, meta: BlockMeta, frame: Sequence[Buffer]) -> bool:
        """Write until the frame is synced on this host. False: as for :meth:`_copy`."""
        first_at = began = self._clock.monotonic()
        delay = RETRY_SECONDS_MIN
        while not self._closing.is_set():
            try:
                write_local_frame(self._directory, meta, frame, self._room, durable=True)
                self._synced(self._clock.monotonic() - first_at)
                return True
            except OutOfSpaceError as error:
                began = self._clock.monotonic()
                self._tell(OutOfSpace(str(error), LOCAL_SPACE))
                delay = RETRY_SECONDS_MAX
            except (StoreError, OSError) as error:
                if self._clock.monotonic() - began >= self._timeout_seconds:
                    self._tell(
                        StoreFailed(
                            f"the block directory failed for {self._timeout_seconds:g} s (receiver.store_timeout): {error}"
                        )
                    )
                    return False
                self._tell(StoreAway(str(error), "the block directory"))
            self._room.count_anew()  # nothing was written of the bytes that were reserved, and other processes free space
            self._closing.wait(delay)
            delay = min(2 * delay, RETRY_SECONDS_MAX)
        return False

    def _send(self, sender: ReplicaSender, meta: BlockMeta, frame: Sequence[Buffer]) -> str:
        """Send until a host has synced the replica; return that host. "": the process is ending."""
        while not self._closing.is_set():
            target = self._target.wait(RETRY_SECONDS_MAX)
            if target is None:
                reason = "the driver knows no other host whose agent is live and has room"
                self._tell(OutOfSpace(reason, REPLICA_HOST))
                continue
            try:
                sender.send(target, meta, frame)
            except ForebayError as error:
                self._target.refused(target)
                self._tell(OutOfSpace(f"host {target.host} did not take a replica: {error}", REPLICA_HOST))
                self._target.wait_for_another(target, RETRY_SECONDS_MAX, self._closing)
            else:
                self._target.accepted(target)
                return target.host
        return ""
