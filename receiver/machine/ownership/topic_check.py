"""Rule 8: reads the ids of a block's topics after its last poll and before its report. Pure.

A topic that was deleted and created again has other records at the same offsets. Its id distinguishes the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.model.values import TopicPartition
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.delivery.buffer import Buffer
from receiver.machine.delivery.reports import Reports
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.exchange.requests import Failed
from receiver.machine.membership.partitions import Partitions
from receiver.machine.polling.faults import Faults


@dataclass(kw_only=True, slots=True, eq=False)
class TopicCheck:
    """Checks all sealed blocks with one request at a time. ``obstacle``: why the last request failed, "" if it did not."""

    settings: ReceiverSettings
    outbox: Outbox
    partitions: Partitions
    buffer: Buffer
    faults: Faults
    reports: Reports
    obstacle: str = ""
    _checking: bool = False
    _check_until: int = 0  # the last block that the open request covers; later blocks need another one
    _check_at: float = 0.0

    def advance(self, now: float) -> None:
        """Ask for the ids of the topics of all sealed blocks that are not checked, unless a request is open."""
        if self._checking or now < self._check_at:
            return
        waiting = self.buffer.sealed.unchecked()
        if not waiting:
            return
        topics = sorted({part.tp.topic for sealed in waiting for part in sealed.pending.ranges if part.topic_id})
        self._check_until = waiting[-1].pending.sequence
        self._checking = True
        request = self.outbox.ask(inp.TopicIdsRead, now, self._read, self._failed)
        self.outbox.do(act.CheckTopicIds(request, tuple(topics)))

    def _failed(self, failure: Failed, now: float) -> None:
        self._checking = False
        self._check_at = now + self.settings.reclaim_delay
        self.outbox.counters["topic_checks_failed"] += 1
        if (
            failure.reason != self.obstacle
        ):  # no block is reported before the check, so the failure must be visible (INV-5)
            self.outbox.note(f"blocks wait for their topics' ids: {failure.reason}", warning=True)
        self.obstacle = failure.reason

    def _read(self, event: inp.TopicIdsRead, now: float) -> None:
        self._checking = False
        self.obstacle = ""
        recreated: dict[TopicPartition, str] = {}
        checked: list[int] = []
        for sealed in self.buffer.sealed.unchecked():
            if sealed.pending.sequence > self._check_until:
                break
            other = {
                part.tp: event.topic_ids.get(part.tp.topic, "deleted")
                for part in sealed.pending.ranges
                if part.topic_id and event.topic_ids.get(part.tp.topic, "deleted") not in ("", part.topic_id)
            }
            recreated.update(other)
            sealed.checked = not other
            if sealed.checked and sealed.stored is None:
                checked.append(sealed.pending.sequence)
        if checked:
            self.outbox.do(act.TopicsChecked(tuple(checked)))
        if recreated:
            self._withdraw(recreated, now)

    def _withdraw(self, recreated: dict[TopicPartition, str], now: float) -> None:
        self.reports.withdraw(self.buffer.sealed.unchecked()[0].pending.sequence, (), now)
        for tp, topic_id in recreated.items():
            partition = self.partitions.get(tp)
            if partition is not None:
                self.buffer.take_held(partition)  # these records may be of either topic
                partition.expected = partition.accepted
                detail = f"topic id was {partition.topic_id}, is {topic_id}"
                self.faults.enter(partition, "recreated", detail, now)
