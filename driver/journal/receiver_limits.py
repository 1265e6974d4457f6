"""How many receivers a stream knows, and what is kept of what each says of itself (INV-6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from driver.journal.state import State
from forebay import messages as m
from forebay.model.errors import RefusedError
from forebay.model.values import TopicPartition, is_reserved

#: ids that the journal keeps; beyond them the oldest one makes room that never had a block accepted and holds nothing
RECEIVERS_MAX = 10_000
#: ids at which the status shows a problem: forgetting does not keep up
RECEIVERS_SHOWN = 9_500
#: receivers whose last heartbeats are kept, and after which silence one of them makes room for another
HEARD_MAX, FORGOTTEN_SECONDS = 2_000, 3600.0


class _Heard(Protocol):
    @property
    def at(self) -> float: ...


@dataclass(frozen=True, slots=True)
class IdLimits:
    """From ``kept`` ids on a new one makes the driver forget up to ``at_once`` others. An id can be forgotten if it has no claim,
    no block of it is left, and the driver did not hear it for ``silent_seconds`` in which it was there to hear it."""

    kept: int = 9_000
    silent_seconds: float = 600.0
    at_once: int = 100


class Presence:
    """Since when the deciding thread has come round without a break: only then is silence a receiver's."""

    #: a longer pause between two decisions is a break: the journal waited for space, say
    BREAK_SECONDS = 60.0

    def __init__(self) -> None:
        self._since = self._last = float("-inf")

    def come_round(self, now: float) -> None:
        if now - self._last > self.BREAK_SECONDS:
            self._since = now
        self._last = now

    def silence(self, heard_at: float | None, now: float) -> float:
        """Return for how many seconds nothing was heard; ``heard_at``: the last time, None: never."""
        return now - (self._since if heard_at is None else max(self._since, heard_at))


def claiming(state: State) -> set[str]:
    """Return the ids that own a partition, may still write under a token, or had such an epoch that is not barred yet."""
    found = {writer.receiver_id for partition in state.partitions.values() for writer in partition.writers}
    found |= {partition.owner for partition in state.partitions.values()}
    found |= {ended.receiver_id for ended in state.unbarred}
    return found


class Room(NamedTuple):
    """What the journal does when a new id registers: ids that it forgets, and ids whose epochs it ends, so that it can forget
    them later. In both those come first that registered longest ago."""

    forgotten: tuple[str, ...] = ()
    fenced: tuple[str, ...] = ()


def room_for(
    state: State, receiver_id: str, limits: IdLimits, heard: Mapping[str, _Heard], presence: Presence, now: float
) -> Room:
    """Return which ids make room when ``receiver_id`` registers.

    The journal needs nothing of a forgotten id: epochs are counted for the whole stream, so one that comes back gets a higher
    epoch than it ever had, and what an older process of it still writes is fenced (``driver.journal.state.is_forgotten``).

    A receiver that was killed never says that it can't write any more. Its epoch ends as if it had registered again, unless it
    owns a partition, or a person has to decide about a partition of which it may write.
    """
    if receiver_id in state.receivers or len(state.receivers) < limits.kept:
        return Room()
    silent = sorted(
        (
            known.epoch,
            name,
        )
        for name, known in state.receivers.items()
        if not is_reserved(name)
        and presence.silence(heard[name].at if name in heard else None, now) >= limits.silent_seconds
    )
    needed = claiming(state)
    needed |= {block.meta.receiver_id for block in state.blocks.values()}
    partitions = state.partitions.values()
    writing = {writer.receiver_id for partition in partitions for writer in partition.writers}
    writing -= {partition.owner for partition in partitions}
    writing -= {writer.receiver_id for partition in partitions if partition.fault for writer in partition.writers}
    return Room(
        tuple(name for _, name in silent if name not in needed)[: limits.at_once],
        tuple(name for _, name in silent if name in writing)[: limits.at_once],
    )


def shortage(state: State) -> str:
    """Return, if the stream knows almost as many receiver ids as it can, how many these are, in words; else ""."""
    known = len(state.receivers)
    if known < RECEIVERS_SHOWN:
        return ""
    return f"the stream knows {known} receiver ids; at {RECEIVERS_MAX} it takes no new one"


def gives_way(state: State, receiver_id: str) -> str | None:
    """The id that the journal forgets when ``receiver_id`` registers; None while there is room, and where every id must stay."""
    if receiver_id in state.receivers or len(state.receivers) < RECEIVERS_MAX:
        return None
    busy = claiming(state)
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
            f"receiver {receiver_id!r} is not registered: the stream knows {RECEIVERS_MAX} receiver ids, and each holds a claim, "
            "has blocks that are not deleted yet, or was heard lately. The receiver asks again by itself. Start receivers again "
            "under the ids that they had, or lower wal.retention so that their blocks are deleted sooner",
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
