"""The lists that follow from a snapshot alone."""

from __future__ import annotations

from driver.http.observation.lists import Query, page
from driver.http.observation.overview import agent_state
from driver.http.observation.snapshot import Snapshot
from forebay import messages as m

#: how the cursor and the user of a direct stream are named (``direct.stream``)
_DIRECT_CURSOR, _DIRECT_USER = "direct-", "direct stream "


def partitions(snapshot: Snapshot, query: Query) -> m.PartitionsAnswer:
    """Return a page of partitions, by topic and number."""
    found = page(snapshot.tracked_partitions, query, lambda p: f"{p.topic}/{p.partition}", lambda p: p.state)
    return m.PartitionsAnswer(total=found.total, next=found.next, partitions=found.items)


def receivers(snapshot: Snapshot, query: Query) -> m.ReceiversAnswer:
    """Return a page of receivers, and the managed receivers among them; on the first page also those that never ran."""
    found = page(snapshot.receivers, query, lambda r: r.receiver_id, lambda r: r.state)
    shown = {receiver.receiver_id for receiver in found.items}
    known = {receiver.receiver_id for receiver in snapshot.receivers}
    managed = tuple(
        one
        for one in snapshot.managed
        if one.receiver_id in shown or (not query.after and one.receiver_id not in known)
    )
    return m.ReceiversAnswer(total=found.total, next=found.next, receivers=found.items, managed=managed)


def hosts(snapshot: Snapshot, query: Query) -> m.HostsAnswer:
    """Return a page of hosts. The state "lost" is that of an agent that sends no heartbeats."""
    timeout = snapshot.around.receiver_timeout
    found = page(snapshot.agents, query, lambda a: a.host, lambda a: agent_state(a, timeout))
    return m.HostsAnswer(total=found.total, next=found.next, hosts=found.items)


def cursors(snapshot: Snapshot, query: Query, held_bytes: int) -> m.CursorsAnswer:
    """Return a page of cursors."""
    found = page(snapshot.tracked_cursors, query, _cursor_name, lambda c: c.state)
    return m.CursorsAnswer(total=found.total, next=found.next, cursors=found.items, held_bytes=held_bytes)


def direct(snapshot: Snapshot) -> m.DirectAnswer:
    """Return the direct streams that read through this intake."""
    return m.DirectAnswer(
        streams=tuple(
            m.DirectStream(name=cursor.user.removeprefix(_DIRECT_USER).partition(" on ")[0], cursor=cursor)
            for cursor in snapshot.tracked_cursors
            if cursor.cursor.startswith(_DIRECT_CURSOR) and cursor.user.startswith(_DIRECT_USER)
        )
    )


def _cursor_name(cursor: m.TrackedCursor) -> str:
    """Return a name that is unique also if several cursors of one name have ended."""
    return cursor.cursor if cursor.opened_ms else f"{cursor.cursor} ended {cursor.silent_seconds:g} s ago"
