"""Rules 4 and 5: reports durable and checked blocks; the driver accepts or refuses each block. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay import messages
from forebay.model.values import TopicPartition, block_id
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.blocks.sealed_blocks import SealedBlock
from receiver.machine.delivery.buffer import Buffer
from receiver.machine.delivery.commits import CommitRetries
from receiver.machine.exchange.contact import DriverContact
from receiver.machine.exchange.delays import retry_delay
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.exchange.requests import Failed
from receiver.machine.membership.partition import TAKING, Phase
from receiver.machine.membership.partitions import Partitions
from receiver.machine.membership.registration import Registration
from receiver.sources.source import CommitPoint

#: maximum ranges in one report, which keeps its body far below ``forebay.security.access.ClientLimits.request_bytes``
REPORT_RANGES_MAX = 10_000


@dataclass(kw_only=True, slots=True, eq=False)
class Reports:
    """One report is open at a time. ``records``: in blocks that the driver accepted."""

    settings: ReceiverSettings
    outbox: Outbox
    contact: DriverContact
    registration: Registration
    partitions: Partitions
    buffer: Buffer
    commits: CommitRetries
    records: int = 0
    _open: bool = False
    _report_at: float = 0.0

    def advance(self, now: float) -> None:
        """Report the blocks that are ready, unless a report is open.

        After a failure the same blocks are reported again, with those stored since. The driver answers a block id that it
        knows as it did before.
        """
        if self._open or now < self._report_at:
            return
        blocks = self.buffer.sealed.to_report(REPORT_RANGES_MAX)
        if not blocks:
            return
        self._open = True
        request = self.outbox.ask(inp.ReportAnswered, now, self._answered, self._failed)
        message = messages.ReportRequest(
            receiver_id=self.registration.receiver_id, epoch=self.registration.epoch, blocks=tuple(blocks)
        )
        self.outbox.do(act.Report(request, message))

    def _failed(self, failure: Failed, now: float) -> None:
        self._open = False
        self._report_at = now + retry_delay(self.settings.reclaim_delay, max(1, self.contact.failures))

    def _answered(self, event: inp.ReportAnswered, now: float) -> None:
        self._open = False
        results = {result.block_id: result for result in event.results}
        commits: dict[TopicPartition, CommitPoint] = {}
        refused: list[messages.BlockResult] = []
        first_refused = 0
        for sealed in list(self.buffer.sealed):
            sequence = sealed.pending.sequence
            result = results.get(block_id(self.registration.receiver_id, self.registration.epoch, sequence))
            if result is None:
                continue
            if result.accepted:
                self.buffer.sealing.answered(sealed.sealed_at, event.next_batch_ms, event.every_ms, now)
                self.buffer.sealed.forget(sealed)
                self._accept(sealed, commits)
            else:
                first_refused = first_refused or sequence
                refused.append(result)
        self.commits.commit(commits)
        if refused:
            self.withdraw(first_refused, refused, now)

    def _accept(self, sealed: SealedBlock, commits: dict[TopicPartition, CommitPoint]) -> None:
        assert sealed.stored is not None
        self.outbox.counters["blocks_accepted"] += 1
        self.records += sealed.stored.meta.records
        for part in sealed.pending.ranges:
            partition = self.partitions.get(part.tp)
            if partition is None or partition.token != part.token:
                continue  # no longer this receiver's: the next owner commits
            partition.accepted = part.until_offset
            partition.accepted_leader_epoch = part.leader_epoch
            metadata = self.commits.metadata(part.incarnation)
            commits[part.tp] = CommitPoint(part.until_offset, part.leader_epoch, metadata)

    def withdraw(self, first: int, refused: Sequence[messages.BlockResult], now: float) -> None:
        """Rule 4: request a new claim for each partition of block ``first`` and of all later unanswered blocks.

        Their ranges are written again only under the new claims. The blocks themselves are never reported (again); in the WAL
        they become orphans. ``refused``: the driver's refusals, for the log.
        """
        affected: dict[TopicPartition, None] = {}  # in an order that does not change from process to process
        for sealed in self.buffer.sealed.since(first):  # in order of sequence: a partition's pieces in order of offset
            self.buffer.sealed.forget(sealed)
            for part in sealed.pending.ranges:
                affected[part.tp] = None
                self.buffer.hold(part.tp, part.from_offset, part.pieces, part.token)
        for tp in affected:
            self.buffer.hold_open(tp)
            partition = self.partitions.get(tp)
            if partition is None:
                continue
            if partition.phase in TAKING:
                self.partitions.put_off(partition, "a report was refused", now)
            elif partition.phase in (Phase.INSPECTING, Phase.FAULT):
                delay = retry_delay(self.settings.reclaim_delay, 1)
                self.partitions.leave(partition, Phase.WAITING, now + delay)
        if refused:
            self.outbox.counters["blocks_refused"] += len(refused)
            reasons = [f"{s.topic}/{s.partition} ({s.reason}, now at {s.position})" for r in refused for s in r.stale]
            self.outbox.note(
                f"{len(refused)} blocks refused: {'; '.join(reasons[:8])}; the partitions are claimed anew",
                warning=True,
            )
