"""The journal: the driver's durable decisions, and the fence between drivers.

Files, below the journal's root::

    <stream>/epochs/<16 hex>              an epoch's claim: created only if absent, never deleted
    <stream>/led/<16 hex>                    the mark of an epoch that led: created only if absent, never deleted
    <stream>/epoch-<16 hex>/<8 digits>.seg   its segments; the first record of a segment may be a full snapshot

Leading begins with the claim of the next epoch, which fences every older driver: after each durable write a driver asks
whether the next epoch's claim exists, **before** it answers or acts. Only then the older epochs are read, and what was read
is written as a full snapshot, the first record of the own epoch. So nothing relies on bytes that an older process may have
left in a page cache only, and of two that open at once only the newer one ever acts.

A segment whose first record is a snapshot makes everything before it unnecessary. The base of recovery is the newest such
segment. Events carry dense numbers: a group written a second time into a new segment is applied once, and a missing one is
noticed.

An epoch without a snapshot is passed over only if nothing proves that it led (``driver.journal.evidence``): its opener was killed
before it acted. The rule is a table in docs/ARCHITECTURE.md, *Opening*.

No step relies on a listing alone: names are dense, so what a listing does not show yet is asked for by name. What opening
asks for does not grow with the journal's age: one epoch's segments since the last snapshot, which is due after so many.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

import msgspec

from driver.journal import bounds, evidence, timeline
from driver.journal import events as ev
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.model.errors import (
    CorruptionError,
    FencedError,
    ForebayError,
    NewerVersionError,
    OutOfSpaceError,
    StoreError,
)
from forebay.model.values import numbered, timeline_of
from forebay.process import failpoints
from wal.segments import layout
from wal.segments.frame import UNDECODABLE, Frame, FrameKind
from wal.segments.scan import Damage, Newer, Readable, TornTail, scan_segment
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import Storage

log = logging.getLogger(__name__)

#: a new snapshot is written when this many events follow the last one, and they outweigh it
SNAPSHOT_EVENTS = 20_000
#: and, on a store of whole objects, after so many segments: opening reads each by a request
SNAPSHOT_SEGMENTS = 256
#: objects that opening reads at once
READ_AHEAD = 16
#: epochs in a row of which nothing is left, after which older ones are not looked for: an earlier driver deleted them
EMPTY_EPOCHS = 16

#: a snapshot without room is tried again after this part of the events between two snapshots
SNAPSHOT_RETRY_SHARE = 10

_encoder = msgspec.msgpack.Encoder()
_events_decoder = msgspec.msgpack.Decoder(tuple[ev.Event, ...])
_state_decoder = msgspec.msgpack.Decoder(State)


class EventsMeta(msgspec.Struct, frozen=True):
    """Metadata of an EVENTS frame: the number of its first event, how many, and the journal epoch."""

    first: int
    count: int
    epoch: int


class SnapshotMeta(msgspec.Struct, frozen=True):
    """Metadata of a SNAPSHOT frame: the number of the next event, and the journal epoch."""

    next: int
    epoch: int


class Claim(msgspec.Struct, frozen=True):
    """Content of an epoch's claim, for people."""

    epoch: int
    owner: str
    time_ms: int


