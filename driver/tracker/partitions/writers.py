"""Writers of a partition: which receivers may still write a block under one of its tokens, and which have reported that they
can't."""

from __future__ import annotations

from collections.abc import Mapping

from driver.journal import events as ev
from driver.journal.state import ADOPTER, State
from driver.journal.state_parts import Partition, Writer
from driver.tracker.decision import Recorder
from driver.tracker.heartbeats import LastHeartbeat
from forebay.model.values import TopicPartition


class Writers:
    """A writer is *settled* when no block under its token can be synced any more.

    A writer whose epoch has ended, or that released its token, is not among ``Partition.writers`` any more. Any other writer is
    settled by its own heartbeat, sent after it knew of the claim. ``receiver_heartbeats``: receiver id → its last
    heartbeat. The end of an epoch drops its writers and its heartbeat, and the driver refuses later heartbeats of that epoch, so
    a writer and the stored heartbeat of its receiver have the same epoch.
    """

    def __init__(self, *, recorder: Recorder, receiver_heartbeats: Mapping[str, LastHeartbeat]) -> None:
        self._recorder = recorder
        self._receiver_heartbeats = receiver_heartbeats
        #: receiver id → partitions where it may write under a token that another receiver's claim has ended
        self._outdated = _outdated(recorder.state)

    def unsettled(self, partition: Partition) -> list[Writer]:
        """Return the writers that may still sync a block under a token of ``partition``."""
        return [writer for writer in partition.writers if not self._is_settled(writer, partition.tp)]

    def is_holding(self, writer: Writer, tp: TopicPartition) -> bool:
        """Return whether the receiver still uses the writer's token of ``tp`` or an older one, according to its last
        heartbeat."""
        latest = self._receiver_heartbeats.get(writer.receiver_id)
        return latest is not None and any(
            (held.topic, held.partition) == (tp.topic, tp.partition) and held.token <= writer.token
            for held in latest.heartbeat.holding
        )

    def outdate(self, partition: Partition, new_owner: str) -> None:
        """Record the partition's writers, before ``new_owner`` gets a newer token."""
        for writer in partition.writers:
            if writer.receiver_id != new_owner:
                self._outdated.setdefault(writer.receiver_id, set()).add(partition.tp)

    def record_settled(self, receiver_id: str) -> None:
        """Journal, after a heartbeat, under which outdated tokens the receiver can't write any more.

        The first such heartbeat is journalled, because the receiver or this driver may end before the next one.
        """
        outdated = self._outdated.get(receiver_id, set())
        for tp in sorted(outdated):
            partition = self._recorder.state.partitions[str(tp)]
            writer = next((writer for writer in partition.writers if writer.receiver_id == receiver_id), None)
            if writer is not None and partition.owner != receiver_id:
                if not self._is_settled(writer, tp):
                    continue
                self.settle(partition, receiver_id, writer.epoch)
            outdated.discard(tp)

    def settle(self, partition: Partition, receiver_id: str, epoch: int) -> None:
        """Journal that this epoch of the receiver can't write under its token of ``partition`` any more."""
        self._recorder.apply(
            ev.WriterSettled(topic=partition.topic, partition=partition.partition, receiver_id=receiver_id, epoch=epoch)
        )

    def _is_settled(self, writer: Writer, tp: TopicPartition) -> bool:
        if writer.receiver_id == ADOPTER:
            return False  # it sends no heartbeats, and releases what it claims
        latest = self._receiver_heartbeats.get(writer.receiver_id)
        if latest is None or latest.heartbeat.claims_done < writer.claim:
            return False
        return not self.is_holding(writer, tp)


def _outdated(state: State) -> dict[str, set[TopicPartition]]:
    found: dict[str, set[TopicPartition]] = {}
    for partition in state.partitions.values():
        for writer in partition.writers:
            if writer.receiver_id != partition.owner:
                found.setdefault(writer.receiver_id, set()).add(partition.tp)
    return found
