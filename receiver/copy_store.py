"""The storing side where there is no WAL: a sealed block is synced on this host's disk, and with ``receiver.copies = 2`` on that
of a second one, before it is reported (INV-1).

The driver names the second host; the block goes there by its agent, which checks it and syncs it before it answers. Without one
that takes it the block waits, as it does for space: a copy fewer is never taken for enough. What was sent to a host and not
answered may lie there all the same; nobody names it, and the driver has it deleted as it does with any stray copy.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import urllib3

from forebay.http.connections import connections
from forebay.messages import ReplicaHost
from forebay.model.errors import ForebayError, OutOfSpaceError, StoreError
from forebay.model.values import Block, BlockMeta, Handle
from forebay.process.clock import Clock
from forebay.security.access import Access
from receiver.draft_store import RETRY_SECONDS_MAX, RETRY_SECONDS_MIN, DraftStore, Writing
from receiver.encoded_block import BlockWriting, EncodedBlock
from receiver.inputs import BlockStored, Input, OutOfSpace, StoreAway, StoreFailed
from wal.blocks import LocalRoom, local_frame, write_local_frame
from wal.blocks.sending import give_frame
from wal.segments.frame import HEADER_LENGTH, parse_header

_log = logging.getLogger("forebay.receiver")

#: what it tells that there is none of
LOCAL_SPACE = "space in this host's block directory"
REPLICA_HOST = "second host for copies"
#: a host that did not take a copy is told to the driver for so long, which may name another one
REFUSING_SECONDS = 60.0


class ReplicaStore(Protocol):
    """The agents of other hosts. From one thread."""

    def send(self, second: ReplicaHost, meta: BlockMeta, frame: bytes) -> None:
        """The copy is synced there on return. Can be repeated. Raises ForebayError: it may be there or not."""

    def close(self) -> None: ...


class AgentCopies:
    """Over HTTP. An agent has ``timeout_seconds`` to take a block."""

    def __init__(self, timeout_seconds: float, access: Access) -> None:
        self._timeout_seconds = timeout_seconds
        self._access = access
        self._pools: dict[str, urllib3.PoolManager] = {}  # by scheme

    def send(self, second: ReplicaHost, meta: BlockMeta, frame: bytes) -> None:
        scheme = urlsplit(second.url).scheme
        pool = self._pools.get(scheme)
        if pool is None:
            pool = self._pools[scheme] = connections(second.url, self._access)
        give_frame(
            pool,
            second.url,
            meta,
            [frame],
            timeout_seconds=self._timeout_seconds,
            durable=True,
            host=second.host,
            headers=self._access.headers(),
        )

    def close(self) -> None:
        for pool in self._pools.values():
            pool.clear()


def copy_handle(frame: list[bytes]) -> Handle:
    """In place of a place in the WAL: length and checksum of the copies' ``frame``."""
    header = parse_header(memoryview(frame[0])[:HEADER_LENGTH])
    assert not isinstance(header, str), header
    return Handle("", 0, header.length, header.payload_checksum)


class CopyStore(DraftStore):
    """``others``: None for copies on this host alone. ``tell`` gets StoreFailed only when this host's disk fails for
    ``store_timeout_seconds``: lack of space, and of a second host, is waited for without a limit (rule 7)."""

    def __init__(
        self,
        writing: BlockWriting,
        directory: Path,
        quota_bytes: int,
        others: ReplicaStore | None,
        store_timeout_seconds: float,
        clock: Clock,
        tell: Callable[[Input], None],
        gather_bytes: int = 1,
    ) -> None:
        super().__init__(writing, store_timeout_seconds, clock, tell, gather_bytes=gather_bytes)
        self._directory = directory
        self._room = LocalRoom(directory, quota_bytes)
        self._others = others
        self._second: ReplicaHost | None = None
        self._replica_stored = threading.Condition()
        self._refusing: dict[str, float] = {}  # host → until when the driver is told

    def open_epoch(self, epoch: int) -> None:
        """A block's id names its epoch: nothing has to be opened."""

    def copy_to(self, second: ReplicaHost) -> None:
        with self._replica_stored:
            self._second = second
            self._replica_stored.notify_all()

    @property
    def replica_host(self) -> str:
        return self._second.host if self._second is not None else ""

    @property
    def refusing_hosts(self) -> tuple[str, ...]:
        now = self._clock.monotonic()
        return tuple(sorted(host for host, until in self._refusing.copy().items() if now < until))

    def _close(self) -> None:
        if self._others is not None:
            self._others.close()

    # ---- storing -----------------------------------------------------------------------------------------------------

    def _copy(self, block: EncodedBlock) -> bool:
        """This host's copy: it is the first, or the only one. False: it failed for good, and was told, or the process ends."""
        return self._write(block.meta, local_frame(block.meta, block.payload))

    def _store(self, blocks: list[Writing]) -> bool:
        for item in blocks:
            meta = item.block.meta
            frame = local_frame(meta, item.block.payload)
            second = ""
            if self._others is not None:
                second = self._send(self._others, meta, b"".join(frame))
                if not second:
                    return False
            if not item.local.result():
                return False
            self._tell(BlockStored(item.sequence, Block(meta, copy_handle(frame), True, (second,) if second else ())))
        return True

    def _write(self, meta: BlockMeta, frame: list[bytes]) -> bool:
        """Until it is synced on this host. False: it failed for good, and was told, or the process is ending."""
        began = self._clock.monotonic()
        delay = RETRY_SECONDS_MIN
        while not self._closing.is_set():
            try:
                write_local_frame(self._directory, meta, frame, self._room, durable=True)
                return True
            except OutOfSpaceError as error:
                began = self._clock.monotonic()
                self._tell(OutOfSpace(str(error), LOCAL_SPACE))
                delay = RETRY_SECONDS_MAX
            except (StoreError, OSError) as error:
                if self._clock.monotonic() - began >= self._timeout_seconds:
                    self._tell(StoreFailed(f"the block directory failed for {self._timeout_seconds:g} s: {error}"))
                    return False
                self._tell(StoreAway(str(error), "the block directory"))
            self._room.count_anew()  # nothing was written for what was taken, and others free what they held
            self._closing.wait(delay)
            delay = min(2 * delay, RETRY_SECONDS_MAX)
        return False

    def _send(self, others: ReplicaStore, meta: BlockMeta, frame: bytes) -> str:
        """The host on which it is synced, at last; "": the process is ending."""
        while not self._closing.is_set():
            second = self._await_replica()
            if second is None:
                words = "the driver knows no other host whose agent is there and has room"
                self._tell(OutOfSpace(words, REPLICA_HOST))
                continue
            try:
                others.send(second, meta, frame)
            except ForebayError as error:
                self._refusing[second.host] = self._clock.monotonic() + REFUSING_SECONDS
                self._tell(OutOfSpace(f"host {second.host} takes none: {error}", REPLICA_HOST))
                self._await_another(second)
            else:
                self._refusing.pop(second.host, None)
                return second.host
        return ""

    def _await_replica(self) -> ReplicaHost | None:
        with self._replica_stored:
            self._replica_stored.wait_for(lambda: self._second is not None, RETRY_SECONDS_MAX)
            return self._second

    def _await_another(self, failed: ReplicaHost) -> None:
        """A while, or until another one is named."""
        with self._replica_stored:
            self._replica_stored.wait_for(lambda: self._second != failed or self._closing.is_set(), RETRY_SECONDS_MAX)
