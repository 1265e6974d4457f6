"""Opening the journal in order to lead it: the fence between drivers.

Files, below the journal's root::

    <stream>/epochs/<16 hex>                 an epoch's claim: created only if absent, never deleted
    <stream>/led/<16 hex>                    the mark of an epoch that led: created only if absent, never deleted
    <stream>/epoch-<16 hex>/<8 digits>.seg   its segments; the first frame of a segment may be a full snapshot

1. The driver claims the next epoch. The claim fences every older driver: after each durable write a driver checks whether the
   next epoch is claimed, **before** it answers or acts.
2. The driver reads the older epochs.
3. It writes the state as a full snapshot, the first frame of its own epoch. So nothing relies on bytes that an older process may
   have left only in a page cache. If two drivers open the journal at the same time, only the newer one ever acts.

A reader starts at the newest segment that begins with a snapshot and ignores everything before it. Event numbers are dense: a
group of events that was written twice is applied once, and a missing group is noticed.

A reader skips an epoch without a snapshot only if nothing proves that this epoch led (``driver.journal.leadership.evidence``):
its driver was killed before it acted. The rule is a table in docs/architecture/journal.md, *Opening*.

The number of requests does not grow with the journal's age: opening reads one epoch's segments since the last snapshot, and a
snapshot is due after a limited number of segments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import cast

from driver.journal import claims
from driver.journal.files import claim_path, newest_claim
from driver.journal.leadership import evidence, timeline
from driver.journal.log.reading import read_beside_a_writer
from driver.journal.log.writing import Journal
from driver.journal.state import State
from forebay.model.errors import CorruptionError
from forebay.model.identifiers import numbered, timeline_of
from forebay.process import failpoints
from forebay.settings.schema import DriverSettings
from wal.segments import layout
from wal.storage import Storage

log = logging.getLogger(__name__)

#: segments of a rebuilt journal and of a direct stream's checkpoint; for an intake, ``driver.journal_segment_size`` says it
SEGMENT_BYTES = int(DriverSettings(journal="").journal_segment_size)


def lead(
    storage: Storage,
    stream: str,
    owner: str,
    wall_ms: int,
    now: Callable[[], float],
    new_uid: Callable[[], int],
    *,
    segment_bytes: int = SEGMENT_BYTES,
    wal: Storage | None = None,
    claimed: Callable[[int], None] = lambda _: None,
) -> tuple[Journal, State]:
    """Claim the next epoch, read the older ones, and write their state as the first snapshot of the claimed epoch.

    ``wal``: the WAL of the stream; its timeline markers distinguish a lost journal from a new one, and ``lead`` adds this
    journal's marker. ``owner`` is written into the claim. ``claimed`` is called with the epoch as soon as it is claimed; the
    reading after it may take long.

    Raises FencedError if another process claimed a newer epoch meanwhile; TimelineFound if the WAL belongs to another journal;
    CorruptionError, NewerVersionError, StoreError.
    """
    steps = opening_steps(
        storage, stream, owner, wall_ms, now, new_uid, segment_bytes=segment_bytes, wal=wal, claimed=claimed
    )
    while True:
        try:
            next(steps)
        except StopIteration as end:
            led, state = cast("tuple[Journal, State]", end.value)
            led.drop_superseded()
            return led, state


def opening_steps(
    storage: Storage,
    stream: str,
    owner: str,
    wall_ms: int,
    now: Callable[[], float],
    new_uid: Callable[[], int],
    *,
    segment_bytes: int = SEGMENT_BYTES,
    wal: Storage | None = None,
    claimed: Callable[[int], None] = lambda _: None,
) -> Generator[str, None, tuple[Journal, State]]:
    """Do :func:`lead` step by step: yield the name of each completed step, return (journal, state). Between steps, the simulation
    crashes drivers and runs others. The caller then calls :meth:`Journal.drop_superseded`."""
    newest, marked = refuse_other_wal(storage, wal, stream) if wal is not None else (newest_claim(storage, stream), 0)
    epoch = newest + 1 if newest else numbered(1, 1)
    while True:
        claim = claims.Claim(epoch=epoch, owner=owner, time_ms=wall_ms).encode()
        try:
            storage.put_new(claim_path(stream, epoch), claim)
        except FileExistsError:
            epoch += 1
            continue
        if not evidence.is_marked(storage, stream, epoch):
            break
        epoch += 1  # this epoch led and lost its claim, which was now created again
    claimed(epoch)
    yield "claimed"
    failpoints.hit("journal.opening")
    stored = read_beside_a_writer(
        storage, stream, epoch
    )  # a paused older driver may wake and delete superseded segments
    if stored.epoch == epoch:  # led by an older release, which makes no marks
        raise CorruptionError(
            claim_path(stream, epoch), 0,
            "the claim of this epoch was missing, and the driver created it again; start the driver again",
        )  # fmt: skip
    for sentence in stored.corrections:
        log.error("journal of stream %s: %s", stream, sentence)
    if stored.state is None and marked:
        raise timeline.unfinished(storage, stream, marked)
    state = stored.state if stored.state is not None else State(stream=stream, timeline=timeline_of(epoch))
    yield "read"
    journal = Journal(
        storage, stream=stream, epoch=epoch, state=state, segment_bytes=segment_bytes, now=now, new_uid=new_uid
    )
    journal.snapshot()
    yield "snapshot"
    failpoints.hit("journal.after-snapshot")
    journal.check()
    if wal is not None:
        is_first = epoch == numbered(timeline_of(epoch), 1)
        first = claim if is_first else first_claim(storage, stream, timeline_of(epoch))
        timeline.mark(storage, wal, stream, timeline_of(epoch), first)
    evidence.mark(storage, stream, epoch, claim)
    return journal, state


def refuse_other_wal(storage: Storage, wal: Storage, stream: str) -> tuple[int, int]:
    """Return the epoch of the journal's newest claim, and the WAL's newest timeline; 0 if there is none.

    Raises TimelineFound if the WAL belongs to another journal, or if this journal's WAL is lost or not mounted; StoreError.
    """
    marked = timeline.newest_marker(wal, stream)
    newest = newest_claim(storage, stream, numbered(marked, 1) if marked else 0)
    claimed = timeline_of(newest)
    has_led = not marked and bool(newest) and (claimed > 1 or _has_led(storage, stream, newest))
    timeline.refuse_other(storage, wal, stream, claimed, marked, has_led=has_led)
    return newest, marked


def _has_led(storage: Storage, stream: str, newest: int) -> bool:
    """Return whether an epoch of the newest claim's timeline is marked. Nearly always the first one that is looked for."""
    first = numbered(timeline_of(newest), 1)
    return any(evidence.is_marked(storage, stream, epoch) for epoch in range(newest, first - 1, -1))


