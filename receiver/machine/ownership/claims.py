"""Rules 2 to 4: look up a partition's token and position, commit the position, claim, start. And release. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from forebay import messages
from forebay.model.values import TopicPartition
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.delivery.buffer import Buffer
from receiver.machine.delivery.commits import CommitRetries
from receiver.machine.exchange.contact import DriverContact
from receiver.machine.exchange.delays import retry_delay
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.exchange.requests import Failed
from receiver.machine.membership.partition import Partition, Phase
from receiver.machine.membership.partitions import Partitions
from receiver.machine.membership.registration import Registration
from receiver.machine.membership.shutdown import Shutdown
from receiver.sources.source import CommitPoint


@dataclass(kw_only=True, slots=True, eq=False)
class Claims:
    """Claims many partitions in one round of three requests. A partition that is refused waits, then begins a new round."""

    settings: ReceiverSettings
    outbox: Outbox
    contact: DriverContact
    registration: Registration
    shutdown: Shutdown
    partitions: Partitions
    buffer: Buffer
    commits: CommitRetries
    _sent: int = 0
    _open: dict[int, int] = field(default_factory=dict)  # request → number, of claims without an answer

    @property
    def done(self) -> int:
        """The number up to which no claim is open, for heartbeats."""
        return min(self._open.values()) - 1 if self._open else self._sent

    # ---- a round -----------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Begin a round for the partitions that wait for a claim and are due.

        During a drain, claim only partitions whose records must be cut again under a new token.
        """
        claiming = [
            partition
            for partition in self.partitions.due(now)
            if partition.phase is Phase.WAITING
            and (not self.shutdown.draining or partition.held_from >= 0)
            and not self.buffer.is_unanswered(partition.tp)
        ]
        if claiming:
            self._look_up(claiming, now)

    def _look_up(self, claiming: Sequence[Partition], now: float) -> None:
        request = self.outbox.ask(inp.LookupAnswered, now, self._lookup_answered, self._failed)
        for partition in claiming:
            partition.phase = Phase.LOOKING
            partition.request = request
        message = messages.LookupRequest(
            receiver_id=self.registration.receiver_id,
            epoch=self.registration.epoch,
            partitions=tuple(partition.tp for partition in claiming),
        )
        self.outbox.do(act.Lookup(request, message))

    def _lookup_answered(self, event: inp.LookupAnswered, now: float) -> None:
        views = {view.tp: view for view in event.views}
        positions: dict[TopicPartition, CommitPoint] = {}
        committing = []
        for partition in self.partitions.waiting_for(event.request):
            view = views.get(partition.tp)
            if view is None or not view.known:
                # The driver has not begun its first incarnation: it searches for new partitions at intervals.
                self.partitions.put_off(partition, "the driver does not know the partition yet", now)
                continue
            partition.looked = view
            partition.phase = Phase.COMMITTING
            metadata = self.commits.metadata(view.incarnation)
            positions[partition.tp] = CommitPoint(view.position, view.leader_epoch, metadata)
            committing.append(partition)
        if not committing:
            return
        # Rule 4: only a member of the group's current generation can commit. A process that was suspended and wakes up
        # still has its local assignment, but its commit fails, so it never takes a token from the rightful owner. The
        # position that is committed is durable (INV-1).
        request = self.outbox.ask(inp.CommitSynced, now, self._committed, self._failed)
        for partition in committing:
            partition.request = request
        self.outbox.do(act.CommitSync(request, positions))

    def _committed(self, event: inp.CommitSynced, now: float) -> None:
        claiming = []
        for partition in self.partitions.waiting_for(event.request):
            error = event.errors.get(partition.tp)
            if error is not None:
                self.partitions.put_off(
                    partition, f"{self.outbox.origin} refused the commit of its position: {error}", now
                )
            else:
                claiming.append(partition)
        if claiming:
            self.commits.reset_delay()
            self._claim(claiming, now)

    def _claim(self, claiming: Sequence[Partition], now: float) -> None:
        self._sent += 1
        request = self.outbox.ask(inp.Claimed, now, self._claimed, self._claim_failed)
        self._open[request] = self._sent
        asks = []
        for partition in claiming:
            assert partition.looked is not None
            partition.phase = Phase.CLAIMING
            partition.request = request
            # Compare-and-set: a claim that arrives after another receiver's names an older token and changes nothing.
            asks.append(
                messages.ClaimAsk(
                    topic=partition.tp.topic, partition=partition.tp.partition, known_token=partition.looked.token
                )
            )
        message = messages.ClaimRequest(
            receiver_id=self.registration.receiver_id,
            epoch=self.registration.epoch,
            claims=tuple(asks),
            number=self._sent,
        )
        self.outbox.do(act.Claim(request, message))

    def _claimed(self, event: inp.Claimed, now: float) -> None:
        del self._open[event.request]
        grants = {grant.view.tp: grant for grant in event.grants}
        starting = []
        for partition in self.partitions.waiting_for(event.request):
            grant = grants.get(partition.tp)
            if grant is None or not grant.granted:
                self.outbox.counters["claims_refused"] += 1
                self.partitions.put_off(partition, "the driver refused its claim: another claim came first", now)
                continue
            self.outbox.counters["claims_granted"] += 1
            self._granted(partition, grant.view, now)
            starting.append(partition)
        self.partitions.start(starting, now)

    def _granted(self, partition: Partition, view: messages.PartitionView, now: float) -> None:
        held_from, held_until = partition.held_from, partition.expected
        same_incarnation = partition.incarnation == view.incarnation
        held = self.buffer.take_held(partition)
        partition.grant(view)
        # Rule 4: only records that continue at the granted position are cut again (INV-2). In another incarnation the same
        # offsets mean other records.
        if held_from >= 0 and same_incarnation and held_from <= view.position < held_until:
            self.buffer.cut_again(partition, held, held_until, now)

    def _claim_failed(self, failure: Failed, now: float) -> None:
        del self._open[failure.request]
        self._failed(failure, now)

    def _failed(self, failure: Failed, now: float) -> None:
        for partition in self.partitions.waiting_for(failure.request):
            delay = retry_delay(self.settings.reclaim_delay, max(1, self.contact.failures))
            self.partitions.leave(partition, Phase.WAITING, now + delay)
            partition.detail = failure.reason

    # ---- commands, and the end of a claim ----------------------------------------------------------------------------

    def reclaim(self, tp: TopicPartition, now: float) -> None:
        """Claim the partition again, by order of the driver. Open and sealed blocks are reported first, under their old token."""
        partition = self.partitions.get(tp)
        if partition is None:
            return
        if partition.phase in (Phase.ACTIVE, Phase.INSPECTING, Phase.FAULT):
            self.partitions.leave(partition, Phase.WAITING, now)
        elif partition.phase is Phase.WAITING:
            partition.due = now

    def release(
        self,
        partitions: Iterable[Partition],
        now: float,
        done: Callable[[inp.Released, float], None],
        failed: Callable[[Failed, float], None],
    ) -> int:
        """Release the tokens, under which no block is written any more. Return the request's number; 0 if none is needed.

        A partition is omitted if it was never claimed, or if a store may still write a block of it.
        """
        releases = tuple(
            messages.Release(topic=partition.tp.topic, partition=partition.tp.partition, token=partition.token)
            for partition in partitions
            if partition.token and not self.buffer.sealed.may_write(partition.tp)
        )
        if not releases:
            return 0
        request = self.outbox.ask(inp.Released, now, done, failed)
        message = messages.ReleaseRequest(
            receiver_id=self.registration.receiver_id, epoch=self.registration.epoch, releases=releases
        )
        self.outbox.do(act.Release(request, message))
        return request
