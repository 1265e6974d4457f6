"""Takes in what a poll returned, drops what is stale, and passes on gaps and faults. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.model.columns import Columns, EndOfPartition
from forebay.settings.schema import ReceiverSettings
from receiver import inputs as inp
from receiver.blocks.pending_block import Piece
from receiver.machine.delivery.buffer import Buffer
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.limits.flow import Flow
from receiver.machine.membership.partition import TAKING, Partition, Phase
from receiver.machine.membership.partitions import Partitions
from receiver.machine.membership.shutdown import Shutdown
from receiver.machine.polling import gaps
from receiver.machine.polling.faults import Faults


@dataclass(kw_only=True, slots=True, eq=False)
class PollResults:
    """Takes in the results of polls.

    ``record_bytes``: average memory of a record, 0.0 before the first one.
    """

    settings: ReceiverSettings
    outbox: Outbox
    flow: Flow
    shutdown: Shutdown
    partitions: Partitions
    buffer: Buffer
    faults: Faults
    record_bytes: float = 0.0

    def polled(self, event: inp.Polled, now: float) -> None:
        """Take in what a poll returned. Records fetched before a rebalance or a new claim are dropped (rule 3)."""
        for item in event.items:
            partition = self.partitions.get(item.tp)
            if partition is None or partition.phase not in TAKING or partition.generation != item.generation:
                self.outbox.counters["stale_polls_dropped"] += 1
            elif self.shutdown.draining and self.settings.source == "kafka":
                self.outbox.counters["polls_dropped_in_drain"] += 1  # Kafka still has it; another source may not
            elif isinstance(item, Columns):
                self.flow.throttle.took(item.tp, item.rows, item.bytes, now)
                self._take(partition, item, now)
            elif isinstance(item, EndOfPartition):
                self._reach_end(partition, item, now)
            else:
                # Only this partition pauses. What was taken in before the fault is stored and reported first.
                self.faults.enter(partition, item.kind, item.detail, now, end=item.end)

    def _take(self, partition: Partition, columns: Columns, now: float) -> None:
        if columns.last_offset < partition.expected:
            return  # the source may start earlier, within a batch
        piece = Piece(max(columns.first_offset, partition.expected), columns)
        if self._leaves_unconfirmed_gap(partition, piece.from_offset, now):
            return
        weight = piece.weight_bytes / max(1, columns.rows)
        self.record_bytes = weight if not self.record_bytes else 0.9 * self.record_bytes + 0.1 * weight
        self.buffer.append(partition, piece, now)

    def _reach_end(self, partition: Partition, end: EndOfPartition, now: float) -> None:
        if end.offset < partition.expected:
            return
        partition.high_watermark = end.offset
        if end.offset > partition.expected and not self._leaves_unconfirmed_gap(partition, end.offset, now):
            self.buffer.move(partition, end.offset, now)  # transaction markers at the end: lag reaches 0
        if partition.generation:
            partition.at_start = False

    def _leaves_unconfirmed_gap(self, partition: Partition, first: int, now: float) -> bool:
        """Return whether there is a gap before offset ``first`` that may be lost records, not only compaction or markers.

        If so, no record is taken in, and the partition is read again from the same position, under a new generation and
        the same token. Rule 3 requires a new claim only if the position goes *back*. Here no record at or after the
        position was taken in under this token, so no range can be written twice.
        """
        if first > partition.expected:
            confirmed = first == partition.unconfirmed_gap_end
            verdict = gaps.judge(at_start=partition.at_start, confirmed=confirmed, log_begins_after_position=False)
            if verdict is not gaps.GapVerdict.SKIPPED:
                partition.unconfirmed_gap_end = first
                self.partitions.leave(partition, Phase.INSPECTING, now)
                return True
        partition.at_start = False
        partition.unconfirmed_gap_end = -1
        return False
