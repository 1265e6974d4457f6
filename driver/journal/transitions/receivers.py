"""Events of receivers: registration, claims, and what may still be written under older tokens."""

from __future__ import annotations

import msgspec

from driver.journal import events as ev
from driver.journal.receiver_limits import claiming, gives_way
from driver.journal.state import BrokenInvariant, State
from driver.journal.state_parts import EndedEpoch, Receiver, Writer
from driver.journal.transitions.partition import drop_writers, end_claim, partition_of
from wal.segments.layout import BlockPlace, parse_block

#: superseded instances of a receiver that the state keeps
PAST_INSTANCES = 16
#: ended epochs that the state keeps until they have a barrier; nothing that older epochs sent can land any more
UNBARRED_MAX = 256
#: ended epochs whose segments a search looks up by name; those of older ones it finds only in the store's listing
ENDED_MAX = 1_024


def receiver_registered(state: State, event: ev.ReceiverRegistered) -> None:
    _begin_epoch(state, event.receiver_id, event.epoch, event.host, event.instance_id)


def receiver_fenced(state: State, event: ev.ReceiverFenced) -> None:
    _begin_epoch(state, event.receiver_id, event.epoch, state.receivers[event.receiver_id].host, "")


def receivers_forgotten(state: State, event: ev.ReceiversForgotten) -> None:
    needed = claiming(state)
    for receiver_id in event.receiver_ids:
        if receiver_id in needed:
            raise BrokenInvariant(f"receiver {receiver_id} was forgotten while it may write under a token (INV-4)")
        _end_epoch(state, state.receivers.pop(receiver_id))


def _begin_epoch(state: State, receiver_id: str, epoch: int, host: str, instance_id: str) -> None:
    if epoch != state.next_epoch():
        raise BrokenInvariant(f"epoch {epoch} of receiver {receiver_id} is not the next one (INV-4)")
    state.epochs += 1
    if (forgotten := gives_way(state, receiver_id)) is not None:
        _end_epoch(state, state.receivers.pop(forgotten))
    older = state.receivers.get(receiver_id)
    if older is not None:
        ended = _end_epoch(state, older)
        if any(w.receiver_id == receiver_id for p in state.partitions.values() for w in p.writers):
            state.unbarred = [*state.unbarred, ended][-UNBARRED_MAX:]
    for partition in state.partitions.values():
        if partition.owner == receiver_id:
            end_claim(partition)
        drop_writers(partition, receiver_id)
    past = (older.instance_id, *older.past) if older is not None and older.instance_id else older.past if older else ()
    state.receivers[receiver_id] = Receiver(
        receiver_id=receiver_id,
        epoch=epoch,
        host=host,
        instance_id=instance_id,
        past=past[:PAST_INSTANCES],
    )


def _end_epoch(state: State, receiver: Receiver) -> EndedEpoch:
    ended = EndedEpoch(receiver.receiver_id, receiver.epoch, receiver.segments)
    if receiver.claimed or receiver.segments:  # else it never wrote
        state.ended_epochs = [*state.ended_epochs, ended][-ENDED_MAX:]
    return ended


def claim_given(state: State, event: ev.ClaimGiven) -> None:
    if event.token != state.next_token():
        raise BrokenInvariant(f"token {event.token} is not the next one (INV-4)")
    receiver = state.receivers.get(event.receiver_id)
    if receiver is None or receiver.epoch != event.epoch:
        raise BrokenInvariant(f"token {event.token} was given to an outdated epoch of {event.receiver_id} (INV-4)")
    state.tokens += 1
    receiver.claimed = True
    partition = partition_of(state, event.topic, event.partition)
    partition.token = event.token
    partition.owner = event.receiver_id
    partition.owner_epoch = event.epoch
    drop_writers(partition, event.receiver_id)
    partition.writers.append(Writer(event.receiver_id, event.epoch, event.token, event.claim))


def claim_released(state: State, event: ev.ClaimReleased) -> None:
    partition = partition_of(state, event.topic, event.partition)
    if partition.token != event.token:
        raise BrokenInvariant(f"an outdated token of {partition.tp} was released (INV-4)")
    drop_writers(partition, partition.owner)
    end_claim(partition)


def writer_settled(state: State, event: ev.WriterSettled) -> None:
    partition = partition_of(state, event.topic, event.partition)
    if partition.owner == event.receiver_id:
        raise BrokenInvariant(
            f"{event.receiver_id} owns {partition.tp}, so its writes to the partition may not be over (INV-4)"
        )
    drop_writers(partition, event.receiver_id)


def epoch_barred(state: State, event: ev.EpochBarred) -> None:
    state.unbarred = [e for e in state.unbarred if (e.receiver_id, e.epoch) != (event.receiver_id, event.epoch)]


def count_segment(state: State, path: str) -> None:
    """Record that an epoch has, or had, the segment at ``path``: barriers and searches need the names after it."""
    place = parse_block(path)
    if place is None:
        return
    receiver = state.receivers.get(place.receiver)
    if receiver is not None and receiver.epoch == place.epoch:
        receiver.segments = max(receiver.segments, place.sequence)
        return
    state.unbarred = [_counted(ended, place) for ended in state.unbarred]
    state.ended_epochs = [_counted(ended, place) for ended in state.ended_epochs]


def delete_segment(state: State, path: str) -> None:
    """Record that the segment at ``path`` is to be deleted: its writer may not have reported all of its blocks."""
    place = parse_block(path)
    receiver = state.receivers.get(place.receiver) if place is not None else None
    if place is not None and receiver is not None and receiver.epoch == place.epoch:
        receiver.deleted = max(receiver.deleted, place.sequence)


def _counted(ended: EndedEpoch, place: BlockPlace) -> EndedEpoch:
    if (ended.receiver_id, ended.epoch) != (place.receiver, place.epoch) or place.sequence <= ended.segments:
        return ended
    return msgspec.structs.replace(ended, segments=place.sequence)
