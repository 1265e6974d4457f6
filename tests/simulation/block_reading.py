"""How the jobs and queries of a simulated driver read blocks: from the WAL or its hosts, and from Kafka if these fail."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from driver.journal.files import newest_claim
from forebay.kafka.consume.block_ranges import Wanted
from forebay.model.errors import CorruptionError, NewerVersionError, RangeNotHeldError, StoreError, UnreadableBlockError
from forebay.model.values import Block
from tests.simulation.decoded import Row, rows_of
from wal.blocks import StoredBlock, block_of_frame
from wal.segments.scan import read_frame

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess

#: what a reader gets from a store with a fault
DAMAGED = (CorruptionError, NewerVersionError, FileNotFoundError, StoreError, MemoryError)


class BlockReading:
    """Reads blocks for one driver process. ``wal_is_away``: whether the next read finds no block in the WAL."""

    def __init__(self, driver: DriverProcess) -> None:
        self._driver = driver
        self._world = driver.world
        self.wal_is_away = False

    def read_retrying(self, block: Block) -> Generator[str, Any, list[str]]:
        """Read from the WAL, or from Kafka if the WAL does not answer, or not rightly. If neither answers, retry."""
        while True:
            yield "read"
            if not self.wal_is_away:
                shown = self._world.wal.shown
                try:
                    return self.read(block)
                except DAMAGED:
                    if self._world.wal.shown != shown:
                        self._world.reached["damage noticed"] += 1
                    elif not self.is_superseded():  # else a newer driver or a recovery may have deleted the segment
                        raise
                except UnreadableBlockError:
                    if not any(self._world.hosts[host].is_damaged(block.id) for host in block.hosts):
                        raise
            with contextlib.suppress(RangeNotHeldError):
                return (yield from self._read_from_kafka(block))

    def is_superseded(self) -> bool:
        return newest_claim(self._world.journal, self._world.stream) > self._driver.journal.epoch

    def read(self, block: Block) -> list[str]:
        """Return the rows of one block, by handle, from the WAL or from its hosts: ``topic/partition/incarnation/value``."""
        if block.in_wal:
            stored = block_of_frame(read_frame(self._world.wal, block.handle), block.handle.path)
        else:
            stored = self._from_hosts(block)
        if stored.meta != block.meta:
            raise AssertionError(f"another block is stored in place of {block.id}")
        return self._labels(block, self._world.decoded.rows(stored.payload, stored.meta))

    def _from_hosts(self, block: Block) -> StoredBlock:
        """Return the first whole copy of the hosts that the journal names. Raises UnreadableBlockError if there is none."""
        for host in block.hosts:
            with contextlib.suppress(FileNotFoundError, CorruptionError):
                return self._world.hosts[host].copy_of(block)
        raise UnreadableBlockError(f"no host has block {block.id}")

    def _read_from_kafka(self, block: Block) -> Generator[str, Any, list[str]]:
        """Return the same rows from Kafka, without a consumer group."""
        incarnations = self._driver.tracker.state.partitions
        wanted = [Wanted(r, incarnations[str(r.tp)].topic_id(r.incarnation)) for r in block.meta.ranges]
        tier = self._world.kinds.kafka_tier(self._world.kafka, wanted)
        tier.ask()
        yield "fetch"
        found = {rows.tp: rows.batches for rows in tier.fetch()}
        self._world.read_from_kafka += 1
        return self._labels(block, list(rows_of((r, found.get(r.tp, [])) for r in block.meta.ranges)))

    def _labels(self, block: Block, rows: list[Row]) -> list[str]:
        self._world.invariants.block_read(self._driver, block, rows)
        return [f"{r.topic}/{r.partition}/{r.incarnation}/{offset}" for r, offset, _ in rows]
