"""Claims: which receiver takes in a partition, from which position, under which token."""

from __future__ import annotations

from driver.journal import events as ev
from driver.journal.state import ADOPTER
from driver.journal.state_parts import Partition
from driver.tracker.decision import Recorder
from driver.tracker.partitions.commands import Commands
from driver.tracker.partitions.writers import Writers
from forebay import messages as m
from forebay.model.values import TopicPartition


class Claims:
    """Gives and ends claims. A claim is given by compare-and-set on the partition's token."""

    def __init__(self, *, recorder: Recorder, commands: Commands, writers: Writers) -> None:
        self._recorder = recorder
        self._commands = commands
        self._writers = writers
        #: partitions that adoption has claimed → the receiver whose claim it ended, which is to claim again afterwards
        self._adopting: dict[TopicPartition, str] = {}
        #: partitions that can't be claimed before a reset → their owner before it
        self._held_for_reset: dict[TopicPartition, str] = {}

    def look_up(self, request: m.LookupRequest) -> m.LookupAnswer:
        """Return each partition's newest token, incarnation and position, which a receiver needs to claim it."""
        return m.LookupAnswer(partitions=tuple(self._view(tp) for tp in request.partitions))

    def claim(self, request: m.ClaimRequest) -> m.ClaimAnswer:
        """Give the claims that name the newest token, each under a new token."""
        grants = []
        for ask in request.claims:
            tp = TopicPartition(ask.topic, ask.partition)
            partition = self._recorder.state.partition(tp)
            granted = partition is not None and self._may_claim(partition, request.receiver_id, ask.known_token)
            if partition is not None and granted:
                self._writers.outdate(partition, request.receiver_id)
                self._recorder.apply(
                    ev.ClaimGiven(
                        topic=ask.topic,
                        partition=ask.partition,
                        receiver_id=request.receiver_id,
                        epoch=request.epoch,
                        token=self._recorder.state.next_token(),
                        claim=request.number,
                    )
                )
            grants.append(m.ClaimGrant(granted=granted, view=self._view(tp)))
        return m.ClaimAnswer(claims=tuple(grants))

    def release(self, request: m.ReleaseRequest) -> m.Done:
        """End the sender's claims under the named tokens; under an older token, record that it writes no more."""
        for release in request.releases:
            partition = self._recorder.state.partition(TopicPartition(release.topic, release.partition))
            if partition is not None and partition.token == release.token and partition.owner == request.receiver_id:
                self._recorder.apply(
                    ev.ClaimReleased(topic=release.topic, partition=release.partition, token=release.token)
                )
                if request.receiver_id == ADOPTER and (partition.fault is None or not partition.fault.kept):
                    self._commands.reclaim(self._adopting.pop(partition.tp, ""), partition.tp)
            elif partition is not None and partition.owner != request.receiver_id:
                given = (request.receiver_id, request.epoch, release.token)
                if given in ((writer.receiver_id, writer.epoch, writer.token) for writer in partition.writers):
                    self._writers.settle(partition, request.receiver_id, request.epoch)
        return m.Done()

    def owner_to_tell(self, partition: Partition) -> str:
        """Return the receiver that must claim ``partition`` again: its owner, or the receiver whose claim adoption has ended;
        "" if there is none."""
        return partition.owner or self._adopting.get(partition.tp, "")

    def resume(self, tp: TopicPartition, receiver_id: str) -> None:
        """Order ``receiver_id`` to claim ``tp`` again, after a fault was decided."""
        self._adopting.pop(tp, None)
        self._commands.reclaim(receiver_id, tp)

    def resume_later(self, tp: TopicPartition, receiver_id: str) -> None:
        """Remember that ``receiver_id`` must get the order to claim ``tp`` again, once adoption has finished there."""
        self._adopting[tp] = receiver_id

    def hold(self, tp: TopicPartition) -> bool:
        """Give no claim of ``tp`` until :meth:`end_hold`. Return False if claims of ``tp`` are held already."""
        if tp in self._held_for_reset:
            return False
        self._held_for_reset[tp] = self._recorder.state.partitions[str(tp)].owner
        return True

    def end_hold(self, tp: TopicPartition) -> None:
        """Give claims of ``tp`` again, and order the owner before the hold to claim it again."""
        self._commands.reclaim(self._held_for_reset.pop(tp, ""), tp)

    def _may_claim(self, partition: Partition, receiver_id: str, known_token: int) -> bool:
        # compare-and-set: a claim that was sent before another receiver's claim was given names an older token
        if partition.token != known_token or partition.tp in self._held_for_reset:
            return False
        if receiver_id == ADOPTER:
            self._adopting[partition.tp] = self.owner_to_tell(partition)
            return True
        # the adopter releases its claim soon: a claim now would only make it begin again
        return partition.owner != ADOPTER and (partition.fault is None or not partition.fault.kept)

    def _view(self, tp: TopicPartition) -> m.PartitionView:
        partition = self._recorder.state.partition(tp)
        if partition is None:
            return m.PartitionView(topic=tp.topic, partition=tp.partition, known=False)
        return m.PartitionView(
            topic=tp.topic,
            partition=tp.partition,
            known=True,
            token=partition.token,
            incarnation=partition.incarnation.number,
            position=partition.position,
            leader_epoch=partition.leader_epoch,
            topic_id=partition.incarnation.topic_id,
            preceding_gap=partition.preceding_gap,
        )
