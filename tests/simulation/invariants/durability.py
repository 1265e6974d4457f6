"""INV-1: accepted blocks are durable and hold Kafka's records; no commit is beyond the durable position."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from driver.journal.state import State
from driver.journal.state_parts import Partition
from forebay.model.errors import ForebayError
from forebay.model.values import Block, BlockRange
from tests.simulation.decoded import Row
from tests.simulation.hosts import copies_of
from tests.simulation.invariants.record import Record
from tests.simulation.invariants.violation import InvariantViolation
from tests.simulation.kafka import RECORD
from wal.blocks import StoredBlock, block_of_frame
from wal.segments.scan import read_frame

if TYPE_CHECKING:
    from tests.simulation.world import World


#: (timeline, incarnation) in the metadata of commits of this intake
_METADATA = re.compile(r"forebay:(\d+):(\d+)")


class Durability:
    """Reads blocks by their handles from the synced bytes, and compares their rows with Kafka's."""

    def __init__(self, world: World, record: Record) -> None:
        self._world = world
        self._record = record
        self._blocks_checked: Any = None
        self._commits_checked: Any = None
        self._verified: dict[str, Block] = {}  # read back and compared with Kafka

    def check_blocks(self) -> None:
        """INV-1: the WAL durably holds every accepted block whose deletion is not intended (INV-8)."""
        state = self._record.state
        held = sum(host.changes for host in self._world.hosts.values())
        wal = self._world.wal
        now = (self._record.journal.changes, wal.damages, wal.calls["delete"], held)
        if state is None or now == self._blocks_checked:
            return
        is_less = self._blocks_checked is None or now[1:] != self._blocks_checked[1:]
        sizes: dict[str, int] = {}
        for block in state.blocks.values():
            if not is_less and self._verified.get(block.id) == block:
                continue
            path = block.handle.path
            if path in state.cleaning_segments:
                continue
            if not block.in_wal:
                self._check_copies(state, block)
                continue
            if path not in sizes:
                sizes[path] = self._record.wal.size(path)
            if sizes[path] < block.handle.offset + block.handle.length:
                deleted = path in self._world.wal.deleted
                raise InvariantViolation(
                    "INV-8" if deleted else "INV-1",
                    f"block {block.id} is in the journal, the WAL {'lost' if deleted else 'does not durably hold'} it",
                )
            if self._verified.get(block.id) != block:
                self._verify(state, block)
                self._verified[block.id] = block
        self._blocks_checked = now

    def _check_copies(self, state: State, block: Block) -> None:
        """INV-1: without a WAL every host that the journal names holds the block, except a lost host or one with a
        command to delete it. There are as many as are wanted, until the block is cleaned up.
        """
        if len(block.hosts) < self._world.options.copies and block.id not in state.released:
            raise InvariantViolation("INV-1", f"block {block.id} was accepted on {len(block.hosts)} hosts")
        going = {c.host for c in state.cleanups.values() if block.id in c.blocks}
        there = {name: stored for name, stored in copies_of(self._world, block) if stored.meta == block.meta}
        for name in block.hosts:
            if name in going or block.id in self._world.hosts[name].lost:
                continue
            if name not in there:
                raise InvariantViolation("INV-1", f"block {block.id} is in the journal, {name} does not hold it")
        if there and block.id not in self._verified:
            self._compare_all(state, block, next(iter(there.values())))
            self._verified[block.id] = block

    def hosts_crashed(self) -> None:
        self._verified.clear()
        self._blocks_checked = None

    def _verify(self, state: State, block: Block) -> None:
        try:
            stored = block_of_frame(read_frame(self._record.wal, block.handle), block.handle.path)  # type: ignore[arg-type]
            rows = self._world.decoded.rows(stored.payload, stored.meta)
        except (ForebayError, FileNotFoundError) as error:
            raise InvariantViolation("INV-1", f"block {block.id} can't be read from the WAL: {error}") from error
        if stored.meta != block.meta:
            raise InvariantViolation("INV-1", f"the WAL holds another block where {block.id} should be")
        self._compare_rows(state, block, rows)

    def _compare_all(self, state: State, block: Block, stored: StoredBlock) -> None:
        try:
            rows = self._world.decoded.rows(stored.payload, stored.meta)
        except ForebayError as error:
            raise InvariantViolation("INV-1", f"block {block.id} can't be read from a host: {error}") from error
        self._compare_rows(state, block, rows)

    def _compare_rows(self, state: State, block: Block, rows: list[Row]) -> None:
        for held in block.meta.ranges:
            own = {offset: value for r, offset, value in rows if r is held or r == held}
            self._compare(state.partitions[str(held.tp)], held, own, block.id)

    def _compare(self, partition: Partition, held: BlockRange, rows: dict[int, bytes], block_id: str) -> None:
        """Check that the range holds exactly the records that Kafka held there."""
        incarnation = next(
            incarnation for incarnation in partition.incarnations if incarnation.number == held.incarnation
        )
        entries = self._world.kafka.log_of(held.tp, incarnation.topic_id).entries
        for offset in range(held.from_offset, held.until_offset):
            entry = entries[offset] if offset < len(entries) else None
            if offset in rows:
                if entry is None or entry.kind != RECORD or entry.value != rows[offset]:
                    raise InvariantViolation(
                        "INV-2", f"block {block_id}: {held.tp} offset {offset} is no record of its incarnation"
                    )
            elif entry is None or (entry.kind == RECORD and not entry.compacted):
                raise InvariantViolation("INV-2", f"block {block_id}: {held.label} lacks offset {offset}")

    def check_commits(self) -> None:
        """INV-1: no commit of this intake is beyond the durable position of its incarnation."""
        group = self._world.kafka.group
        now = (group.commits, self._record.journal.changes)
        if now == self._commits_checked:
            return
        self._commits_checked = now
        if self._record.lost:
            return
        for tp, committed in group.committed.items():
            found = _METADATA.fullmatch(committed.metadata)
            assert found is not None
            if self._record.state is not None and int(found[1]) < self._record.state.timeline:
                continue  # before a rebuild, which may have to find a gap again
            position = self._record.position(tp, int(found[2]))
            if committed.offset > position:
                raise InvariantViolation(
                    "INV-1", f"{tp} was committed at {committed.offset}, the durable position is {position}"
                )
