"""Routes inputs to the parts of a receiver, collects their actions. Pure."""

from __future__ import annotations

from collections import Counter

from typing_extensions import assert_never

from forebay.model.values import TopicPartition
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.exchange.requests import Request
from receiver.machine.membership.registration import ReceiverIdentity
from receiver.machine.parts import Parts

#: an answer that did not come within so many times ``report_timeout`` is considered lost
ANSWER_PATIENCE = 3.0


class ReceiverMachine:
    """Decides for one process of one receiver id, from registration to exit. Not thread-safe.

    It follows "The rules" (docs/architecture/ownership.md). In production, the service's
    threads call it; in the simulation, a seeded scheduler calls the same code. It knows only its inputs. Each answer names the
    number of its request, so a late or repeated answer changes nothing.

    ``by_pattern``: topics come from ``kafka.pattern``.
    """

    parts_type: type[Parts] = Parts

    def __init__(self, identity: ReceiverIdentity, settings: ReceiverSettings, *, by_pattern: bool = False) -> None:
        self._settings = settings
        self._parts = self.parts_type(identity, settings, by_pattern=by_pattern)

    # ---- what the service may ask ------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of this process, 0 before it is registered."""
        return self._parts.registration.epoch

    @property
    def state(self) -> str:
        """starting | waiting | active | draining."""
        return self._parts.status.state

    @property
    def detail(self) -> str:
        """Why the receiver waits; "" if it does not, or waits only for the group to assign partitions."""
        return self._parts.status.detail

    @property
    def records(self) -> int:
        """Records in blocks that the driver accepted."""
        return self._parts.reports.records

    @property
    def counters(self) -> Counter[str]:
        """Events by name since the start."""
        return self._parts.outbox.counters

    @property
    def buffered_bytes(self) -> int:
        """Memory that records take (INV-6)."""
        return self._parts.buffer.weight_bytes

    @property
    def sealed_blocks(self) -> int:
        """Sealed blocks that the driver has not accepted yet."""
        return len(self._parts.buffer.sealed)

    @property
    def rate(self) -> float:
        """Maximum records per second, by a setting or a command of the driver; 0: no limit."""
        return self._parts.flow.throttle.rate

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that the group assigned to this receiver, claimed or not."""
        return tuple(partition.tp for partition in self._parts.partitions)

    def owns(self, tp: TopicPartition) -> bool:
        """Return whether the group assigned the partition to this receiver."""
        return tp in self._parts.partitions

    def is_current(self, tp: TopicPartition, generation: int) -> bool:
        """Return whether the start with this generation still applies. The group may have revoked the partition since."""
        partition = self._parts.partitions.get(tp)
        return partition is not None and partition.generation == generation

    def seconds_until_seal(self, now: float) -> float:
        """Return the seconds until the open block is sealed if no record is added; without an open block, until the
        poll must end."""
        return self._parts.buffer.seconds_until_seal(now)

    def seconds_until_poll(self, now: float) -> float:
        """Return how long the rate delays the next poll, unless all partitions are paused."""
        return self._parts.flow.seconds_until_poll(now)

    def poll_records_max(self, now: float) -> int:
        """Return how many records the next poll may return, so that memory stays within its limit (INV-6) and rates hold.

        0: do not poll until an input changes something, or until the rate allows it.
        """
        return self._parts.flow.poll_records_max(
            self._parts.partitions.reading, self._parts.buffer.weight_bytes, self._parts.poll_results.record_bytes, now
        )

    # ---- the one entry -----------------------------------------------------------------------------------------------

    def handle(self, event: inp.Input, now: float) -> list[act.Action]:
        """Return the actions that follow from ``event`` at ``now`` (seconds, never going back); none after an ``Exit``."""
        outbox = self._parts.outbox
        if outbox.ended:
            return []
        outbox.begin(now)
        self._route(event, now)
        self._advance(now)
        return outbox.take()

    def _route(self, event: inp.Input, now: float) -> None:
        parts = self._parts
        match event:
            case inp.Tick():
                parts.heartbeat.saw_polling(now)
            case inp.Polled():
                parts.heartbeat.saw_polling(now)
                parts.poll_results.polled(event, now)
            case inp.SourceSeen():
                parts.status.source_seen(event, now)
            case inp.BlockStored():
                parts.stores.stored(event, now)
            case inp.StoreAway():
                parts.stores.went_away(event, now)
            case inp.OutOfSpace():
                parts.stores.ran_out(event, now)
            case inp.StoreFailed() | inp.ThreadFailure():
                parts.outbox.exit(1, event.reason)
            case inp.Assigned():
                parts.assignment.assigned(event, now)
            case inp.Revoked():
                parts.assignment.revoked(event, now)
            case inp.Lost():
                parts.assignment.lost(event, now)
            case inp.CommitFailed():
                parts.commits.failed(event, now)
            case inp.CommitSynced() | inp.TopicIdsRead() | inp.Inspected():
                self._answered(event, now)
            case (
                inp.Registered()
                | inp.LookupAnswered()
                | inp.Claimed()
                | inp.Released()
                | inp.ReportAnswered()
                | inp.FaultAnswered()
                | inp.HeartbeatAnswered()
            ):
                if event.request in parts.requests:
                    parts.contact.answered()
                self._answered(event, now)
            case inp.BrokerFailed():
                if request := self._asked(event.request):
                    request.fail(event.reason, now)
            case inp.DriverFailed():
                if request := self._asked(event.request):
                    parts.contact.missed(event.reason)
                    request.fail(event.reason, now)
            case inp.Fenced():
                parts.registration.fenced(event)
            case inp.Misused():
                parts.outbox.exit(2, event.reason)
            case inp.SourceFailed():
                parts.shutdown.fail(event.reason, now)
            case inp.DrainRequested():
                parts.shutdown.begin(now)
            case _:
                assert_never(event)

    def _answered(self, event: inp.Answer, now: float) -> None:
        if request := self._asked(event.request):
            request.done(event, now)

    def _asked(self, number: int) -> Request | None:
        request = self._parts.requests.take(number)
        if request is None:  # late, or repeated
            self._parts.outbox.counters["stale_answers_dropped"] += 1
        return request

    def _advance(self, now: float) -> None:
        """Let each part do what is due. It runs after every input, so that no input has to know what it makes possible."""
        parts = self._parts
        if parts.outbox.ended:
            return
        for request in parts.requests.take_overdue(now - ANSWER_PATIENCE * self._settings.report_timeout):
            request.fail("no answer came", now)
        if not parts.registration.epoch:
            parts.registration.advance(now)
            return
        parts.buffer.seal_due(parts.shutdown.draining, now)
        parts.stores.advance(now)
        parts.topic_check.advance(now)
        parts.reports.advance(now)
        parts.faults.advance(now)
        parts.claims.advance(now)
        parts.assignment.advance(now)
        parts.commits.advance(now)
        parts.heartbeat.advance(now)
        if parts.shutdown.draining:
            parts.drain.advance(now)
        held_up = bool(parts.contact.silence or parts.stores.held_up or parts.shutdown.draining)
        parts.flow.balance(held_up, parts.partitions.reading, parts.buffer.weight_bytes, now)
