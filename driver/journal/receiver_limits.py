"""Limits on receivers (INV-6): how many ids the journal keeps, how many heartbeats the driver keeps, and which are dropped for
new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from driver.journal.state import State
from forebay import messages as m
from forebay.model.errors import RefusedError
from forebay.model.identifiers import is_reserved
from forebay.model.values import TopicPartition

#: maximum number of ids in the journal; then the oldest id makes room that has no claim and never had a block accepted
RECEIVERS_MAX = 10_000
#: number of ids from which status shows a problem: the driver can't forget ids fast enough
RECEIVERS_SHOWN = 9_500
#: receivers whose last heartbeat the driver keeps, and the silence after which a heartbeat makes room for another receiver's
HEARTBEATS_MAX, FORGOTTEN_SECONDS = 2_000, 3600.0


class _Contact(Protocol):
    @property
    def at(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IdLimits:
    """When the driver forgets receiver ids.

    From ``kept`` ids on, each new id makes the driver forget up to ``at_once`` others. An id can be forgotten if it has no claim
    and no blocks, and sent no heartbeat for ``silent_seconds`` during which the decision loop was running.
    """

    kept: int = 9_000
    silent_seconds: float = 600.0
    at_once: int = 100


class Presence:
    """The time since which the decision loop has been running without a pause. A receiver's silence counts only while the loop
    could accept its heartbeat."""

    #: a longer pause between two decisions counts as one; the journal may have waited for space
    BREAK_SECONDS = 60.0

    def __init__(self) -> None:
        self._since = self._last = float("-inf")

    def come_round(self, now: float) -> None:
        """Record that the decision loop is running at ``now`` (monotonic seconds). Call it once per round of the loop."""
        if now - self._last > self.BREAK_SECONDS:
            self._since = now
        self._last = now

    def silence(self, heartbeat_at: float | None, now: float) -> float:
        """Return the seconds without a heartbeat. ``heartbeat_at``: the time of the last one; None: never."""
        return now - (self._since if heartbeat_at is None else max(self._since, heartbeat_at))


def claiming(state: State) -> set[str]:
    """Return the ids that own a partition, may still write under a token, or have an ended epoch without a barrier."""
    found = {writer.receiver_id for partition in state.partitions.values() for writer in partition.writers}
    found |= {partition.owner for partition in state.partitions.values()}
    found |= {ended.receiver_id for ended in state.unbarred}
    return found


class Room(NamedTuple):
    """The changes that make room for a new id: the journal forgets some ids, and ends the epochs of others so that it can
    forget them later.

    In both lists, the id that registered longest ago is first.
    """

    forgotten: tuple[str, ...] = ()
    fenced: tuple[str, ...] = ()


def room_for(
    state: State, receiver_id: str, limits: IdLimits, heartbeats: Mapping[str, _Contact], presence: Presence, now: float
) -> Room:
    """Return the ids that the journal forgets, and the epochs that end, so that ``receiver_id`` can register.

    The journal needs nothing of a forgotten id. Epochs are numbered across the whole stream. So if a forgotten id registers
    again, its epoch is higher than all its earlier ones, and everything that an older process with this id still writes is
    fenced (``driver.journal.state.is_forgotten``).

    A killed receiver never reports that it can no longer write. Its epoch ends as if it had registered again, unless it owns a
    partition, or may write records of a partition with a fault.
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
        and presence.silence(heartbeats[name].at if name in heartbeats else None, now) >= limits.silent_seconds
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
    """Return a warning if the stream has almost the maximum number of receiver ids; otherwise ""."""
    known = len(state.receivers)
    if known < RECEIVERS_SHOWN:
        return ""
    return f"the stream has {known} receiver ids; from {RECEIVERS_MAX} on it takes no new one"


def gives_way(state: State, receiver_id: str) -> str | None:
    """Return the id that the journal forgets when ``receiver_id`` registers; None if there is room, or if every id must stay."""
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
    """Raise RefusedError if the journal has no room for a new ``receiver_id``."""
    full = receiver_id not in state.receivers and len(state.receivers) >= RECEIVERS_MAX
    if full and gives_way(state, receiver_id) is None:
        raise RefusedError(
            f"receiver {receiver_id!r} is not registered: the stream has {RECEIVERS_MAX} receiver ids, and each has a claim, "
            "has blocks that are not deleted yet, or sent a heartbeat recently. The receiver tries again by itself. Restart "
            "receivers under the ids that they had, or lower wal.retention so that their blocks are deleted sooner",
            "too-many",
        )


def makes_room(heartbeats: Mapping[str, _Contact], receiver_id: str, now: float) -> str | None:
    """Return the id in ``heartbeats`` whose last heartbeat the driver drops, to keep the first one of ``receiver_id``.

    None if there is room. Raises RefusedError if no heartbeat is old enough.
    """
    if receiver_id in heartbeats or len(heartbeats) < HEARTBEATS_MAX:
        return None
    oldest = min(heartbeats, key=lambda known: heartbeats[known].at)
    if now - heartbeats[oldest].at < FORGOTTEN_SECONDS:
        raise RefusedError(
            f"the heartbeat of receiver {receiver_id!r} is refused: {HEARTBEATS_MAX} receivers sent one within the last "
            f"{FORGOTTEN_SECONDS:g} s, which is the maximum",
            "too-many",
        )
    return oldest


def kept(beat: m.HeartbeatRequest, state: State) -> m.HeartbeatRequest:
    """Return the part of a heartbeat that the driver stores. For each partition of the stream this is one status and the oldest
    token that the receiver holds."""
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
