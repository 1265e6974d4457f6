"""INV-2 and rule 4: nothing that is durable was recorded as lost, and no range is written twice under one token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.journal.state import State
from forebay.model.values import BlockMeta, TopicPartition
from tests.simulation.invariants.record import Record
from tests.simulation.invariants.violation import InvariantViolation
from wal.blocks import decode_meta
from wal.segments import layout
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import scan_segment

if TYPE_CHECKING:
    from tests.simulation.receiver_process import ReceiverProcess
    from tests.simulation.world import World


class Exclusions:
    """Gaps and ends of incarnations exclude no record that the WAL holds, or may still get."""

    def __init__(self, world: World, record: Record) -> None:
        self._world = world
        self._record = record
        self._excluded: dict[str, tuple[int, int]] = {}  # partition → number of gaps and incarnations that were checked
        self._synced: dict[str, BlockMeta] = {}  # durable, and not known to be accepted
        self._void: set[str] = set()  # blocks that a fenced process made durable
        #: for each token, everything that was written
        self._written: dict[tuple[TopicPartition, int], list[tuple[int, int, str]]] = {}

    def check(self, state: State) -> None:
        """INV-2: a gap, or the end of an incarnation, excludes no record that the WAL durably holds."""
        new = {
            key: p
            for key, p in state.partitions.items()
            if self._excluded.get(key, (0, 1)) != (len(p.gaps), len(p.incarnations))
        }
        if not new:
            return
        self._excluded.update({key: (len(p.gaps), len(p.incarnations)) for key, p in new.items()})
        for path in self._record.wal.list(f"{self._world.stream}/blocks"):
            if path in self._world.wal.rotted:
                continue  # a search passes over what is damaged
            for item in scan_segment(self._record.wal, path):
                if isinstance(item, Frame) and item.header.kind == FrameKind.BLOCK:
                    meta = decode_meta(item.metadata, path, item.offset)
                    self._check_not_excluded(state, meta, "was recorded as lost, the WAL holds it in")

    def _check_not_excluded(self, state: State, meta: BlockMeta, message: str) -> None:
        if meta.id in self._void or meta.id in state.blocks:
            return
        for held in meta.ranges:
            partition = state.partition(held.tp)
            if partition is None or held.incarnation > partition.incarnation.number:
                continue
            incarnation = partition.incarnations[held.incarnation - 1]
            if self._world.kafka.topic_id(held.topic) != incarnation.topic_id and meta.checked is not True:
                continue  # its topic is unknown
            for recorded in partition.gaps:
                gap = recorded.gap
                if (
                    recorded.incarnation == held.incarnation
                    and held.from_offset < gap.until_offset
                    and gap.from_offset < held.until_offset
                ):
                    raise InvariantViolation(
                        "INV-2", f"the gap [{gap.from_offset}, {gap.until_offset}) {message} {meta.id}"
                    )
            if incarnation.end is not None and held.until_offset > incarnation.end:
                raise InvariantViolation(
                    "INV-2", f"records from {incarnation.end} on of an ended incarnation {message} {meta.id}"
                )

    def block_synced(self, process: ReceiverProcess, meta: BlockMeta) -> None:
        """INV-2: no process that is not fenced makes records durable that were excluded before."""
        self._record.refresh()
        if self._record.state is None:
            return
        self._synced[meta.id] = meta
        known = self._record.state.receivers.get(process.receiver_id)
        outdated = known is None or known.epoch != process.machine.epoch  # None: forgotten
        # where files are appended to, a process that was fenced while it slept may go on writing
        if outdated and (self._world.wal.appendable or self._record.is_of_lost_journal(meta)):
            self._void.add(meta.id)
        self._check_not_excluded(self._record.state, meta, "was recorded as lost before it could be synced in")

    def landed(self, path: str) -> None:
        """INV-2: an object that lands late holds no record that was excluded before."""
        self._record.refresh()
        if self._record.state is None or layout.parse_block(path) is None:
            return
        for item in scan_segment(self._record.wal, path):
            if isinstance(item, Frame) and item.header.kind == FrameKind.BLOCK:
                meta = decode_meta(item.metadata, path, item.offset)
                if self._record.is_of_lost_journal(meta):
                    self._void.add(meta.id)
                self._check_not_excluded(self._record.state, meta, "was recorded as lost before it was stored in")

    def unreported(self, tp: TopicPartition) -> bool:
        """Return whether the WAL holds the durable position of ``tp`` in a block that is not accepted."""
        partition = self._record.state.partition(tp) if self._record.state is not None else None
        if self._record.state is None or partition is None:
            return False
        self._synced = {name: meta for name, meta in self._synced.items() if name not in self._record.state.blocks}
        return any(
            (held.tp, held.incarnation) == (tp, partition.incarnation.number)
            and held.from_offset <= partition.position < held.until_offset
            for meta in self._synced.values()
            for held in meta.ranges
        )

    def block_written(self, meta: BlockMeta) -> None:
        """Rule 4: no range is written twice under one token, except as the same block id."""
        for held in meta.ranges:
            written = self._written.setdefault((held.tp, held.token), [])
            for begin, end, block_id in written:
                if block_id != meta.id and begin < held.until_offset and held.from_offset < end:
                    raise InvariantViolation(
                        "rule 4", f"{held.label} was written in {block_id} and in {meta.id} under token {held.token:x}"
                    )
            written.append((held.from_offset, held.until_offset, meta.id))
