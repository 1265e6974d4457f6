"""Cursors: queries that read the intake beside the batch job, each at its own pace. Decisions on values alone.

What a cursor has yet to read is held in the WAL (INV-8, ``driver.journal.block_index``). Who reads by it is known by an epoch, as
receivers are: the newest one counts, whoever had an older one is fenced (INV-4). That a second user is refused while the first
is at work rests on what was heard lately, and only saves people from a mistake.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from driver.journal import events as ev
from driver.journal.block_index import Place
from driver.journal.state import Cursor, State
from driver.tracker.requests import ExpireCursors, said_by
from forebay import messages as m
from forebay.model.errors import FencedError, RefusedError, UsageError
from forebay.model.values import TopicPartition, check_name

#: cursors of a stream at most, and places in one
CURSORS_MAX, PLACES_MAX = 1_000, 100_000
#: signs of the words that say who reads, and of its key
USER_LENGTH_MAX, KEY_LENGTH_MAX = 200, 200
#: an idle user is journalled after this part of the time after which it would be forgotten
HEARD_SHARE = 8
NO_WAL = "a query reads the intake from its WAL, and this stream has none (wal.url)"


@dataclass(frozen=True, slots=True)
class CursorRules:
    """``in_use_seconds``: so long after it was heard a user counts as at work. ``timeout_seconds``: a cursor whose user was not
    heard for so long is forgotten."""

    in_use_seconds: float = 10.0
    timeout_seconds: float = 7 * 86_400.0


@dataclass(slots=True)
class LastCursorHeartbeat:
    """When users were heard last, on the monotonic clock: not journalled, lost with the driver. ``closed``: those that ended in
    order. ``since``: since when this driver hears."""

    since: float | None = None
    heard: dict[str, float] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)

    def hear(self, name: str, now: float) -> None:
        self.heard[name] = now
        self.closed.discard(name)

    def at(self, name: str, now: float) -> float:
        """When it was heard; a driver that has just begun takes it that all are there."""
        if self.since is None:
            self.since = now
        return self.heard.get(name, self.since)

    def in_use(self, name: str, now: float, rules: CursorRules) -> bool:
        return name not in self.closed and now - self.at(name, now) < rules.in_use_seconds

    def forget(self, name: str) -> None:
        self.heard.pop(name, None)
        self.closed.discard(name)


CursorRequest = m.OpenCursorRequest | m.MoveCursorRequest | m.CloseCursorRequest | m.DropCursorRequest | ExpireCursors


class Cursors:
    """The tracker's share of deciding about cursors. ``has_wal``: whether the stream has one."""

    def __init__(self, state: State, rules: CursorRules, has_wal: bool) -> None:
        self.rules = rules
        self.latest = LastCursorHeartbeat()
        self._state = state
        self._has_wal = has_wal

    def decide(self, request: CursorRequest, now: float, now_ms: int) -> tuple[Any, tuple[ev.Event, ...]]:
        """The answer, and what is to be applied with it. As ``Tracker.decide``."""
        match request:
            case m.OpenCursorRequest():
                return self._open(request, now, now_ms)
            case m.MoveCursorRequest():
                return self._move(request, now, now_ms)
            case m.CloseCursorRequest():
                return self._close(request, now, now_ms)
            case m.DropCursorRequest():
                (words,), events = self._end(_dropped(self._state, request, now_ms))
                return m.OperatorAnswer(message=words), events
            case ExpireCursors():
                return self._end(*_expired(self._state, self.latest, self.rules, now, now_ms))

    def _open(self, request: m.OpenCursorRequest, now: float, now_ms: int) -> tuple[Any, tuple[ev.Event, ...]]:
        if not self._has_wal:
            raise RefusedError(NO_WAL, "conflict")
        opened = _opened(self._state, self.latest, self.rules, request, now, now_ms)
        self.latest.hear(request.cursor, now)
        epoch = self._state.cursors[request.cursor].epoch if opened is None else opened.epoch
        answer = m.OpenCursorAnswer(epoch=epoch, ended=_ended_words(self._state, request.cursor))
        return answer, () if opened is None else (opened,)

    def _move(self, request: m.MoveCursorRequest, now: float, now_ms: int) -> tuple[Any, tuple[ev.Event, ...]]:
        moved = _moved(self._state, self.rules, request, now_ms)
        self.latest.hear(request.cursor, now)
        return m.Done(), () if moved is None else (moved,)

    def _close(self, request: m.CloseCursorRequest, now: float, now_ms: int) -> tuple[Any, tuple[ev.Event, ...]]:
        cursor = _current(self._state, request)
        if request.forget:
            cause = f"given up by {cursor.user}, whose query could not begin"
            return m.Done(), self._end(ev.CursorEnded(cursor.name, now_ms, cause))[1]
        self.latest.hear(request.cursor, now)
        self.latest.closed.add(request.cursor)
        return m.Done(), ()

    def _end(self, *ended: ev.CursorEnded) -> tuple[tuple[str, ...], tuple[ev.Event, ...]]:
        """→ a sentence for each."""
        for event in ended:
            self.latest.forget(event.name)
        return tuple(f"cursor {event.name} {event.cause}" for event in ended), ended


