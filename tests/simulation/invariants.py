"""What must hold after every step ("Invariants" in docs/ARCHITECTURE.md), for what a crash at this moment would leave.

The checks use bytes and sent answers, not the state of the code under test. The journal is read again from its synced
bytes whenever these have changed. Blocks are read by handle from the WAL, and their rows are compared with Kafka's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from driver.background.discovery import LostJournal
from driver.journal import events as ev
from driver.journal import history
from driver.journal.files import newest_claim
from driver.journal.leadership.timeline import TimelineFound
from driver.journal.log import reading as journal
from driver.journal.state import ADOPTER, Batch, BrokenInvariant, Partition, State
from driver.tracker import Decision
from driver.tracker.requests import Request
from forebay import messages as m
from forebay.model.errors import (
    CorruptionError,
    FencedError,
    ForebayError,
    NewerVersionError,
    StoreError,
    UnreadableBlockError,
)
from forebay.model.payload import decode_block
from forebay.model.values import Block, BlockMeta, BlockRange, TopicPartition, count_of, timeline_of
from recovery import audit
from tests.simulation.durable import DurableJournal, SyncedImage
from tests.simulation.hosts import copies_of
from tests.simulation.kafka import RECORD
from wal.blocks import StoredBlock, block_of_frame, decode_meta
from wal.segments import layout
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import read_frame, scan_segment

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess
    from tests.simulation.receiver_process import ReceiverProcess
    from tests.simulation.world import Query, World

#: (timeline, incarnation) in the metadata of commits of this intake
_METADATA = re.compile(r"forebay:(\d+):(\d+)")


class InvariantViolation(AssertionError):
    """``invariant``: INV-n, "rule 4" or "progress"."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


