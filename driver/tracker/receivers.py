"""Receivers: which ids are registered, under which epoch, the last heartbeat of each, and the rate at which each may take in
records."""

from __future__ import annotations

from driver.decisions.rate import is_significant
from driver.decisions.rate_sharing import Lags, RateSharing
from driver.journal import events as ev
from driver.journal.receiver_limits import (
    IdLimits,
    Presence,
    gives_way,
    kept,
    makes_room,
    refuse_registration,
    room_for,
)
from driver.tracker.blocks.replicas import Replicas
from driver.tracker.decision import Recorder
from driver.tracker.heartbeats import LastHeartbeat
from driver.tracker.names import check_names
from driver.tracker.partitions.commands import Commands
from driver.tracker.partitions.writers import Writers
from driver.tracker.requests import LearnRate
from forebay import messages as m
from forebay.model.errors import FencedError, UsageError
from forebay.model.identifiers import is_reserved
from forebay.model.values import TopicPartition


class Receivers:
    """Registers receivers and answers their heartbeats.

    ``latest``: receiver id → its last heartbeat. Other parts read it; only this class changes it. ``sharing``: how a learned
    rate is divided; None: receivers are held to no rate. ``id_limits``: how many ids the stream keeps.
    """

    def __init__(
        self,
        *,
        recorder: Recorder,
        driver_epoch: int,
        latest: dict[str, LastHeartbeat],
        commands: Commands,
        writers: Writers,
        replicas: Replicas,
        sharing: RateSharing | None,
        id_limits: IdLimits,
    ) -> None:
        self.latest = latest
        self.sharing = sharing
        self.id_limits = id_limits
        self.subscription: tuple[str, ...] | None = None  # as HeartbeatAnswer.topics; set by discovery
        self._recorder = recorder
        self._driver_epoch = driver_epoch
        self._commands = commands
        self._writers = writers
        self._replicas = replicas
        self._presence = Presence()

    def come_round(self, now: float) -> None:
        """Record that the decision loop is running at ``now``. A receiver's silence counts only while the loop runs."""
        self._presence.come_round(now)

    # ---- ids and epochs ----------------------------------------------------------------------------------------------

    def register(self, request: m.RegisterRequest, now: float) -> m.RegisterAnswer:
        """Give the process an epoch, which fences an earlier process of the same id. Raises FencedError, RefusedError."""
        state = self._recorder.state
        if request.stream != state.stream:
            raise UsageError(f"this driver leads stream {state.stream!r}, not {request.stream!r}")
        check_names(("receiver id", request.receiver_id), ("host", request.host))
        known = state.receivers.get(request.receiver_id)
        if known is not None and request.instance_id in known.past:
            # its request was late, or it slept: it must not end the claims of the process that registered after it (INV-4)
            raise FencedError(f"another process has registered as receiver {request.receiver_id!r} since this one did")
        if known is None or known.instance_id != request.instance_id:
            self._make_room(request.receiver_id, now)
            self._recorder.apply(
                ev.ReceiverRegistered(
                    receiver_id=request.receiver_id,
                    host=request.host,
                    instance_id=request.instance_id,
                    epoch=state.next_epoch(),
                )
            )
            self._forget(request.receiver_id)
        return m.RegisterAnswer(
            epoch=state.receivers[request.receiver_id].epoch,
            driver_epoch=self._driver_epoch,
            timeline=state.timeline,
            topics=self.subscription,
        )

    def check_epoch(self, receiver_id: str, epoch: int) -> None:
        """Raise FencedError unless ``epoch`` is the receiver's newest one."""
        known = self._recorder.state.receivers.get(receiver_id)
        if known is None:
            raise FencedError(f"receiver {receiver_id!r} is not registered with this driver: register first")
        if known.epoch != epoch:
            raise FencedError(
                f"receiver {receiver_id!r} has registered again since (epoch {known.epoch:x}, this is {epoch:x})"
            )

    def fence(self, receiver_id: str) -> None:
        """End the receiver's epoch."""
        fenced = ev.ReceiverFenced(receiver_id=receiver_id, epoch=self._recorder.state.next_epoch())
        self._forget(receiver_id)
        self._recorder.apply(fenced)

    def _make_room(self, receiver_id: str, now: float) -> None:
        """Forget ids and end epochs to make room for a new id. Raises RefusedError if there is none."""
        state = self._recorder.state
        room = room_for(state, receiver_id, self.id_limits, self.latest, self._presence, now)
        gone = (*room.forgotten, *room.fenced)
        if room.forgotten:
            self._recorder.apply(ev.ReceiversForgotten(room.forgotten))
        for one in room.fenced:
            self._recorder.apply(ev.ReceiverFenced(one, state.next_epoch()))
        refuse_registration(state, receiver_id)
        if (idle := gives_way(state, receiver_id)) is not None:
            gone = (*gone, idle)
        for one in gone:
            self._forget(one)

    def _forget(self, receiver_id: str) -> None:
        """Drop the commands and heartbeats of an epoch that has ended."""
        self._commands.forget(receiver_id)
        self._replicas.forget(receiver_id)
        self.latest.pop(receiver_id, None)
        if self.sharing is not None:
            self.sharing.forget(receiver_id)

    # ---- heartbeats --------------------------------------------------------------------------------------------------

    def heartbeat(self, request: m.HeartbeatRequest, now: float) -> m.HeartbeatAnswer:
        """Store the heartbeat, and answer with the receiver's commands and rates. Raises RefusedError if too many receivers
        send heartbeats."""
        receiver_id = request.receiver_id
        if (silent := makes_room(self.latest, receiver_id, now)) is not None:
            del self.latest[silent]
        self.latest[receiver_id] = LastHeartbeat(kept(request, self._recorder.state), now)
        self._commands.acknowledge(receiver_id, request.acknowledged)
        rates = self.sharing.changed_rates(receiver_id, self._lags, now) if self.sharing is not None else None
        if rates is not None:
            self._commands.order(receiver_id, "rate", rates=rates)
        answer = m.HeartbeatAnswer(
            driver_epoch=self._driver_epoch,
            commands=self._commands.open(receiver_id),
            replica_host=self._replicas.answer(request, now),
            topics=self.subscription,
        )
        self._writers.record_settled(receiver_id)
        return answer

    def begin_drain(self) -> tuple[str, ...]:
        """Order all registered receivers to drain, and return their ids."""
        known = self._recorder.state.receivers.values()
        ordered = tuple(sorted(r.receiver_id for r in known if r.instance_id and not is_reserved(r.receiver_id)))
        for receiver_id in ordered:
            self._commands.order(receiver_id, "drain")
        return ordered

    # ---- rates -------------------------------------------------------------------------------------------------------

    def learn_rate(self, request: LearnRate) -> None:
        """Share the new rate among receivers. It is journalled only if it makes a difference to the next driver."""
        if self.sharing is not None:
            self.sharing.change(request.rate)
        learned = self._recorder.state.learned
        if learned is None or is_significant(learned.rate, request.rate):
            self._recorder.apply(ev.RateLearned(request.rate, request.time_ms))

    def _lags(self) -> Lags:
        """Return the lags of the partitions that each receiver takes in: those that it owns and has not reported a fault of.

        The lag of a partition is None if its owner's heartbeat does not name it yet: it was just given the partition, or this
        driver has just started.
        """
        lags: dict[str, dict[TopicPartition, int | None]] = {receiver_id: {} for receiver_id in self.latest}
        said = {
            receiver_id: {TopicPartition(p.topic, p.partition): p for p in latest.heartbeat.partitions}
            for receiver_id, latest in self.latest.items()
        }
        for partition in self._recorder.state.partitions.values():
            if not partition.owner or is_reserved(partition.owner):
                continue
            tp, own = partition.tp, lags.setdefault(partition.owner, {})
            status = said.get(partition.owner, {}).get(tp)
            if status is None or status.state == "claiming" or status.high_watermark < 0:
                own[tp] = None
            elif status.state != m.FAULT_STATE:
                own[tp] = max(0, status.high_watermark - status.position)
        return lags
