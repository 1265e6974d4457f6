"""Heartbeats: what they report to the driver, and the commands in its answers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay import messages
from forebay.model.bounds import NUMBER_MAX, TEXT_LENGTH_MAX
from forebay.process.restarts import RESTART
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.control.drain import Drain
from receiver.machine.control.status import Status
from receiver.machine.delivery.buffer import Buffer
from receiver.machine.delivery.reports import Reports
from receiver.machine.delivery.stores import Stores
from receiver.machine.exchange.contact import DriverContact
from receiver.machine.exchange.delays import retry_delay
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.exchange.requests import Failed
from receiver.machine.limits.flow import Flow
from receiver.machine.membership.partition import HOLDING, Partition, Phase
from receiver.machine.membership.partitions import Partitions
from receiver.machine.membership.registration import Registration
from receiver.machine.membership.shutdown import Shutdown
from receiver.machine.ownership.claims import Claims

#: a polling thread that made no progress for longer than this hangs; a synchronous commit may take as long
POLL_PATIENCE_SECONDS = 5.0


@dataclass(kw_only=True, slots=True, eq=False)
class Commands:
    """Performs the driver's commands. The driver repeats a command until it is acknowledged; it is performed once."""

    outbox: Outbox
    contact: DriverContact
    flow: Flow
    shutdown: Shutdown
    claims: Claims
    drain: Drain

    def obey(self, commands: Sequence[messages.Command], now: float) -> None:
        for command in sorted(commands, key=lambda c: c.version):
            if command.driver_epoch < self.contact.epoch:  # INV-4: from an older driver that was suspended and woke up
                self.outbox.counters["commands_refused"] += 1
            elif command.version > self.contact.acknowledged:
                self.contact.acknowledged = command.version
                self._obey(command, now)

    def _obey(self, command: messages.Command, now: float) -> None:
        if command.kind == "rate":
            self.flow.throttle.learn(command.rates, now)
            return
        self.contact.beat_at = now  # acknowledge it immediately: the process may be about to end
        self.outbox.note(f"command of the driver: {command.kind}", command=command.kind)
        if command.kind == "reclaim":
            for tp in command.partitions:
                self.claims.reclaim(tp, now)
        elif command.kind == "drain":
            self.shutdown.begin(now)
        elif command.kind == RESTART:
            self.shutdown.begin(now, restarts=True)
        elif command.kind == "stop":
            self.drain.stop(now)


@dataclass(kw_only=True, slots=True, eq=False)
class Heartbeat:
    """Sends one heartbeat at a time. None is sent while the polling thread hangs, so the driver notices it."""

    version: str
    settings: ReceiverSettings
    outbox: Outbox
    contact: DriverContact
    registration: Registration
    flow: Flow
    stores: Stores
    partitions: Partitions
    buffer: Buffer
    claims: Claims
    reports: Reports
    status: Status
    commands: Commands
    _open: bool = False
    _polled_at: float = 0.0

    def saw_polling(self, now: float) -> None:
        """Note that the polling thread makes progress."""
        self._polled_at = now

    def advance(self, now: float) -> None:
        """Send a heartbeat if one is due."""
        if self._open or now < self.contact.beat_at or now - self._polled_at > POLL_PATIENCE_SECONDS:
            return
        self._open = True
        self.contact.beat_at = now + self.settings.heartbeat_interval
        storing = tuple(self.buffer.sealed.not_stored())
        message = messages.HeartbeatRequest(
            receiver_id=self.registration.receiver_id,
            epoch=self.registration.epoch,
            state=self.status.state,
            detail=self.status.detail[:TEXT_LENGTH_MAX],
            acknowledged=self.contact.acknowledged,
            release=self.version,
            buffered_bytes=self.buffer.weight_bytes,
            records=self.reports.records,
            counters=dict(self.outbox.counters),
            partitions=tuple(self._partition_status(partition) for partition in self.partitions),
            claims_done=self.claims.done,
            holding=self._holding(),
            rate=self.flow.throttle.rate,
            errors=self.outbox.errors.notes(now),
            open_seconds=round(self.buffer.open_seconds(now), 3),
            # a custom source may skip many offsets
            open_records=min(NUMBER_MAX, self.buffer.open_offsets),
            storing_seconds=round(now - storing[0].sealed_at, 3) if storing else 0.0,
            storing_records=min(NUMBER_MAX, sum(sealed.pending.offsets for sealed in storing)),
            store_seconds=round(self.stores.seconds, 3),
        )
        request = self.outbox.ask(inp.HeartbeatAnswered, now, self._answered, self._failed)
        self.outbox.do(act.Heartbeat(request, message))

    def _holding(self) -> tuple[messages.Holding, ...]:
        """Return every token under which the receiver may still write.

        A token that is missing here never returns. After a partition stopped taking in records under a token, only a new claim,
        with a new token, starts it again. A block that left the stores does not go back to them.
        """
        under = {
            (partition.tp, partition.token)
            for partition in self.partitions
            if partition.phase in HOLDING or self.buffer.is_open(partition.tp)
        }
        under |= self.buffer.sealed.written_under
        return tuple(
            messages.Holding(topic=tp.topic, partition=tp.partition, token=token) for tp, token in sorted(under)
        )

    def _partition_status(self, partition: Partition) -> messages.PartitionStatus:
        if partition.phase is Phase.ACTIVE:
            state = "paused" if self.flow.all_paused else "active"
        elif partition.fault or partition.phase is Phase.INSPECTING:
            state = messages.FAULT_STATE
        else:
            state = "claiming"
        return messages.PartitionStatus(
            topic=partition.tp.topic,
            partition=partition.tp.partition,
            token=partition.token,
            state=state,
            position=partition.expected,
            high_watermark=partition.high_watermark,
            detail=partition.detail[:TEXT_LENGTH_MAX],
            rate=self.flow.throttle.rate_of(partition.tp),
        )

    def _failed(self, failure: Failed, now: float) -> None:
        self._open = False
        delay = retry_delay(self.settings.reclaim_delay, self.contact.failures)
        self.contact.beat_at = now + max(self.settings.heartbeat_interval, delay)

    def _answered(self, event: inp.HeartbeatAnswered, now: float) -> None:
        self._open = False
        if event.driver_epoch > self.contact.epoch:
            # The rates of the driver before it no longer hold. The same answer has the new ones.
            self.flow.throttle.learn(None, now)
        if event.driver_epoch >= self.contact.epoch:
            if event.replica_host is not None:
                self.stores.replicate_to(event.replica_host)
            self.registration.follow(event.topics)
        self.contact.see(event.driver_epoch)
        self.commands.obey(event.commands, now)