def _opened(
    state: State, latest: LastCursorHeartbeat, rules: CursorRules, request: m.OpenCursorRequest, now: float, now_ms: int
) -> ev.CursorOpened | None:
    """None: the same user, which has it already. Raises RefusedError, UsageError."""
    try:
        check_name("cursor", request.cursor)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not request.user or len(request.user) > USER_LENGTH_MAX or not request.user.isprintable():
        raise UsageError(f"a cursor's user is named in 1 to {USER_LENGTH_MAX} printable characters")
    if len(request.key) > KEY_LENGTH_MAX:
        raise UsageError(f"a cursor's key has {KEY_LENGTH_MAX} characters at most")
    places = _checked(state, request.places)
    cursor = state.cursors.get(request.cursor)
    if cursor is None:
        if len(state.cursors) >= CURSORS_MAX:
            raise RefusedError(
                f"the stream has {CURSORS_MAX} cursors already: `forebay cursors drop` those that nobody reads by",
                "conflict",
            )
    elif cursor.user == request.user and _is_key(cursor, request.key):
        return None
    elif latest.in_use(request.cursor, now, rules):
        raise RefusedError(
            f"cursor {request.cursor} is in use by {cursor.user}, heard {now - latest.at(request.cursor, now):.0f} s ago: two "
            "queries can't read by one cursor; stop that one, or begin this one with a checkpoint of its own",
            "in-use",
        )
    left = _left(cursor, request.left)
    known = cursor.vector.keys() if cursor is not None else set()
    # the user may have looked before a partition came: it is held from its beginning, as one that comes later
    unseen = state.partitions.keys() - places.keys() - known - {str(tp) for tp in request.left}
    places |= {
        key: (state.partitions[key].incarnations[0].number, state.partitions[key].incarnations[0].start)
        for key in unseen
    }
    return ev.CursorOpened(request.cursor, state.next_epoch(), request.user, places, now_ms, left, _digest(request.key))


def _moved(state: State, rules: CursorRules, request: m.MoveCursorRequest, now_ms: int) -> ev.CursorMoved | None:
    """None: nothing that need be journalled. Raises FencedError, RefusedError, UsageError."""
    cursor = _current(state, request)
    places = _checked(state, request.places)
    ahead = {key: place for key, place in places.items() if key in cursor.vector and place > cursor.vector[key]}
    ahead |= {key: place for key, place in places.items() if key not in cursor.vector}
    left = _left(cursor, request.left)
    overdue = now_ms - cursor.heard_ms > rules.timeout_seconds * 1000 / HEARD_SHARE
    return ev.CursorMoved(cursor.name, ahead, now_ms, left) if ahead or left or overdue else None


