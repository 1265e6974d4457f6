"""Partitions that the group assigns, revokes or takes away (rule 6). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forebay.model.values import TopicPartition
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.delivery.buffer import Buffer
from receiver.machine.delivery.commits import CommitRetries
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.exchange.requests import Failed
from receiver.machine.limits.flow import Flow
from receiver.machine.membership.partition import Phase
from receiver.machine.membership.partitions import Partitions
from receiver.machine.ownership.claims import Claims


def names(partitions: Iterable[TopicPartition]) -> str:
    """Return the first eight partitions and the number of the others, for log notes."""
    texts = [str(tp) for tp in partitions]
    return ", ".join(texts[:8]) + (f" and {len(texts) - 8} more" if len(texts) > 8 else "")


@dataclass(kw_only=True, slots=True, eq=False)
class Assignment:
    """Adds and removes partitions as the group assigns and revokes them.

    A revocation waits until the records that were taken in are reported.
    """

    settings: ReceiverSettings
    outbox: Outbox
    flow: Flow
    partitions: Partitions
    buffer: Buffer
    commits: CommitRetries
    claims: Claims
    _revoking: tuple[TopicPartition, ...] = ()
    _deadline: float = 0.0  # when a revocation no longer waits

    def assigned(self, event: inp.Assigned, now: float) -> None:
        for tp in event.partitions:
            self._throw_away(tp)  # assigned again without a revocation: no state from before is trusted
            self.partitions.add(tp, now)
        if event.partitions:
            self.outbox.note(f"assigned: {names(event.partitions)}", partitions=event.partitions)

    def revoked(self, event: inp.Revoked, now: float) -> None:
        """Seal the open block, so that it is stored and reported before another receiver gets the partitions."""
        own = tuple(tp for tp in event.partitions if tp in self.partitions)
        if any(self.buffer.is_open(tp) for tp in own):
            self.buffer.seal(now)
        for tp in own:
            partition = self.partitions[tp]
            self.partitions.leave(partition, Phase.REVOKING, now)
            self.buffer.take_held(partition)  # it needs a new token, which this receiver may no longer claim
        if not event.partitions:
            self.outbox.do(act.RevocationDone(()))
        self._revoking = (*self._revoking, *event.partitions)
        self._deadline = now + self.settings.drain_timeout
        if own:
            self.outbox.note(f"revoked: {names(own)}", partitions=tuple(own))

    def lost(self, event: inp.Lost, now: float) -> None:
        """Drop the records that are not sealed, because another receiver may own the partitions already.

        Sealed blocks may still be reported. The driver accepts or refuses them by their tokens.
        """
        for tp in event.partitions:
            self._throw_away(tp)
        if event.partitions:
            self.outbox.note(f"lost: {names(event.partitions)}", warning=True, partitions=event.partitions)

    def advance(self, now: float) -> None:
        """End a revocation when all blocks are answered, or at its deadline."""
        if not self._revoking:
            return
        left = [tp for tp in self._revoking if tp in self.partitions and self.buffer.sealed.holds(tp)]
        if left and now < self._deadline:
            return
        if left:
            self.outbox.note(
                f"revocation: the deadline passed before the records of these partitions were reported: {names(left)}",
                warning=True,
            )
            self.outbox.counters["revocations_past_deadline"] += 1
        released = []
        for tp in self._revoking:
            partition = self.partitions.get(tp)
            if partition is not None:
                released.append(partition)
            self._throw_away(tp)
        done, self._revoking = self._revoking, ()
        self.outbox.do(act.RevocationDone(done))
        self.claims.release(released, now, self._released, self._release_failed)

    def _released(self, event: inp.Released, now: float) -> None:
        """Do nothing: by this request, the driver knows that no block is written under these tokens any more."""

    def _release_failed(self, failure: Failed, now: float) -> None:
        """Do nothing: the next heartbeat lists only the tokens under which the receiver may still write."""

    def _throw_away(self, tp: TopicPartition) -> None:
        self.buffer.forget(tp)
        self.partitions.remove(tp)
        self.commits.forget(tp)
        self.flow.forget(tp)
