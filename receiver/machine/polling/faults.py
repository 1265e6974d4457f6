"""Rule 8: partitions whose log does not continue at their position. The driver decides what follows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay import messages
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.delivery.buffer import Buffer
from receiver.machine.exchange.contact import DriverContact
from receiver.machine.exchange.delays import retry_delay
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.exchange.requests import Failed
from receiver.machine.membership.partition import Partition, Phase
from receiver.machine.membership.partitions import Partitions
from receiver.machine.membership.registration import Registration
from receiver.machine.membership.shutdown import Shutdown
from receiver.machine.polling import gaps

#: a fault that an operator has to decide is reported again after this many times ``reclaim_delay``
FAULT_REPEAT = 10


@dataclass(kw_only=True, slots=True, eq=False)
class Faults:
    """Owns the fault of each partition in the phases ``INSPECTING`` and ``FAULT``."""

    settings: ReceiverSettings
    outbox: Outbox
    contact: DriverContact
    registration: Registration
    shutdown: Shutdown
    partitions: Partitions
    buffer: Buffer

    def enter(self, partition: Partition, kind: str, detail: str, now: float, end: int = -1) -> None:
        """Stop reading the partition. ``kind``: as in ``messages.Fault``. ``end``: see ``Partition.fault_end``."""
        partition.fault = kind
        partition.fault_end = end
        partition.detail = detail
        self.outbox.counters["troubles"] += 1
        self.partitions.leave(partition, Phase.FAULT, now)
        message = f"{partition.tp}: fault at offset {partition.expected}: {kind} ({detail})"
        self.outbox.note(message, warning=True, partition=partition.tp, offset=partition.expected, fault=kind)

    def advance(self, now: float) -> None:
        """Ask the broker about each partition that is due."""
        if self.shutdown.draining:
            return
        for partition in self.partitions.due(now):
            faulty = partition.phase is Phase.INSPECTING or partition.phase is Phase.FAULT
            if faulty and not self.buffer.is_unanswered(partition.tp):
                partition.request = self.outbox.ask(inp.Inspected, now, self._inspected, self._failed)
                self.outbox.do(act.Inspect(partition.request, partition.tp))

    def _failed(self, failure: Failed, now: float) -> None:
        for partition in self.partitions.waiting_for(failure.request):
            partition.refusals += 1
            partition.request = 0
            partition.due = now + retry_delay(self.settings.reclaim_delay, partition.refusals)
            partition.detail = failure.reason

    def _inspected(self, event: inp.Inspected, now: float) -> None:
        for partition in self.partitions.waiting_for(event.request):
            partition.request = 0
            partition.expected = partition.accepted  # all that was taken in before is answered
            if partition.topic_id and event.topic_id and event.topic_id != partition.topic_id:
                partition.fault = "recreated"
                partition.fault_topic_id = event.topic_id
            elif partition.fault == "recreated" and partition.topic_id and event.topic_id == partition.topic_id:
                partition.fault = ""
                self.partitions.put_off(partition, "the topic is the same as before", now)
                continue
            if partition.phase is Phase.INSPECTING and not partition.fault:
                verdict = gaps.judge(
                    at_start=True, confirmed=False, log_begins_after_position=event.low > partition.expected
                )
                if verdict is not gaps.GapVerdict.LOST:
                    self.partitions.start([partition], now)
                    continue
                partition.fault = "out-of-range"
            inside = event.low <= partition.expected <= event.high
            if partition.fault == "out-of-range" and inside:
                # The error of a moment ago no longer holds: nothing is missing, so read on.
                partition.fault = ""
                self.partitions.put_off(partition, "the position is inside the log again", now)
                continue
            partition.phase = Phase.FAULT
            self._report(partition, event, now)

    def _report(self, partition: Partition, seen: inp.Inspected, now: float) -> None:
        partition.request = self.outbox.ask(inp.FaultAnswered, now, self._answered, self._failed)
        message = messages.Fault(
            receiver_id=self.registration.receiver_id,
            epoch=self.registration.epoch,
            topic=partition.tp.topic,
            partition=partition.tp.partition,
            token=partition.token,
            kind=partition.fault,
            position=partition.expected,
            low=seen.low,
            # A log cut back below the position may have grown past it again, with other records. What follows the place
            # where it was cut is new (INV-5).
            high=min(seen.high, partition.fault_end) if partition.fault_end >= 0 else seen.high,
            topic_id=partition.fault_topic_id or seen.topic_id,
        )
        self.outbox.do(act.SendFault(partition.request, message))
        self.contact.beat_at = now  # the driver decides when a heartbeat says that nothing is held under the token

    def _answered(self, event: inp.FaultAnswered, now: float) -> None:
        for partition in self.partitions.waiting_for(event.request):
            partition.request = 0
            if event.proceed:
                self.outbox.note(f"{partition.tp}: {event.message}")
                self.partitions.leave(partition, Phase.WAITING, now)
                continue
            if partition.detail != event.message:
                self.outbox.note(event.message, warning=True)
            partition.detail = event.message
            partition.due = now + FAULT_REPEAT * self.settings.reclaim_delay