def _current(state: State, request: m.MoveCursorRequest | m.CloseCursorRequest) -> Cursor:
    """Raises RefusedError for a cursor that is gone, FencedError for one that another user has opened since, or whose key the
    request does not have."""
    name = request.cursor
    cursor = state.cursors.get(name)
    if cursor is None:
        why = _ended_words(state, name)
        raise RefusedError(f"cursor {name} is gone: {why or 'this driver knows of none by that name'}", "not-found")
    if cursor.epoch != request.epoch or not _is_key(cursor, request.key):
        raise FencedError(f"cursor {name} was opened by {cursor.user} since: this query reads by it no more")
    return cursor


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest() if key else ""


def _is_key(cursor: Cursor, key: str) -> bool:
    """Epochs can be guessed by whoever has a token of the same role. A user of an older release has no key."""
    return hmac.compare_digest(cursor.key_digest, _digest(key))


def _ended_words(state: State, name: str) -> str:
    return next((ended.cause for ended in state.ended_cursors if ended.name == name), "")


def _expired(
    state: State, latest: LastCursorHeartbeat, rules: CursorRules, now: float, now_ms: int
) -> tuple[ev.CursorEnded, ...]:
    """Of the cursors whose users this driver has not heard for too long. A driver's start begins the time anew: while none was
    there, none could be heard."""
    gone = []
    for cursor in state.cursors.values():
        if now - latest.at(cursor.name, now) > rules.timeout_seconds:
            silent_ms = max(now_ms - cursor.heard_ms, 0)
            cause = (
                f"expired: {cursor.user} was not heard for {silent_ms / 3_600_000:.1f} h (driver.cursor_timeout); what it had "
                "yet to read is held no more"
            )
            gone.append(ev.CursorEnded(cursor.name, now_ms, cause, expired=True))
    return tuple(gone)


def _dropped(state: State, request: m.DropCursorRequest, now_ms: int) -> ev.CursorEnded:
    """Also of one that expired: a person has seen it. Raises RefusedError."""
    name = request.cursor
    if name not in state.cursors and not any(ended.name == name and ended.expired for ended in state.ended_cursors):
        raise RefusedError(f"there is no cursor {name}: `forebay cursors` shows those that there are", "not-found")
    return ev.CursorEnded(name, now_ms, f"dropped by {said_by(request.cause)}")


def _checked(state: State, places: Iterable[m.CursorPlace]) -> dict[str, Place]:
    found: dict[str, Place] = {}
    for place in places:
        partition = state.partition(place.tp)
        if partition is None:
            raise UsageError(f"the stream has no partition {place.tp}: a cursor reads what the stream takes in")
        if not 1 <= place.incarnation <= partition.incarnation.number or not 0 <= place.offset < 1 << 63:
            raise UsageError(f"{place.tp} has no offset {place.offset} in life {place.incarnation}")
        found[str(place.tp)] = (place.incarnation, place.offset)
    if len(found) > PLACES_MAX:
        raise UsageError(f"a cursor has {PLACES_MAX} partitions at most")
    return found


def _left(cursor: Cursor | None, left: Iterable[TopicPartition]) -> tuple[str, ...]:
    return () if cursor is None else tuple(key for tp in left if (key := str(tp)) in cursor.vector)


# ---- what people see -------------------------------------------------------------------------------------------------


def tracked(state: State, known: Cursors, now: float, now_ms: int) -> tuple[m.TrackedCursor, ...]:
    """``now_ms``: wall clock."""
    latest, rules = known.latest, known.rules
    shown = []
    for cursor in sorted(state.cursors.values(), key=lambda cursor: cursor.name):
        silent = now - latest.at(cursor.name, now)
        if cursor.name not in latest.heard:
            silent = max(silent, (now_ms - cursor.heard_ms) / 1000)
        at_work = latest.in_use(cursor.name, now, rules)
        shown.append(
            m.TrackedCursor(
                cursor=cursor.name,
                user=cursor.user,
                state="at work" if at_work else "silent",
                silent_seconds=round(silent, 1),
                behind=_behind(state, cursor.vector),
                detail="" if at_work else f"is forgotten after {rules.timeout_seconds / 3600:g} h of silence",
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


def _behind(state: State, vector: Mapping[str, Place]) -> int:
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
