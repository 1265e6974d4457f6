"""The receiver's state in one word and one sentence, for heartbeats and supervisors. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.process.reminder import Reminder
from receiver import inputs as inp
from receiver.machine.delivery.stores import Stores
from receiver.machine.exchange.contact import DriverContact
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.limits.flow import Flow
from receiver.machine.membership.partitions import Partitions
from receiver.machine.membership.registration import Registration
from receiver.machine.membership.shutdown import Shutdown
from receiver.machine.ownership.topic_check import TopicCheck


@dataclass(kw_only=True, slots=True, eq=False)
class Status:
    """Determines the receiver's state from the other parts. Stores only the newest error of the source itself."""

    outbox: Outbox
    contact: DriverContact
    registration: Registration
    shutdown: Shutdown
    flow: Flow
    stores: Stores
    partitions: Partitions
    topic_check: TopicCheck
    _source_error: str = ""
    _reminder: Reminder = field(default_factory=Reminder)

    @property
    def state(self) -> str:
        """starting | waiting | active | draining."""
        if self.shutdown.draining:
            return "draining"
        if not self.registration.epoch:
            return "starting"
        held_up = self.contact.silence or self.stores.held_up or self.topic_check.obstacle
        return "waiting" if held_up or not self.partitions else "active"

    @property
    def detail(self) -> str:
        """Why the receiver waits; "" if it does not, or waits only for the group to assign partitions."""
        if self.shutdown.failure:
            return f"ends: {self.shutdown.failure}"
        if self.stores.detail:
            return self.stores.detail
        if self.contact.silence:
            return f"driver out of reach: {self.contact.silence}"
        if self.registration.topics.detail:
            return self.registration.topics.detail
        if not self.partitions and self._source_error:
            return f"no partition assigned; {self.outbox.origin}: {self._source_error}"
        if self.topic_check.obstacle:
            return f"blocks wait for their topics' ids: {self.topic_check.obstacle}"
        return "memory is full, polling is paused" if self.flow.memory_is_full else ""

    def source_seen(self, event: inp.SourceSeen, now: float) -> None:
        for tp, offset in event.high_watermarks.items():
            if (partition := self.partitions.get(tp)) is not None:
                partition.high_watermark = offset
        message = f"{self.outbox.origin}: {event.error}"
        if event.error and self._reminder.is_due(now, event.error):
            self.outbox.note(message, warning=True)
        elif event.error and event.error != self._source_error:
            self.outbox.errors.add(message, now)  # status shows each, the log repeats them after growing delays
        elif self._source_error and not event.error:
            self.outbox.note(f"{self.outbox.origin} reports no error any more")
        self._source_error = event.error
