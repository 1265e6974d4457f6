"""How many receivers a stream knows, and what is kept of what each says of itself (INV-6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from driver.state import State
from forebay import messages as m
from forebay.errors import RefusedError
from forebay.values import TopicPartition, is_reserved

#: ids that the journal keeps; beyond them the oldest one makes room that never had a block accepted and holds nothing
RECEIVERS_MAX = 10_000
#: receivers whose last heartbeats are kept, and after which silence one of them makes room for another
HEARD_MAX, FORGOTTEN_SECONDS = 2_000, 3600.0


class _Heard(Protocol):
    @property
    def at(self) -> float: ...


def gives_way(state: State, receiver_id: str) -> str | None:
    """The id that the journal forgets when ``receiver_id`` registers; None while there is room, and where every id must stay."""
    if receiver_id in state.receivers or len(state.receivers) < RECEIVERS_MAX:
        return None
    busy = {writer.receiver_id for partition in state.partitions.values() for writer in partition.writers}
    busy |= {partition.owner for partition in state.partitions.values()}
    busy |= {ended.receiver_id for ended in state.unbarred}
    idle = (
        known.receiver_id
        for known in state.receivers.values()
        if not (known.accepted or known.segments or known.receiver_id in busy or is_reserved(known.receiver_id))
    )
    return next(idle, None)


def refuse_registration(state: State, receiver_id: str) -> None:
    """Raises RefusedError where the journal has no room for a new ``receiver_id``."""
    full = receiver_id not in state.receivers and len(state.receivers) >= RECEIVERS_MAX
    if full and gives_way(state, receiver_id) is None:
        raise RefusedError(
            f"receiver {receiver_id!r} is not registered: the stream knows {RECEIVERS_MAX} receiver ids, and each had a block "
            "accepted or holds a claim. Start receivers again under the ids that they had",
            "too-many",
        )


def makes_room(heard: Mapping[str, _Heard], receiver_id: str, now: float) -> str | None:
    """Of ``heard`` the id whose last heartbeat is forgotten for the first one of ``receiver_id``; None while there is room.
    Raises RefusedError."""
    if receiver_id in heard or len(heard) < HEARD_MAX:
        return None
    oldest = min(heard, key=lambda known: heard[known].at)
    if now - heard[oldest].at < FORGOTTEN_SECONDS:
        raise RefusedError(
            f"receiver {receiver_id!r}: {HEARD_MAX} receivers sent a heartbeat within the last {FORGOTTEN_SECONDS:g} s: the "
            "driver takes heartbeats of no more",
            "too-many",
        )
    return oldest


def kept(beat: m.HeartbeatRequest, state: State) -> m.HeartbeatRequest:
    """What of a heartbeat outlives its answer: of each partition of the stream one status, and the oldest token held."""
    statuses: dict[TopicPartition, m.PartitionStatus] = {}
    for status in beat.partitions:
        tp = TopicPartition(status.topic, status.partition)
        if state.partition(tp) is not None:
            statuses[tp] = msgspec.structs.replace(status, detail="") if status.detail else status
    held: dict[TopicPartition, m.Holding] = {}
    for one in beat.holding:
        tp = TopicPartition(one.topic, one.partition)
        if state.partition(tp) is not None and (tp not in held or one.token < held[tp].token):
            held[tp] = one
    return msgspec.structs.replace(
        beat, partitions=tuple(statuses.values()), holding=tuple(held.values()), refusing_hosts=()
    )