class Invariants:
    def __init__(self, world: World) -> None:
        self._world = world
        self._journal = DurableJournal(world.journal, world.stream)
        self._wal = SyncedImage(world.wal)
        self._durable_checked: Any = None
        self._copies_signature: Any = None
        self._covering: frozenset[str] | None = None
        self._commits_checked: Any = None
        self.durable: State | None = None
        self.lost = False  # the journal is lost, and not rebuilt yet
        self._before: State | None = None  # what it durably said when it was lost
        self._finished_before: tuple[history.FinishedBatch, ...] = ()
        self._past: dict[int, int] = {}  # batches that were completed before a loss: id → number
        self._verified: dict[str, Block] = {}  # read back and compared with Kafka
        self._cleaned: set[str] = set()  # blocks whose deletion was durably intended
        self._registered: dict[
            tuple[str, str], int
        ] = {}  # receiver id and process → epoch of the driver that registered it
        self._accepted: dict[str, str] = {}  # answered as accepted: block → by which driver
        self._written: dict[
            tuple[TopicPartition, int], list[tuple[int, int, str]]
        ] = {}  # for each token, everything that was written
        self._given_up: dict[
            str, tuple[int, int]
        ] = {}  # for each partition, the gaps and incarnations that were checked
        self._synced: dict[str, BlockMeta] = {}  # durable, and not known to be accepted
        self._void: set[str] = set()  # blocks that a fenced process made durable
        self._windows: dict[
            tuple[int, int], tuple[int, ...]
        ] = {}  # batch and replay → the batches before it in its window
        self.runs: dict[int, tuple[Any, ...]] = {}  # batch → packing and rows that the job saw

    @property
    def finished(self) -> tuple[history.FinishedBatch, ...]:
        """The durable history."""
        return self._journal.finished

    # ---- after every step --------------------------------------------------------------------------------------------

    def check(self) -> None:
        self._refresh()
        self._check_blocks()
        self._check_commits()

    def _refresh(self) -> None:
        """Read the durable journal again if its bytes have changed, and check INV-7 and its content."""
        before, finished = self.durable, self.finished
        try:
            if not self._journal.refresh():
                return
            if self._journal.state is None and before is not None:
                self._lose(before, finished)
        except BrokenInvariant as error:
            raise InvariantViolation("INV-7", f"the durable journal does not replay: {error}") from error
        except ForebayError as error:
            raise InvariantViolation("INV-7", f"the durable journal can't be read: {error}") from error
        self.durable = self._journal.state
        if self.durable is not None:
            if self.lost:
                self._rebuilt(self.durable)
            self._check_state(self.durable)

    def _check_batches(self, state: State) -> None:
        """INV-3: no batch is completed before its job has returned, nor shown as completed before all batches before it
        are, in whatever order the jobs end.
        """
        open_blocks = list(state.waiting)
        for batch in state.batches.values():
            if batch.completed_ms is None:
                open_blocks += batch.block_ids
            elif batch.batch_id not in self.runs:
                raise InvariantViolation("INV-3", f"batch {batch.batch_id} is completed, and no job returned for it")
        for held in (r for block_id in open_blocks for r in state.blocks[block_id].meta.ranges):
            partition = state.partitions[str(held.tp)]
            if held.incarnation == partition.incarnation.number and held.from_offset < partition.completed:
                raise InvariantViolation(
                    "INV-3", f"{partition.tp} is shown as completed beyond {held.label}, which is not"
                )

    def has_copy(self) -> bool:
        self._refresh()
        return self.durable is not None and bool(self.durable.copies)

    def _lose(self, before: State, finished: tuple[history.FinishedBatch, ...]) -> None:
        """The journal is lost, or a rebuild has begun a timeline that has no state yet."""
        self.lost, self._before, self._finished_before = True, before, finished
        self._past.update({batch.batch_id: batch.number for batch in finished})
        self._past.update(
            {b.batch_id: b.number for b in before.batches.values() if b.number <= before.completed_number}
        )

    def _rebuilt(self, state: State) -> None:
        """Check that no position went back, except over a gap that no frame shows, and that every batch that runs again
        is named.
        """
        before = self._before
        assert before is not None
        if state.timeline <= before.timeline:
            raise InvariantViolation("INV-4", f"timeline {state.timeline} was opened after {before.timeline} was lost")
        self.lost = False
        unsure = self._unsure(before, state)
        for block_id in unsure:
            self._accepted.pop(block_id, None)
        for key, old in before.partitions.items():
            new = state.partitions.get(key)
            gap = old.preceding_gap
            least = old.position if gap is None else gap.from_offset
            for block_id in unsure:
                for held in before.blocks[block_id].meta.ranges:
                    if (str(held.tp), held.incarnation) == (key, old.incarnation.number):
                        least = min(least, held.from_offset)
            if new is None or (new.incarnation.number, new.position) < (old.incarnation.number, least):
                at = "is not there" if new is None else f"stands at {new.position}"
                raise InvariantViolation("INV-1", f"{key} was at {old.position}, and {at} after the rebuild")
        record = state.rebuilds[-1]
        named = {batch.batch_id for batch in record.repeated}
        waiting = [r for b in state.waiting for r in state.blocks[b].meta.ranges]
        completed = [b for b in before.batches.values() if b.completed_ms is not None]
        done: list[history.FinishedBatch | Batch] = [*self._finished_before, *completed]
        for batch in done:
            if not any(batch.tasks):
                continue  # no block of it waits again
            if state.is_void(batch.batch_id, batch.number) and batch.batch_id not in named and 0 not in named:
                raise InvariantViolation("INV-3", f"batch {batch.batch_id} may run again, and is not named")
        for finished in self._finished_before:
            if state.is_void(finished.batch_id, finished.number):
                continue
            for r in finished.ranges:
                for held in waiting:
                    if (
                        (held.topic, held.partition, held.incarnation) == (r.topic, r.partition, r.incarnation)
                        and held.from_offset < r.until_offset
                        and r.from_offset < held.until_offset
                    ):
                        raise InvariantViolation("INV-3", f"{held.label} waits again, batch {finished.batch_id} counts")

    def _unsure(self, before: State, state: State) -> set[str]:
        """Return the blocks that a rebuild leaves out, because their topic is unknown, and those of their tokens after
        them.
        """
        topic_id = self._world.kafka.topic_id
        left_out = {block_id: block.meta for block_id, block in before.blocks.items() if block_id not in state.blocks}
        unsure = {
            block_id
            for block_id, meta in left_out.items()
            if meta.checked is not True
            and any(topic_id(r.topic) != before.partitions[str(r.tp)].topic_id(r.incarnation) for r in meta.ranges)
        }
        begins = {
            (r.tp, r.incarnation, r.token): r.from_offset for block_id in unsure for r in left_out[block_id].ranges
        }
        behind = {
            block_id
            for block_id, meta in left_out.items()
            if any(r.from_offset > begins.get((r.tp, r.incarnation, r.token), 1 << 63) for r in meta.ranges)
        }
        return unsure | behind

    def _check_state(self, state: State) -> None:
        covering = self._copies_call_released() if state.cleaning_segments else None
        for path in state.cleaning_segments:
            for block in state.blocks.values():
                if block.handle.path != path:
                    continue
                if covering is None or block.id not in covering:
                    raise InvariantViolation(
                        "INV-8", f"{path} is to be deleted, and a copy does not call {block.id} released"
                    )
                if block.id not in state.released:
                    raise InvariantViolation("INV-8", f"{path} is to be deleted, its block {block.id} is needed")
                self._cleaned.add(block.id)
        for block_id, driver in self._accepted.items():
            if block_id not in state.blocks and block_id not in self._cleaned:
                raise InvariantViolation("INV-4", f"{driver} accepted block {block_id}, the journal does not hold it")
        for partition in state.partitions.values():
            if not partition.incarnation.start <= partition.completed <= partition.position:
                raise InvariantViolation(
                    "INV-3", f"{partition.tp} is shown as completed to {partition.completed} of {partition.position}"
                )
        self._check_batches(state)
        self._check_given_up(state)
        findings = audit.report(state, self.finished).findings
        if findings:
            invariant = "INV-3" if findings[0].kind == "duplicate" else "INV-2"
            raise InvariantViolation(invariant, f"the audit finds {findings[0]}")

    def _check_given_up(self, state: State) -> None:
        """INV-2: a gap, or the end of an incarnation, excludes no record that the WAL durably holds."""
        new = {
            key: p
            for key, p in state.partitions.items()
            if self._given_up.get(key, (0, 1)) != (len(p.gaps), len(p.incarnations))
        }
        if not new:
            return
        self._given_up.update({key: (len(p.gaps), len(p.incarnations)) for key, p in new.items()})
        for path in self._wal.list(f"{self._world.stream}/blocks"):
            if path in self._world.wal.rotted:
                continue  # a search passes over what is damaged
            for item in scan_segment(self._wal, path):
                if isinstance(item, Frame) and item.header.kind == FrameKind.BLOCK:
                    meta = decode_meta(item.metadata, path, item.offset)
                    self._check_not_given_up(state, meta, "was given up, the WAL holds it in")

    def _check_not_given_up(self, state: State, meta: BlockMeta, words: str) -> None:
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
                        "INV-2", f"the gap [{gap.from_offset}, {gap.until_offset}) {words} {meta.id}"
                    )
            if incarnation.end is not None and held.until_offset > incarnation.end:
                raise InvariantViolation(
                    "INV-2", f"records from {incarnation.end} on of an ended incarnation {words} {meta.id}"
                )

    def block_synced(self, process: ReceiverProcess, meta: BlockMeta) -> None:
        """INV-2: no process that is not fenced makes records durable that were excluded before."""
        self._refresh()
        if self.durable is None:
            return
        self._synced[meta.id] = meta
        known = self.durable.receivers.get(process.receiver_id)
        outdated = known is None or known.epoch != process.machine.epoch  # None: forgotten
        # where files are appended to, a process that was fenced while it slept may go on writing
        if outdated and (self._world.wal.appendable or self._is_of_lost_journal(meta)):
            self._void.add(meta.id)
        self._check_not_given_up(self.durable, meta, "was given up before it could be synced in")

    def landed(self, path: str) -> None:
        """INV-2: an object that lands late holds no record that was excluded before."""
        self._refresh()
        if self.durable is None or layout.parse_block(path) is None:
            return
        for item in scan_segment(self._wal, path):
            if isinstance(item, Frame) and item.header.kind == FrameKind.BLOCK:
                meta = decode_meta(item.metadata, path, item.offset)
                if self._is_of_lost_journal(meta):
                    self._void.add(meta.id)
                self._check_not_given_up(self.durable, meta, "was given up before it landed in")

    def _is_of_lost_journal(self, meta: BlockMeta) -> bool:
        """Return whether the block's writer may be forgotten."""
        return self.lost or (self.durable is not None and timeline_of(meta.epoch) < self.durable.timeline)

    def unreported(self, tp: TopicPartition) -> bool:
        """Return whether the WAL holds the durable position of ``tp`` in a block that is not accepted."""
        partition = self.durable.partition(tp) if self.durable is not None else None
        if self.durable is None or partition is None:
            return False
        self._synced = {name: meta for name, meta in self._synced.items() if name not in self.durable.blocks}
        return any(
            (held.tp, held.incarnation) == (tp, partition.incarnation.number)
            and held.from_offset <= partition.position < held.until_offset
            for meta in self._synced.values()
            for held in meta.ranges
        )

    def _copies_call_released(self) -> frozenset[str] | None:
        """Return the blocks that are released in each of the last two snapshot copies beside the WAL; None if there are
        fewer copies.
        """
        folder = layout.snapshot_folder(self._world.stream)
        if self._wal.signature(folder) != self._copies_signature:
            self._copies_signature = self._wal.signature(folder)
            found = []
            for path in self._wal.list(folder):
                place = layout.parse_snapshot_copy(path)
                copy = journal.snapshot_in(self._wal, path)
                if place is not None and copy is not None:
                    found.append((place, copy))
            newest = [copy for _, copy in sorted(found, key=lambda one: one[0])[-2:]]
            released = [frozenset(copy.released) for copy in newest]
            self._covering = released[0] & released[1] if len(released) == 2 else None
        return self._covering

    def _check_blocks(self) -> None:
        """INV-1: the WAL durably holds every accepted block whose deletion is not intended (INV-8)."""
        state = self.durable
        held = sum(len(host.files) for host in self._world.hosts.values())
        wal = self._world.wal
        now = (self._journal.changes, wal.damages, wal.calls["delete"], held)
        if state is None or now == self._durable_checked:
            return
        is_less = self._durable_checked is None or now[1:] != self._durable_checked[1:]
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
                sizes[path] = self._wal.size(path)
            if sizes[path] < block.handle.offset + block.handle.length:
                deleted = path in self._world.wal.deleted
                raise InvariantViolation(
                    "INV-8" if deleted else "INV-1",
                    f"block {block.id} is in the journal, the WAL {'lost' if deleted else 'does not durably hold'} it",
                )
            if self._verified.get(block.id) != block:
                self._verify(state, block)
                self._verified[block.id] = block
        self._durable_checked = now

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

    def copy_deleted(self, host: str, block_id: str) -> None:
        """INV-8: a copy is deleted only after the journal durably says that nothing needs it."""
        self._refresh()
        intents = self.durable.cleanups.values() if self.durable is not None else ()
        if block_id not in self._world.hosts[host].files:
            return
        self._world.reached["copy deleted"] += 1
        if not any(c.host == host and block_id in c.blocks for c in intents):
            raise InvariantViolation("INV-8", f"{host} deletes {block_id}, the journal does not durably intend it")
        if self.durable is not None and (block := self.durable.blocks.get(block_id)) is not None:
            if host in block.hosts and block_id not in self.durable.released:
                raise InvariantViolation("INV-8", f"{host} deletes {block_id}, which a batch may need")
            self._cleaned.add(block_id)

    def hosts_crashed(self) -> None:
        self._verified.clear()
        self._durable_checked = None

    def _verify(self, state: State, block: Block) -> None:
        try:
            stored = block_of_frame(read_frame(self._wal, block.handle), block.handle.path)  # type: ignore[arg-type]
            decoded = decode_block(stored.payload, stored.meta, verify_digests=True)
        except (ForebayError, FileNotFoundError) as error:
            raise InvariantViolation("INV-1", f"block {block.id} can't be read from the WAL: {error}") from error
        if stored.meta != block.meta:
            raise InvariantViolation("INV-1", f"the WAL holds another block where {block.id} should be")
        self._compare_rows(state, block, decoded)

    def _compare_all(self, state: State, block: Block, stored: StoredBlock) -> None:
        try:
            decoded = decode_block(stored.payload, stored.meta, verify_digests=True)
        except ForebayError as error:
            raise InvariantViolation("INV-1", f"block {block.id} can't be read from a host: {error}") from error
        self._compare_rows(state, block, decoded)

    def _compare_rows(self, state: State, block: Block, decoded: Any) -> None:
        for held, batches in decoded:
            rows: dict[int, bytes] = {}
            for batch in batches:
                offsets: list[Any] = batch.column("offset").to_pylist()
                values: list[Any] = batch.column("value").to_pylist()
                rows.update(zip(offsets, values, strict=True))
            self._compare(state.partitions[str(held.tp)], held, rows, block.id)

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

    def _check_commits(self) -> None:
        """INV-1: no commit of this intake is beyond the durable position of its incarnation."""
        group = self._world.kafka.group
        now = (group.commits, self._journal.changes)
        if now == self._commits_checked:
            return
        self._commits_checked = now
        if self.lost:
            return
        for tp, committed in group.committed.items():
            found = _METADATA.fullmatch(committed.metadata)
            assert found is not None
            if self.durable is not None and int(found[1]) < self.durable.timeline:
                continue  # before a rebuild, which may have to find a gap again
            position = self._durable_position(tp, int(found[2]))
            if committed.offset > position:
                raise InvariantViolation(
                    "INV-1", f"{tp} was committed at {committed.offset}, the durable position is {position}"
                )

    def _durable_position(self, tp: TopicPartition, incarnation: int) -> int:
        """Return -1 for an incarnation that the durable journal does not know."""
        partition = self.durable.partition(tp) if self.durable is not None else None
        if partition is None or incarnation > partition.incarnation.number:
            return -1
        if incarnation == partition.incarnation.number:
            return partition.position
        end = partition.incarnations[incarnation - 1].end
        assert end is not None
        return end

    # ---- receivers ---------------------------------------------------------------------------------------------------

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

    def receiver_ended(self, process: ReceiverProcess) -> None:
        """INV-4: only a newer process of the same id ends a receiver as superseded; an outdated driver cannot."""
        if process.exit_code == 4:
            self._refresh()
            known = self.durable.receivers.get(process.receiver_id) if self.durable is not None else None
            if known is not None and known.epoch == process.machine.epoch:
                raise InvariantViolation(
                    "INV-4", f"{process.name} was ended, and is not superseded: {process.exit_reason}"
                )
        elif process.exit_code == 2:
            raise InvariantViolation("progress", f"{process.name} was refused: {process.exit_reason}")

    # ---- drivers -----------------------------------------------------------------------------------------------------

    def opened(self, driver: DriverProcess) -> None:
        """INV-7: the opened state is the one in the durable journal."""
        self._same_as_durable(driver)

    def checked(self, driver: DriverProcess) -> None:
        """INV-7: the state of a driver that is not superseded, and whose events are durable, equals the journal's."""
        self._same_as_durable(driver)

    def _knows_no_loss(self, driver: DriverProcess) -> bool:
        """Return whether the driver leads a journal that was lost meanwhile.

        Its answers bind no process, but the blocks that it accepts are in the WAL and must be found there.
        """
        return self.lost or (self.durable is not None and timeline_of(driver.journal.epoch) < self.durable.timeline)

    def _same_as_durable(self, driver: DriverProcess) -> None:
        self._refresh()
        if self._knows_no_loss(driver):
            return
        if self.durable is None or _encoded(self.durable) != _encoded(driver.tracker.state):
            raise InvariantViolation("INV-7", f"{driver.name}'s state is not what the durable journal replays to")
        if driver.tracker.state.index != self.durable.build_index():
            raise InvariantViolation("INV-7", f"{driver.name}'s index of blocks is not that of its state")

    def decide(self, driver: DriverProcess, request: Request) -> Decision:
        """Let the tracker decide, and check the decision (INV-4)."""
        tokens = {key: p.token for key, p in driver.tracker.state.partitions.items()}
        try:
            decision = driver.tracker.decide(request, self._world.now, self._world.wall_ms)
        except BrokenInvariant as error:
            raise InvariantViolation(_named(error), f"{driver.name} decided it: {error}") from error
        except ForebayError as refusal:
            self._world.coverage.refused(driver.name, request, refusal)
            raise
        self._world.coverage.decided(driver.name, request, decision.events)
        self._world.reached.update(type(event).__name__ for event in decision.events)
        if isinstance(request, m.ReportRequest) and request.receiver_id == ADOPTER and decision.events:
            self._world.reached["adopted"] += 1
        for event in decision.events:
            if isinstance(event, ev.ReceiverRegistered):
                self._check_registration(driver, event)
        if isinstance(request, m.ClaimRequest):
            asked = {f"{ask.topic}/{ask.partition}": ask.known_token for ask in request.claims}
            for event in decision.events:
                if isinstance(event, ev.ClaimGiven):
                    key = f"{event.topic}/{event.partition}"
                    if asked[key] != tokens[key]:
                        raise InvariantViolation("INV-4", f"a claim of {key} that names an outdated token was granted")
        return decision

    def _check_registration(self, driver: DriverProcess, event: ev.ReceiverRegistered) -> None:
        """INV-4: a process that registered once gets no new epoch after another process of its id did."""
        if self._world.options.ids_kept or self._knows_no_loss(driver):
            return  # ids are forgotten, with the processes that had them
        process = (event.receiver_id, event.instance_id)
        if process in self._registered and driver.journal.epoch == self._registered[process]:
            raise InvariantViolation("INV-4", f"{event.instance_id} is registered anew as {event.receiver_id}")
        self._registered[process] = driver.journal.epoch

    def released(self, driver: DriverProcess, request: Request, answer: Any) -> None:
        """Check an answer that leaves: what it says must be in the durable journal, now and from now on."""
        self._refresh()
        state = self.durable
        if self.lost:
            if isinstance(answer, m.ReportAnswer):
                self._accepted.update({r.block_id: driver.name for r in answer.results if r.accepted})
            return
        if self._knows_no_loss(driver) and not isinstance(answer, m.ReportAnswer):
            return
        if isinstance(answer, m.ReportAnswer):
            for result in answer.results:
                if not result.accepted:
                    continue
                if state is None or (result.block_id not in state.blocks and result.block_id not in self._cleaned):
                    outdated = newest_claim(self._world.journal, self._world.stream) > driver.journal.epoch
                    raise InvariantViolation(
                        "INV-4" if outdated else "INV-1",
                        f"{driver.name} accepts block {result.block_id}, the journal does not durably hold it",
                    )
                self._accepted[result.block_id] = driver.name
        elif isinstance(answer, m.RegisterAnswer):
            if state is None or state.epochs < count_of(answer.epoch):
                raise InvariantViolation("INV-4", f"{driver.name} gives epoch {answer.epoch:x}, which is not durable")
        elif isinstance(answer, m.ClaimAnswer):
            for grant in answer.claims:
                if grant.granted and (state is None or state.tokens < count_of(grant.view.token)):
                    raise InvariantViolation("INV-4", f"{driver.name} gives token {grant.view.token:x}: not durable")
        elif isinstance(answer, m.LookupAnswer):
            for view in answer.partitions:
                if view.known and view.position > self._durable_position(view.tp, view.incarnation):
                    raise InvariantViolation("INV-1", f"{driver.name} shows {view.tp} at {view.position}: not durable")

    def deleting(self, driver: DriverProcess, path: str) -> None:
        """INV-8: bytes are deleted only after the journal durably says that nothing needs them."""
        self._refresh()
        if layout.parse_block(path) is None:
            return  # a snapshot copy: whether enough are left is checked where they cover a deletion
        if self._knows_no_loss(driver):
            self._cleaned.update(b.id for b in driver.tracker.state.blocks.values() if b.handle.path == path)
            return
        if self._world.wal.exists(path) and (self.durable is None or path not in self.durable.cleaning_segments):
            raise InvariantViolation("INV-8", f"{driver.name} deletes {path}, the journal does not durably intend it")

    def block_read(self, driver: DriverProcess, block: Block, rows: list[tuple[BlockRange, int, bytes]]) -> None:
        """INV-3: from whichever tier, the rows of a task are the records of the block, by offset and by content."""
        partitions = driver.tracker.state.partitions
        for held in block.meta.ranges:
            own = {offset: value for r, offset, value in rows if r == held}
            entries = self._world.kafka.log_of(held.tp, partitions[str(held.tp)].topic_id(held.incarnation)).entries
            other = [offset for offset, value in own.items() if entries[offset].value != value]
            if other or len(own) != held.records:
                raise InvariantViolation(
                    "INV-3", f"{driver.name} reads {len(own)} records of {held.label}, of other content at {other}"
                )

    def job_done(
        self, driver: DriverProcess, batch_id: int, replay: int, rows: tuple[Any, ...], past: tuple[int, ...]
    ) -> None:
        """INV-3: a rerun has the same blocks, rows, order, packing and window, and only durable batches are given to a
        job.
        """
        window = self._windows.setdefault((batch_id, replay), past)
        if window != past:
            raise InvariantViolation("INV-3", f"batch {batch_id} ran with window {window}, and again with {past}")
        if not replay:
            rebuilds = driver.tracker.state.rebuilds
            begun = next((r.batch_count for r in rebuilds if r.timeline == timeline_of(batch_id)), 0)
            reach = min(self._world.options.window_batches, count_of(batch_id) - begun - 1)
            if len(past) != reach:
                raise InvariantViolation(
                    "INV-8", f"the window of batch {batch_id} reaches {len(past)} batches back, not {reach}"
                )
        before = self.runs.setdefault(batch_id, rows)
        if before != rows:
            raise InvariantViolation("INV-3", f"batch {batch_id} ran again with other blocks, rows or packing")

    def query_read(self, query: Query, losses: Iterable[str], rows: list[str]) -> None:
        """INV-8: everything that a cursor still had to read was held.

        INV-3: a batch that runs again has the same rows. A lost journal may have lost the cursor too, until the query
        returned.
        """
        if query.losses == self._world.journal_loss.count:
            for loss in losses:
                raise InvariantViolation("INV-8", f"what a cursor has yet to read was deleted: {loss}")
            if query.read is not None and query.read != rows:
                raise InvariantViolation("INV-3", f"a query's batch had {query.read}, and run again {rows}")
        if query.read is None:
            query.read = rows
            query.rows += len(rows)

    def driver_ended(self, driver: DriverProcess, error: BaseException, was_faulty: bool) -> None:
        """A driver may end when it is fenced and when its journal's store fails. Every other end is a violation.

        ``was_faulty``: a store gave a faulty answer. A driver survives every fault of the WAL once it leads.
        """
        if was_faulty and isinstance(error, StoreError) and driver.leading and self._world.wal.url in str(error):
            raise InvariantViolation("progress", f"{driver.name} ended by a fault of the WAL: {error}") from error
        refused = (CorruptionError, NewerVersionError, FileNotFoundError, MemoryError, TimelineFound)
        if was_faulty and isinstance(error, refused):
            return
        if isinstance(error, FencedError | StoreError) or (isinstance(error, TimelineFound) and self.lost):
            return
        if isinstance(error, LostJournal):
            raise InvariantViolation("INV-1", f"{driver.name} ended: {error}") from error
        if isinstance(error, BrokenInvariant):
            raise InvariantViolation(_named(error), f"{driver.name} ended: {error}") from error
        if isinstance(error, FileNotFoundError | CorruptionError | UnreadableBlockError) and driver.leading:
            raise InvariantViolation("INV-8", f"{driver.name} can't read what a batch needs: {error}") from error
        raise InvariantViolation("progress", f"{driver.name} ended by {type(error).__name__}: {error}") from error

    # ---- at the end --------------------------------------------------------------------------------------------------

    def settled(self) -> bool:
        """Return whether every record that Kafka holds was taken in and completed."""
        state = self.durable
        if state is None or not state.created or state.waiting or state.unfinished() or state.replaying:
            return False
        for tp in self._world.kafka.partitions():
            partition = state.partition(tp)
            if partition is None or partition.incarnation.topic_id != self._world.kafka.topic_id(tp.topic):
                return False
            if partition.position < self._world.kafka.log(tp).high:
                return False
        return True

    def unnoticed(self) -> list[TopicPartition]:
        """Return partitions of a recreated topic whose new log ends exactly where the old one was read to."""
        kafka = self._world.kafka
        return [
            p.tp
            for p in (self.durable.partitions.values() if self.durable is not None else ())
            if p.incarnation.topic_id != kafka.topic_id(p.topic) and p.position == kafka.log(p.tp).high
        ]

    def unsettled(self) -> str:
        """Describe what is missing."""
        state = self.durable
        if state is None:
            return "there is no journal"
        where = [
            f"{tp} at {p.position if p else None} of {self._world.kafka.log(tp).high}, completed {p.completed if p else None}"
            for tp in self._world.kafka.partitions()
            for p in [state.partition(tp)]
        ]
        return f"{'; '.join(where)}; {len(state.waiting)} blocks wait, {len(state.unfinished())} batches are unfinished"

    def check_completed(self) -> None:
        """INV-3: the rows of completed batches are the records that Kafka held, each once."""
        state = self.durable
        assert state is not None
        completed = {b.batch_id for b in self.finished}
        completed |= {b.batch_id for b in state.batches.values() if b.completed_ms is not None}
        completed |= self._past.keys()
        numbers = {**self._past, **{b.batch_id: b.number for b in self.finished}}
        completed -= {batch for batch in completed if batch in numbers and state.is_void(batch, numbers[batch])}
        seen: set[str] = set()
        for batch_id in sorted(completed):
            for _, rows in self.runs[batch_id]:
                for row in rows:
                    if row in seen:
                        raise InvariantViolation("INV-3", f"{row} is in two completed batches, one is {batch_id}")
                    seen.add(row)
        for partition in state.partitions.values():
            for incarnation in partition.incarnations:
                self._check_incarnation(
                    partition, incarnation.number, incarnation.start, incarnation.end, incarnation.topic_id, seen
                )
        if seen:
            raise InvariantViolation("INV-3", f"{min(seen)} was completed and is no record of its incarnation")

    def _check_incarnation(
        self, partition: Partition, incarnation: int, start: int, end: int | None, topic_id: str, seen: set[str]
    ) -> None:
        entries = self._world.kafka.log_of(partition.tp, topic_id).entries
        until = end if end is not None else partition.position
        gaps = [g.gap for g in partition.gaps if g.incarnation == incarnation]
        for offset in range(start, until):
            row = f"{partition.tp}/{incarnation}/{offset}"
            if row in seen:
                seen.remove(row)
                continue
            if any(g.from_offset <= offset < g.until_offset for g in gaps):
                continue
            entry = entries[offset]
            if entry.kind == RECORD and not entry.compacted:
                raise InvariantViolation("INV-3", f"{row} is in no completed batch")


def _named(error: Exception) -> str:
    found = re.search(r"INV-\d", str(error))
    return found[0] if found else "INV-7"


def _encoded(state: State) -> bytes:
    return msgspec.msgpack.encode(state)
