"""Events of cursors."""

from __future__ import annotations

import msgspec

from driver.journal import events as ev
from driver.journal.state import BrokenInvariant, State
from driver.journal.state_parts import Cursor, EndedCursor

#: ended cursors that the state keeps, so that a user that returns to one learns why it ended
ENDED_CURSORS_KEPT = 32


def cursor_opened(state: State, event: ev.CursorOpened) -> None:
    if event.epoch != state.next_epoch():
        raise BrokenInvariant(f"epoch {event.epoch} of cursor {event.name} is not the next one (INV-4)")
    state.epochs += 1
    cursor = state.cursors.setdefault(
        event.name, Cursor(event.name, event.epoch, event.user, {}, event.time_ms, event.time_ms)
    )
    cursor.epoch, cursor.user, cursor.key_digest = event.epoch, event.user, event.key_digest
    state.ended_cursors = [ended for ended in state.ended_cursors if ended.name != event.name]
    _move_cursor(state, cursor, event)


def cursor_moved(state: State, event: ev.CursorMoved) -> None:
    cursor = state.cursors[event.name]
    for key, place in event.vector.items():
        if place < cursor.vector.get(key, place):
            raise BrokenInvariant(f"cursor {event.name} went back in {key} (INV-8)")
    _move_cursor(state, cursor, event)


def _move_cursor(state: State, cursor: Cursor, event: ev.CursorOpened | ev.CursorMoved) -> None:
    cursor.heartbeat_ms = max(cursor.heartbeat_ms, event.time_ms)
    for key, place in event.vector.items():
        if key not in state.partitions:
            raise BrokenInvariant(f"cursor {cursor.name} reads partition {key}, which was not added")
        cursor.vector[key] = place
    for key in event.left:
        cursor.vector.pop(key, None)
    for key in (*event.vector, *event.left):
        state.index.read_to(key, state.slowest_cursor(key), state.blocks)


def cursor_ended(state: State, event: ev.CursorEnded) -> None:
    cursor = state.cursors.pop(event.name, None)
    if cursor is None:
        ended = next(one for one in state.ended_cursors if one.name == event.name)
        ended = msgspec.structs.replace(ended, cause=f"{ended.cause}; {event.cause}", expired=False)
    else:
        ended = EndedCursor(cursor.name, cursor.user, cursor.vector, event.time_ms, event.cause, event.expired)
        for key in cursor.vector:
            state.index.read_to(key, state.slowest_cursor(key), state.blocks)
    kept = [*(one for one in state.ended_cursors if one.name != event.name), ended]
    while (
        len(kept) > ENDED_CURSORS_KEPT
    ):  # an expired one stays until it is acknowledged, if another one can be dropped
        del kept[next((at for at, one in enumerate(kept) if not one.expired), 0)]
    state.ended_cursors = kept
