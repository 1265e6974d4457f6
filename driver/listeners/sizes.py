"""About how many bytes an event takes while it waits for a listener."""

from __future__ import annotations

from driver.journal import events as ev
from driver.listeners.events import Happened

#: bytes of an event, about, and of each of its ranges
EVENT_BYTES, RANGE_BYTES = 300, 130


def event_bytes(event: ev.Event | Happened) -> int:
    """Return about how many bytes ``event`` takes. Cheap: the decision loop calls it for each block."""
    ranges = event.block.meta.ranges if isinstance(event, ev.BlockAdded) else getattr(event, "ranges", ())
    texts = len(getattr(event, "cause", "")) + len(getattr(event, "detail", ""))
    texts += sum(map(len, getattr(event, "written", ())))
    return EVENT_BYTES + RANGE_BYTES * (len(ranges) + len(getattr(event, "partitions", ()))) + texts
