"""Evidence that the driver of a journal epoch led, stored outside the epoch's own segments.

If a driver is killed before its first snapshot is durable, its epoch has no snapshot, and a reader uses the epoch before it. If
an epoch led and its snapshot was lost, its folder looks the same. Two files distinguish these cases:

* the **mark** ``<stream>/led/<16 hex>``, created after the first snapshot is durable and before the driver answers or acts,
  and never deleted;
* the **lease**, which names the newest epoch that led and a lower bound of its durable events. It is a lower bound because the
  driver renews the lease less often than it writes events.

Event numbers are dense within a timeline, so the counts of one timeline can be compared. Evidence of an older timeline is void:
the journal was rebuilt since.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from driver.journal.leadership.lease import stored_lease
from forebay.model.identifiers import timeline_of
from wal.storage import Storage


def mark_path(stream: str, epoch: int) -> str:
    """Return the path of the mark of ``epoch``."""
    return f"{stream}/led/{epoch:016x}"


def mark(storage: Storage, stream: str, epoch: int, claim: bytes) -> None:
    """Create the mark of ``epoch``, with its ``claim`` as content; durable on return. Raises StoreError."""
    with contextlib.suppress(FileExistsError):  # an earlier request for it, which was not answered
        storage.put_new(mark_path(stream, epoch), claim)


def marked_claim(storage: Storage, stream: str, epoch: int) -> bytes:
    """Return the content of the mark of ``epoch``: its claim. Raises FileNotFoundError, StoreError."""
    return storage.read(mark_path(stream, epoch))


def is_marked(storage: Storage, stream: str, epoch: int) -> bool:
    """Whether the mark of ``epoch`` exists. Raises StoreError."""
    return storage.exists(mark_path(stream, epoch))


@dataclass(frozen=True, slots=True)
class Witness:
    """What the lease proves: ``epoch`` led (0: unknown), and at least ``events`` events of its timeline were durable."""

    epoch: int
    events: int

    def lacks_events(self, timeline: int, events: int) -> bool:
        """Whether a journal of ``timeline`` that has ``events`` events has lost some."""
        return timeline_of(self.epoch) == timeline and events < self.events

    def message(self, events: int) -> str:
        return (
            f"the journal ends after {events} events, but the lease says that {self.events} were durable: its end was deleted or "
            "cut, or the store's listing omits it"
        )


def witness(storage: Storage, stream: str) -> Witness:
    """Return what the lease proves now; nothing if it is absent or damaged. Call it before you read claims and segments:
    otherwise the lease may count events that were written after that reading, and they would seem lost. Raises StoreError."""
    lease = stored_lease(storage, stream)
    return Witness(lease.led_epoch, lease.led_events) if lease is not None else Witness(0, 0)