def begin_wal(storage: Storage, wal: Storage, stream: str) -> None:
    """Create the timeline markers of the journal in a new WAL, after its WAL was lost. Can be repeated.

    Raises TimelineFound if the WAL belongs to another journal; CorruptionError; StoreError.
    """
    newest = timeline_of(newest_claim(storage, stream))
    try:
        oldest = first_claim(storage, stream, 1)
    except (
        timeline.TimelineFound
    ):  # a rebuild into an empty folder knows no claim of the first timeline, and nothing compares it
        oldest = first_claim(storage, stream, newest)
    timeline.mark(storage, wal, stream, 1, oldest)
    for number in range(2, newest + 1):
        timeline.mark(storage, wal, stream, number, first_claim(storage, stream, number))


def first_claim(storage: Storage, stream: str, of_timeline: int) -> bytes:
    """Return the first claim of a timeline; if it is damaged, its copy in the mark of its epoch.

    Raises CorruptionError if neither is whole; TimelineFound if there is no claim; StoreError.
    """
    epoch = numbered(of_timeline, 1)
    path = claim_path(stream, epoch)
    try:
        claim = storage.read(path)
    except FileNotFoundError:  # lost during the opening
        raise timeline.unfinished(storage, stream, of_timeline) from None
    try:
        claims.decode(
            claim, path, f"; copy the content of {layout.timeline_marker(stream, of_timeline)} in the WAL into it"
        )
    except CorruptionError as error:
        with suppress(FileNotFoundError, CorruptionError):
            copy = evidence.marked_claim(storage, stream, epoch)
            claims.decode(copy, evidence.mark_path(stream, epoch))
            log.error("%s; its copy in %s is used", error, evidence.mark_path(stream, epoch))
            return copy
        raise
    return claim