_events_meta = msgspec.msgpack.Decoder(EventsMeta)
_snapshot_meta = msgspec.msgpack.Decoder(SnapshotMeta)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a read of the journal found. ``epoch``: whose snapshot it begins with; 0 if there is no journal. ``brought``: a
    sentence on each number that was outside of its bounds, and on each partition that therefore begins again."""

    state: State | None
    epoch: int
    segments: int
    events_after_snapshot: int
    brought: tuple[str, ...] = ()


class Journal:
    """A journal that this process leads. Made by :func:`lead`; one thread uses it."""

    def __init__(
        self,
        storage: Storage,
        stream: str,
        epoch: int,
        state: State,
        segment_bytes: int,
        now: Callable[[], float],
        new_uid: Callable[[], int],
    ) -> None:
        self.epoch = epoch
        #: events that were durable when the epoch was last found to be the newest; another thread may read it
        self.confirmed = 0
        self._storage = storage
        self._stream = stream
        self._state = state
        self._segment_bytes = segment_bytes
        self._now = now
        self._new_uid = new_uid
        self._since_snapshot = 0
        self._syncs_since_snapshot = 0
        self._oldest = 1  # sequence of the oldest own segment that was not deleted
        self._older_dropped = False  # all of older epochs
        self._next = self._durable = state.events  # the next event's number; how many are durable
        self._writer: LogWriter | None = None
        self._bases: list[int] = []  # sequences of the segments that begin with a snapshot
        self._kinds: list[str] = []  # of the events not yet durable, for failpoints

    def append(self, events: Sequence[ev.Event]) -> None:
        """Writes ``events``, decided and applied in this order, as one frame; not durable yet."""
        assert self._writer is not None
        self._kinds = [*self._kinds, *(type(event).__name__ for event in events)] if failpoints.any_armed() else []
        failpoints.hit("journal.before-write", self._kinds)
        meta = EventsMeta(first=self._next, count=len(events), epoch=self.epoch)
        self._writer.append(FrameKind.EVENTS, _encoder.encode(meta), _encoder.encode(events))
        self._next += len(events)
        self._since_snapshot += len(events)
        failpoints.hit("journal.before-sync", self._kinds)

    def sync(self) -> None:
        """Makes all that was appended durable. Raises OutOfSpaceError (nothing is lost: call again) or StoreError: the
        process must end, its state is ahead of the journal."""
        assert self._writer is not None
        self._writer.sync()
        self._durable = self._next
        self._syncs_since_snapshot += 1
        kinds, self._kinds = self._kinds, []
        failpoints.hit("journal.after-sync", kinds)

    def check(self) -> None:
        """Raises FencedError if a newer epoch, or the first one of a rebuilt journal, was claimed. To be called after each
        durable write, before any answer or action (INV-4)."""
        own = timeline_of(self.epoch)
        for epoch in (self.epoch + 1, numbered(own + 1, 1)):
            if self._storage.exists(claim_path(self._stream, epoch)):
                raise FencedError(
                    f"another driver leads stream {self._stream!r} since epoch {epoch}; this was {self.epoch}"
                    if timeline_of(epoch) == own
                    else f"the journal of stream {self._stream!r} was rebuilt: lineage {own + 1} goes on, this was {own}"
                )
        self.confirmed = self._durable

    def free_bytes(self) -> int | None:
        """Of the journal's store; None where it can't tell."""
        return self._storage.free_bytes()

    def snapshot_due(self) -> bool:
        if not self._storage.appendable and self._syncs_since_snapshot >= SNAPSHOT_SEGMENTS:
            return True
        return self._since_snapshot >= max(SNAPSHOT_EVENTS, 2 * (len(self._state.blocks) + len(self._state.batches)))

    def snapshot(self) -> None:
        """Writes a full snapshot as the first record of a new segment; durable on return. Everything appended before must
        be synced. On OutOfSpaceError what follows goes where it went before, and a snapshot is due again after some more
        events. (On a store of whole objects one that was begun may land late: it stays, and goes ahead of what follows.)"""
        if self._writer is not None and self._writer.unsynced():
            raise AssertionError("a snapshot before its events are durable")
        writer = self._new_writer()
        first = writer.next_sequence
        meta = SnapshotMeta(next=self._state.events, epoch=self.epoch)
        encoded = _encoder.encode(self._state)
        try:
            self._check_room(len(encoded))
            pending = writer.append(FrameKind.SNAPSHOT, _encoder.encode(meta), encoded)
            writer.sync()
        except OutOfSpaceError:
            self._since_snapshot -= self._since_snapshot // SNAPSHOT_RETRY_SHARE
            self._syncs_since_snapshot -= self._syncs_since_snapshot // SNAPSHOT_RETRY_SHARE
            if not self._storage.appendable and writer.unsynced():
                self._writer = writer
                raise
            writer.close()
            for sequence in range(first, writer.next_sequence + 1):  # it took the room that completions need
                self._storage.delete(layout.journal_segment(self._stream, self.epoch, sequence))
            raise
        if self._writer is not None:
            self._writer.close()
        self._writer = writer
        assert pending.handle is not None  # just synced
        place = layout.parse_journal(pending.handle.path)
        assert place is not None
        self._since_snapshot = self._syncs_since_snapshot = 0
        self._bases.append(place.sequence)

    def _check_room(self, snapshot_bytes: int) -> None:
        """A snapshot on the way must leave room for the events after it; the first one has none before it to go on with."""
        free = self._storage.free_bytes() if self._writer is not None else None
        if free is not None and free < 2 * snapshot_bytes:
            raise OutOfSpaceError(f"{self._storage.url}: a snapshot has {snapshot_bytes} bytes, {free} are free")

    def drop_superseded(self) -> None:
        """Deletes segments that lie before the second newest base of this epoch, and those of epochs before the previous
        one; of the previous one too, once this epoch has two bases. Claims and marks stay, and older lineages are left as they
        are. Call only after :meth:`check` passed (a fenced driver deletes nothing, INV-4) and the epoch's mark is durable: it
        proves that the epochs below are not to be opened again."""
        newest = self._bases[-1]
        if len(self._bases) == 1:
            self._drop_epochs(self.epoch - 2)
            return
        for sequence in range(self._oldest, self._bases[-2]):
            self._storage.delete(layout.journal_segment(self._stream, self.epoch, sequence))
        self._oldest = self._bases[-2]
        self._bases = [self._oldest, newest]
        if not self._older_dropped:
            self._drop_epochs(self.epoch - 1)
            self._older_dropped = True

    def _drop_epochs(self, newest: int) -> None:
        """Everything of the epoch ``newest`` and of older ones of this lineage."""
        empty = 0
        for epoch in range(newest, numbered(timeline_of(self.epoch), 0), -1):
            paths = self._storage.list(epoch_folder(self._stream, epoch))
            for path in paths:
                self._storage.delete(path)
            empty = 0 if paths else empty + 1
            if empty == EMPTY_EPOCHS:
                return

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _new_writer(self) -> LogWriter:
        first = 1 if self._writer is None else self._writer.next_sequence
        identity = SegmentIdentity(
            stream=self._stream, writer="driver", epoch=self.epoch, timeline=timeline_of(self.epoch)
        )
        return LogWriter(
            self._storage,
            lambda sequence: layout.journal_segment(self._stream, self.epoch, sequence),
            identity,
            SegmentLimits(size_bytes=self._segment_bytes, age_seconds=float("inf")),
            self._now,
            self._new_uid,
            rewrite=False,
            first_sequence=first,
        )


def claim_path(stream: str, epoch: int) -> str:
    return f"{stream}/epochs/{epoch:016x}"


def epoch_folder(stream: str, epoch: int) -> str:
    return f"{stream}/epoch-{epoch:016x}"


def lead(
    storage: Storage,
    stream: str,
    owner: str,
    wall_ms: int,
    now: Callable[[], float],
    new_uid: Callable[[], int],
    segment_bytes: int = 64_000_000,
    wal: Storage | None = None,
    claimed: Callable[[int], None] = lambda _: None,
) -> tuple[Journal, State]:
    """Claims the next epoch, reads what older ones decided, and writes it as the first record of the own epoch.

    ``wal``: the WAL that this journal's stream is in, whose markers tell a lost journal from a new one; it is marked as this
    journal's. ``owner`` is written into the claim; ``claimed`` hears of the epoch at once, before the reading, which may take
    long. Raises FencedError if another one claimed a newer epoch while this one
    was opening; TimelineFound where the WAL is not this journal's; CorruptionError, NewerVersionError, StoreError.
    """
    steps = opening(storage, stream, owner, wall_ms, now, new_uid, segment_bytes, wal, claimed)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("tuple[Journal, State]", end.value)


def opening(
    storage: Storage,
    stream: str,
    owner: str,
    wall_ms: int,
    now: Callable[[], float],
    new_uid: Callable[[], int],
    segment_bytes: int = 64_000_000,
    wal: Storage | None = None,
    claimed: Callable[[int], None] = lambda _: None,
) -> Generator[str, None, tuple[Journal, State]]:
    """:func:`lead`, step by step: yields the name of each step done, returns (journal, state). The simulation crashes and
    interleaves drivers between steps."""
    newest = newest_claim(storage, stream)
    marked = timeline.refuse_other(storage, wal, stream, timeline_of(newest)) if wal is not None else 0
    epoch = newest + 1 if newest else numbered(1, 1)
    while True:
        claim = msgspec.json.encode(Claim(epoch=epoch, owner=owner, time_ms=wall_ms))
        try:
            storage.put_new(claim_path(stream, epoch), claim)
        except FileExistsError:
            epoch += 1
            continue
        if not evidence.is_marked(storage, stream, epoch):
            break
        epoch += 1  # its claim was lost, and is there again
    claimed(epoch)
    yield "claimed"
    failpoints.hit("journal.opening")
    reading = read_beside_a_writer(storage, stream)  # a paused older driver may wake and delete what it superseded
    if reading.epoch == epoch:  # led by an older release, which makes no marks
        raise CorruptionError(
            claim_path(stream, epoch), 0, "the claim was missing; the driver created it again. Start the driver again"
        )
    for sentence in reading.brought:
        log.error("journal of stream %s: %s", stream, sentence)
    if reading.state is None and marked:
        raise timeline.unfinished(storage, stream, marked)
    state = reading.state if reading.state is not None else State(stream=stream, timeline=timeline_of(epoch))
    yield "read"
    journal = Journal(storage, stream, epoch, state, segment_bytes, now, new_uid)
    journal.snapshot()
    yield "snapshot"
    failpoints.hit("journal.after-snapshot")
    journal.check()
    if wal is not None:
        try:
            first_claim = storage.read(claim_path(stream, numbered(timeline_of(epoch), 1)))
        except FileNotFoundError:  # lost while it was opened
            raise timeline.unfinished(storage, stream, timeline_of(epoch)) from None
        timeline.mark(storage, wal, stream, timeline_of(epoch), first_claim)
    evidence.mark(storage, stream, epoch, claim)
    journal.drop_superseded()
    return journal, state


def newest_claim(storage: Storage, stream: str) -> int:
    """The newest epoch ever claimed; 0 if none."""
    names = [path.rsplit("/", 1)[1] for path in storage.list(f"{stream}/epochs")]
    newest = max((int(name, 16) for name in names), default=0)
    while True:
        for following in (newest + 1 if newest else 0, numbered(timeline_of(newest) + 1, 1)):
            if following and storage.exists(claim_path(stream, following)):
                newest = following
                break
        else:
            return newest


def read(storage: Storage, stream: str) -> Reading:
    """Reads the journal and changes nothing (fences nobody). Only the newest lineage counts. Raises CorruptionError, also where
    an epoch led and its snapshot is missing, or fewer events are found than the lease calls durable (INV-5);
    NewerVersionError, StoreError; BrokenInvariant where intact events contradict each other."""
    seen = evidence.witness(storage, stream)
    newest = newest_claim(storage, stream)
    if seen.epoch > newest:
        raise CorruptionError(
            claim_path(stream, seen.epoch), 0, "the claim is missing, but the lease names this epoch as one that led. If its "
            "segments are there, another start finds them"
        )  # fmt: skip
    segments = 0
    for epoch in range(newest, numbered(max(1, timeline_of(newest)), 0), -1):
        led = epoch == seen.epoch or evidence.is_marked(storage, stream, epoch)  # asked first: it may begin to lead now
        paths = segment_paths(storage, stream, epoch)
        segments += len(paths)
        source: Readable = storage if storage.appendable else _Objects(storage, paths[::-1])
        for base in range(len(paths) - 1, -1, -1):
            first = _first_record(source, paths[base])
            brought: list[str] = []
            state = _snapshot_of(first, paths[base], brought)
            if state is not None:
                after = _replay(source, paths[base:], state, brought)
                if seen.lacks_events(timeline_of(epoch), state.events):
                    raise CorruptionError(paths[-1], source.size(paths[-1]), seen.words(state.events))
                if brought:
                    brought += bounds.begin_again(state)
                return Reading(state, epoch, segments, after, tuple(brought))
            led = led or first is not None  # events follow a snapshot alone
        if led:
            path = paths[0] if paths else layout.journal_segment(stream, epoch, 1)
            raise CorruptionError(
                path, 0, f"epoch {epoch:x} led, and none of its snapshots is found: a segment was deleted, cut or left out of "
                "the store's listing"
            )  # fmt: skip
    return Reading(None, 0, segments, 0)


def segment_paths(storage: Storage, stream: str, epoch: int) -> list[str]:
    """The segments of ``epoch`` in order: those listed, those that may lie in the holes between, and those below and after
    them, as far as they are there."""
    places = (layout.parse_journal(path) for path in storage.list(epoch_folder(stream, epoch)))
    listed = sorted(place.sequence for place in places if place is not None)
    found = {sequence: layout.journal_segment(stream, epoch, sequence) for sequence in listed}
    sequence = listed[0] - 1 if listed else 0
    while sequence > 0 and storage.exists(path := layout.journal_segment(stream, epoch, sequence)):
        found[sequence] = path
        sequence -= 1
    sequence = listed[0] if listed else 1
    while True:
        if sequence not in found:
            path = layout.journal_segment(stream, epoch, sequence)
            if storage.exists(path):
                found[sequence] = path
            elif not listed or sequence > listed[-1]:
                return [found[sequence] for sequence in sorted(found)]
        sequence += 1


def _replay(source: Readable, paths: Sequence[str], state: State, brought: list[str]) -> int:
    """Applies what follows the snapshot that is first in ``paths``; returns how many events."""
    expected = state.events
    after = 0
    for path in paths:
        for frame in _frames(source, path):
            if frame.header.kind != FrameKind.EVENTS:
                continue
            meta = _meta(_events_meta, frame, path)
            if meta.first > expected:
                raise CorruptionError(path, frame.offset, f"events {expected} to {meta.first - 1} are missing")
            if meta.first + meta.count <= expected:
                continue
            for event in _decode_events(frame, path, brought)[expected - meta.first :]:
                apply(state, event)
                after += 1
            expected = meta.first + meta.count
    return after


class _Objects:
    """Whole objects, each read by one request, some ahead and at once. ``paths``: in the order of their first use."""

    def __init__(self, storage: Storage, paths: Sequence[str]) -> None:
        self._storage = storage
        self._paths = list(paths)
        self._data: dict[str, bytes] = {}

    def size(self, path: str) -> int:
        return len(self._whole(path))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._whole(path)
        return data[offset:] if length is None else data[offset : offset + length]

    def _whole(self, path: str) -> bytes:
        if path not in self._data:
            at = self._paths.index(path)
            ahead = self._paths[at : at + READ_AHEAD]
            with ThreadPoolExecutor(READ_AHEAD) as pool:
                self._data.update(zip(ahead, pool.map(self._storage.read, ahead), strict=True))
        return self._data[path]


def read_beside_a_writer(storage: Storage, stream: str, attempts: int = 10) -> Reading:
    """:func:`read` beside a driver, which may delete superseded segments under the reader: it begins again, until it finds the
    same damage twice."""
    damage = ""
    for _ in range(attempts - 1):
        try:
            return read(storage, stream)
        except FileNotFoundError:
            continue
        except CorruptionError as error:
            if damage == str(error):
                raise
            damage = str(error)
    return read(storage, stream)


def snapshot_in(source: Readable, path: str, brought: list[str] | None = None) -> State | None:
    """The state if the segment's first record is a snapshot. A torn first record does not count: its writer died before it was
    durable, or :func:`read` finds what proves the opposite. A damaged one may have been acted on, and is never passed over in
    silence (INV-5). ``brought``: gets a sentence on each number that was outside of its bounds."""
    return _snapshot_of(_first_record(source, path), path, brought)


def _first_record(source: Readable, path: str) -> Frame | None:
    """The first whole frame after the segment's header. Raises CorruptionError, NewerVersionError."""
    for found in scan_segment(source, path):
        if isinstance(found, TornTail):
            return None
        if isinstance(found, Damage):
            raise CorruptionError(path, found.offset, found.reason)
        if isinstance(found, Newer):
            raise NewerVersionError(path, found.offset, found.version, found.newest)
        if found.header.kind != FrameKind.SEGMENT:
            return found
    return None


