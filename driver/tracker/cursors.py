"""Cursors: positions of queries that read the intake beside the batch job. Decision logic, without I/O.

The WAL holds what a cursor has yet to read (INV-8, ``driver.journal.block_index``). A cursor's user has an epoch, as a receiver
has: only the newest epoch is valid, and a user with an older one is fenced (INV-4). A second user is refused while the first
sends heartbeats. That check only prevents mistakes; correctness rests on the epoch.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from driver.journal import events as ev
from driver.journal.block_index import Place
from driver.journal.state import State
from driver.journal.state_parts import Cursor, EndedCursor, Partition
from driver.tracker.options import CursorRules
from driver.tracker.requests import ExpireCursors, said_by
from forebay import messages as m
from forebay.model.errors import FencedError, RefusedError, UsageError
from forebay.model.identifiers import check_name
from forebay.model.values import TopicPartition

#: maximum number of cursors of a stream, and of partitions of one cursor
CURSORS_MAX, PLACES_MAX = 1_000, 100_000
#: maximum number of characters of a user's name, and of its key
USER_LENGTH_MAX, KEY_LENGTH_MAX = 200, 200
#: an idle user's heartbeat is journalled after this fraction (1/8) of ``driver.cursor_timeout``
HEARTBEAT_SHARE = 8
NO_WAL = "a query reads the intake from its WAL, and this stream has none (wal.url)"


@dataclass(slots=True)
class CursorHeartbeats:
    """The time of each cursor's last heartbeat, on the monotonic clock; not journalled.

    ``times``: cursor → time. ``closed``: cursors that their users have closed. ``since``: the time when this driver began to
    accept heartbeats.
    """

    since: float | None = None
    times: dict[str, float] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)

    def record(self, name: str, now: float) -> None:
        self.times[name] = now
        self.closed.discard(name)

    def at(self, name: str, now: float) -> float:
        """Return the time of the last heartbeat. If a cursor's user has sent none to this driver, return the time when the
        driver began."""
        if self.since is None:
            self.since = now
        return self.times.get(name, self.since)

    def in_use(self, name: str, now: float, rules: CursorRules) -> bool:
        return name not in self.closed and now - self.at(name, now) < rules.in_use_seconds

    def forget(self, name: str) -> None:
        self.times.pop(name, None)
        self.closed.discard(name)


CursorRequest = m.OpenCursorRequest | m.MoveCursorRequest | m.CloseCursorRequest | m.DropCursorRequest | ExpireCursors


class Cursors:
    """Decides on requests about cursors. ``has_wal``: whether the stream has a WAL."""

    def __init__(self, *, state: State, rules: CursorRules, has_wal: bool) -> None:
        self.rules = rules
        self.heartbeats = CursorHeartbeats()
        self._state = state
        self._has_wal = has_wal

    def decide(self, request: CursorRequest, now: float, now_ms: int) -> tuple[object, tuple[ev.Event, ...]]:
        """Return the answer and the events to apply. Raises as ``Tracker.decide``."""
        match request:
            case m.OpenCursorRequest():
                return self._open(request, now, now_ms)
            case m.MoveCursorRequest():
                return self._move(request, now, now_ms)
            case m.CloseCursorRequest():
                return self._close(request, now, now_ms)
            case m.DropCursorRequest():
                (message,), events = self._end(_dropped(self._state, request, now_ms))
                return m.OperatorAnswer(message=message), events
            case ExpireCursors():
                return self._end(*_expired(self._state, self.heartbeats, self.rules, now, now_ms))

    def _open(self, request: m.OpenCursorRequest, now: float, now_ms: int) -> tuple[object, tuple[ev.Event, ...]]:
        if not self._has_wal:
            raise RefusedError(NO_WAL, "conflict")
        opened = _opened(self._state, self.heartbeats, self.rules, request, now, now_ms)
        self.heartbeats.record(request.cursor, now)
        epoch = self._state.cursors[request.cursor].epoch if opened is None else opened.epoch
        answer = m.OpenCursorAnswer(epoch=epoch, ended=_ended_cause(self._state, request.cursor))
        return answer, () if opened is None else (opened,)

    def _move(self, request: m.MoveCursorRequest, now: float, now_ms: int) -> tuple[object, tuple[ev.Event, ...]]:
        moved = _moved(self._state, self.rules, request, now_ms)
        self.heartbeats.record(request.cursor, now)
        return m.Done(), () if moved is None else (moved,)

    def _close(self, request: m.CloseCursorRequest, now: float, now_ms: int) -> tuple[object, tuple[ev.Event, ...]]:
        cursor = _current(self._state, request)
        if request.forget:
            cause = f"dropped by {cursor.user}, whose query could not start"
            return m.Done(), self._end(ev.CursorEnded(cursor.name, now_ms, cause))[1]
        self.heartbeats.record(request.cursor, now)
        self.heartbeats.closed.add(request.cursor)
        return m.Done(), ()

    def _end(self, *ended: ev.CursorEnded) -> tuple[tuple[str, ...], tuple[ev.Event, ...]]:
        """Return a sentence for each cursor that ended, and the events."""
        for event in ended:
            self.heartbeats.forget(event.name)
        return tuple(f"cursor {event.name} {event.cause}" for event in ended), ended


def _opened(
    state: State,
    heartbeats: CursorHeartbeats,
    rules: CursorRules,
    request: m.OpenCursorRequest,
    now: float,
    now_ms: int,
) -> ev.CursorOpened | None:
    """Return the event that gives the cursor to the user; None if the user has the cursor already. Raises RefusedError,
    UsageError."""
    try:
        check_name("cursor", request.cursor)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not request.user or len(request.user) > USER_LENGTH_MAX or not request.user.isprintable():
        raise UsageError(f"the name of a cursor's user must have 1 to {USER_LENGTH_MAX} printable characters")
    if len(request.key) > KEY_LENGTH_MAX:
        raise UsageError(f"the cursor's key has {len(request.key)} characters; {KEY_LENGTH_MAX} are allowed")
    places = _checked(state, request.places)
    cursor = state.cursors.get(request.cursor)
    if cursor is None:
        if len(state.cursors) >= CURSORS_MAX:
            raise RefusedError(
                f"the stream has {CURSORS_MAX} cursors, the maximum; `forebay cursors drop` ends those that no query uses",
                "conflict",
            )
    elif cursor.user == request.user and _is_key(cursor, request.key):
        return None
    elif heartbeats.in_use(request.cursor, now, rules):
        silent = now - heartbeats.at(request.cursor, now)
        raise RefusedError(
            f"cursor {request.cursor} is in use by {cursor.user}, whose last heartbeat was {silent:.0f} s ago: two "
            "queries can't use one cursor; stop that query, or start this one with another checkpoint",
            "in-use",
        )
    left = _left(cursor, request.left)
    known = cursor.vector.keys() if cursor is not None else set()
    # the user may not know a partition that was added since: it is held from its beginning
    unseen = state.partitions.keys() - places.keys() - known - {str(tp) for tp in request.left}
    places |= {
        key: (state.partitions[key].incarnations[0].number, state.partitions[key].incarnations[0].start)
        for key in unseen
    }
    return ev.CursorOpened(request.cursor, state.next_epoch(), request.user, places, now_ms, left, _digest(request.key))


def _moved(state: State, rules: CursorRules, request: m.MoveCursorRequest, now_ms: int) -> ev.CursorMoved | None:
    """Return the event that moves the cursor; None if nothing has to be journalled. Raises FencedError, RefusedError,
    UsageError."""
    cursor = _current(state, request)
    places = _checked(state, request.places)
    ahead = {key: place for key, place in places.items() if key in cursor.vector and place > cursor.vector[key]}
    ahead |= {key: place for key, place in places.items() if key not in cursor.vector}
    left = _left(cursor, request.left)
    overdue = now_ms - cursor.heartbeat_ms > rules.timeout_seconds * 1000 / HEARTBEAT_SHARE
    return ev.CursorMoved(cursor.name, ahead, now_ms, left) if ahead or left or overdue else None


def _current(state: State, request: m.MoveCursorRequest | m.CloseCursorRequest) -> Cursor:
    """Return the request's cursor.

    Raises RefusedError if the cursor does not exist, and FencedError if another user has opened it since or the request does not
    have its key.
    """
    name = request.cursor
    cursor = state.cursors.get(name)
    if cursor is None:
        why = _ended_cause(state, name)
        raise RefusedError(
            f"cursor {name} does not exist: {why or 'this driver knows no cursor of that name'}", "not-found"
        )
    if cursor.epoch != request.epoch or not _is_key(cursor, request.key):
        raise FencedError(f"cursor {name} was opened by {cursor.user} since; this query can no longer use it")
    return cursor


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest() if key else ""


def _is_key(cursor: Cursor, key: str) -> bool:
    """Return whether ``key`` is the cursor's. Another client with a token of the same role could guess an epoch, but not a key.

    A user of an older release has the key "".
    """
    return hmac.compare_digest(cursor.key_digest, _digest(key))


def _ended_cause(state: State, name: str) -> str:
    return next((ended.cause for ended in state.ended_cursors if ended.name == name), "")


def _expired(
    state: State, heartbeats: CursorHeartbeats, rules: CursorRules, now: float, now_ms: int
) -> tuple[ev.CursorEnded, ...]:
    """Return the events that end cursors whose last heartbeat is too old. When a driver begins to lead, every cursor gets the
    full time again."""
    gone = []
    for cursor in state.cursors.values():
        if now - heartbeats.at(cursor.name, now) > rules.timeout_seconds:
            silent_ms = max(now_ms - cursor.heartbeat_ms, 0)
            cause = (
                f"expired: no heartbeat of {cursor.user} for {silent_ms / 3_600_000:.1f} h (driver.cursor_timeout); what it had "
                "yet to read is no longer held"
            )
            gone.append(ev.CursorEnded(cursor.name, now_ms, cause, expired=True))
    return tuple(gone)


def _dropped(state: State, request: m.DropCursorRequest, now_ms: int) -> ev.CursorEnded:
    """Return the event that ends a cursor. An expired cursor can be dropped too: the status then no longer shows it. Raises
    RefusedError."""
    name = request.cursor
    if name not in state.cursors and not any(ended.name == name and ended.expired for ended in state.ended_cursors):
        raise RefusedError(f"no cursor is named {name}: `forebay cursors` lists them", "not-found")
    return ev.CursorEnded(name, now_ms, f"dropped by {said_by(request.cause)}")


def _checked(state: State, places: Iterable[m.CursorPlace]) -> dict[str, Place]:
    found: dict[str, Place] = {}
    for place in places:
        partition = state.partition(place.tp)
        if partition is None:
            raise UsageError(f"the stream has no partition {place.tp}; a cursor reads only partitions of the stream")
        if not 1 <= place.incarnation <= partition.incarnation.number or not 0 <= place.offset < 1 << 63:
            raise UsageError(f"{place.tp} has no offset {place.offset} in incarnation {place.incarnation}")
        found[str(place.tp)] = (place.incarnation, place.offset)
    if len(found) > PLACES_MAX:
        raise UsageError(f"a cursor has at most {PLACES_MAX} partitions")
    return found


def _left(cursor: Cursor | None, left: Iterable[TopicPartition]) -> tuple[str, ...]:
    return () if cursor is None else tuple(key for tp in left if (key := str(tp)) in cursor.vector)


# ---- what people see -------------------------------------------------------------------------------------------------


class CursorsHeld(Protocol):
    """The part of the state that the status of cursors reads."""

    @property
    def cursors(self) -> Mapping[str, Cursor]: ...

    @property
    def ended_cursors(self) -> Sequence[EndedCursor]: ...

    @property
    def partitions(self) -> Mapping[str, Partition]: ...


def tracked(state: CursorsHeld, known: Cursors, now: float, now_ms: int) -> tuple[m.TrackedCursor, ...]:
    """Return the cursors for the status. ``now``: seconds on the monotonic clock; ``now_ms``: wall clock."""
    heartbeats, rules = known.heartbeats, known.rules
    shown = []
    for cursor in sorted(state.cursors.values(), key=lambda cursor: cursor.name):
        silent = now - heartbeats.at(cursor.name, now)
        if cursor.name not in heartbeats.times:
            silent = max(silent, (now_ms - cursor.heartbeat_ms) / 1000)
        at_work = heartbeats.in_use(cursor.name, now, rules)
        shown.append(
            m.TrackedCursor(
                cursor=cursor.name,
                user=cursor.user,
                state="at work" if at_work else "silent",
                silent_seconds=round(silent, 1),
                behind=_behind(state, cursor.vector),
                detail="" if at_work else f"expires after {rules.timeout_seconds / 3600:g} h without a heartbeat",
                places=_places(cursor.vector),
                opened_ms=cursor.opened_ms,
            )
        )
    gone = (
        m.TrackedCursor(
            cursor=ended.name,
            user=ended.user,
            state="expired" if ended.expired else "dropped",
            silent_seconds=round(max(0, now_ms - ended.time_ms) / 1000, 1),
            behind=_behind(state, ended.vector),
            detail=ended.cause,
            places=_places(ended.vector),
        )
        for ended in state.ended_cursors
    )
    return (*shown, *gone)


def _behind(state: CursorsHeld, vector: Mapping[str, Place]) -> int:
    total = 0
    for key, (incarnation, offset) in vector.items():
        partition = state.partitions[key]
        total += max(
            0,
            partition.position
            - (offset if incarnation == partition.incarnation.number else partition.incarnation.start),
        )
    return total


def _places(vector: Mapping[str, Place]) -> tuple[m.CursorPlace, ...]:
    return tuple(
        m.CursorPlace(topic=topic, partition=int(partition), incarnation=incarnation, offset=offset)
        for (topic, _, partition), (incarnation, offset) in (
            (key.rpartition("/"), at) for key, at in sorted(vector.items())
        )
    )