def _snapshot_of(first: Frame | None, path: str, brought: list[str] | None) -> State | None:
    if first is None or first.header.kind != FrameKind.SNAPSHOT:
        return None
    try:
        return _state_decoder.decode(first.payload)
    except UNDECODABLE as error:
        within = bounds.decode(first.payload, State)
        if within is None:
            raise CorruptionError(path, first.offset, f"the snapshot can't be decoded: {error}") from None
        if brought is not None:
            brought += (f"{path} at byte {first.offset}: {sentence}" for sentence in within[1])
        return within[0]


def _frames(source: Readable, path: str) -> Iterator[Frame]:
    for found in scan_segment(source, path):
        if isinstance(found, TornTail):
            return  # written and never answered, or written again in the next segment: numbers tell
        if isinstance(found, Damage):
            raise CorruptionError(path, found.offset, found.reason)
        if isinstance(found, Newer):
            raise NewerVersionError(path, found.offset, found.version, found.newest)
        yield found


def _meta(decoder: msgspec.msgpack.Decoder[EventsMeta], frame: Frame, path: str) -> EventsMeta:
    try:
        return decoder.decode(frame.metadata)
    except UNDECODABLE as error:
        raise CorruptionError(path, frame.offset, f"metadata of an events frame: {error}") from None


def _decode_events(frame: Frame, path: str, brought: list[str]) -> tuple[ev.Event, ...]:
    try:
        return _events_decoder.decode(frame.payload)
    except msgspec.ValidationError as error:
        within = bounds.decode(frame.payload, tuple[ev.Event, ...])
        if within is not None:
            brought += (f"{path} at byte {frame.offset}: {sentence}" for sentence in within[1])
            return within[0]
        raise ForebayError(
            f"{path} at byte {frame.offset}: an event of a newer release: {error}; use the release that wrote it"
        ) from None
    except UNDECODABLE as error:
        raise CorruptionError(path, frame.offset, f"events can't be decoded: {error}") from None


__all__ = ["Journal", "Reading", "StoreError", "claim_path", "lead", "newest_claim", "opening", "read"]
