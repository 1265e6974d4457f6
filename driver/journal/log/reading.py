"""Reading a journal: the newest snapshot and the events after it. It changes nothing and fences no driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from driver.journal import events as ev
from driver.journal.files import EventsMeta, claim_path, newest_claim, segment_paths
from driver.journal.leadership import evidence
from driver.journal.log import bounds
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.model.errors import CorruptionError, ForebayError, NewerVersionError
from forebay.model.identifiers import numbered, timeline_of
from forebay.model.wire import UNDECODABLE
from wal.segments import layout
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import Damage, Newer, Readable, Scanned, TornTail, scan_object, scan_segment
from wal.storage import Storage

#: number of objects that are read at the same time
READ_AHEAD = 16
#: frames that are read, decoded and applied together: at most so many, and no further one from so many bytes on
GROUP_FRAMES, GROUP_BYTES = 128, 1 << 20
_events_decoder = msgspec.msgpack.Decoder(tuple[ev.Event, ...])
_state_decoder = msgspec.msgpack.Decoder(State)
_events_meta = msgspec.msgpack.Decoder(EventsMeta)


@dataclass(frozen=True, slots=True)
class StoredJournal:
    """A journal as it was read.

    ``epoch``: the epoch whose snapshot was read; 0 if there is no journal. ``corrections``: one sentence for each number outside
    its bounds, and for each partition that therefore starts a new incarnation.
    """

    state: State | None
    epoch: int
    segments: int
    events_after_snapshot: int
    corrections: tuple[str, ...] = ()


def read(storage: Storage, stream: str, known: int = 0) -> StoredJournal:
    """Read the journal of ``stream``. Only the newest timeline counts. ``known``: as of :func:`newest_claim`.

    Raises CorruptionError, also if the snapshot of an epoch that led is missing, or if fewer events are found than the lease
    calls durable (INV-5); NewerVersionError; StoreError; BrokenInvariant if intact events contradict each other.
    """
    seen = evidence.witness(storage, stream)
    newest = newest_claim(storage, stream, known)
    if seen.epoch > newest:
        raise CorruptionError(
            claim_path(stream, seen.epoch), 0, "the claim is missing, but the lease names this epoch as one that led; start the "
            "driver: it creates the claim again, and reads the epoch's segments if they exist"
        )  # fmt: skip
    segments = 0
    for epoch in range(newest, numbered(max(1, timeline_of(newest)), 0), -1):
        led = epoch == seen.epoch or evidence.is_marked(
            storage, stream, epoch
        )  # read first: the epoch may begin to lead
        paths = segment_paths(storage, stream, epoch)
        segments += len(paths)
        source: Readable = storage if storage.appendable else _Objects(storage, paths[::-1])
        for base in range(len(paths) - 1, -1, -1):
            first = _first_record(source, paths[base])
            corrections: list[str] = []
            state = _snapshot_of(first, paths[base], corrections)
            if state is not None:
                after = _replay(source, paths[base:], state, corrections)
                if seen.lacks_events(timeline_of(epoch), state.events):
                    raise CorruptionError(paths[-1], source.size(paths[-1]), seen.message(state.events))
                if corrections:
                    corrections += bounds.begin_again(state)
                return StoredJournal(state, epoch, segments, after, tuple(corrections))
            led = led or first is not None  # events exist only after a snapshot
        if led:
            path = paths[0] if paths else layout.journal_segment(stream, epoch, 1)
            raise CorruptionError(
                path, 0, f"epoch {epoch:x} led, and none of its snapshots is found: a segment was deleted or cut, or the store's "
                "listing omits it"
            )  # fmt: skip
    return StoredJournal(None, 0, segments, 0)


def _replay(source: Readable, paths: Sequence[str], state: State, corrections: list[str]) -> int:
    """Apply the events after the snapshot with which the first of ``paths`` begins, and return their number."""
    return sum(replay_frames(_frames(source, path), path, state, corrections) for path in paths)


def replay_frames(frames: Iterator[Frame], path: str, state: State, corrections: list[str]) -> int:
    """Apply the events in ``frames`` of one segment that ``state`` does not contain yet, and return their number.

    Raises CorruptionError if events before them are missing, and as :func:`read`.
    """
    expected = state.events
    after = 0
    for group in _groups(frames):
        events: list[ev.Event] = []
        for frame in group:
            if frame.header.kind != FrameKind.EVENTS:
                continue
            meta = _meta(_events_meta, frame, path)
            if meta.first > expected:
                raise CorruptionError(path, frame.offset, f"events {expected} to {meta.first - 1} are missing")
            if meta.first + meta.count <= expected:
                continue
            events += _decode_events(frame, path, corrections)[expected - meta.first :]
            expected = meta.first + meta.count
        for event in events:
            apply(state, event)
        after += len(events)
    return after


def _groups(frames: Iterator[Frame]) -> Iterator[list[Frame]]:
    """Yield the frames in groups. Three short loops over a group take two thirds of the time of one long loop over frames: the
    processor's caches keep the code of each."""
    group: list[Frame] = []
    size = 0
    for frame in frames:
        group.append(frame)
        size += frame.length
        if len(group) == GROUP_FRAMES or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    yield group


class _Objects:
    """Whole objects, each read by one request; ``READ_AHEAD`` are read at the same time. ``paths``: in the order of first use."""

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


def read_beside_a_writer(storage: Storage, stream: str, known: int = 0, *, attempts: int = 10) -> StoredJournal:
    """Do :func:`read` while a driver may be running and may delete superseded segments.

    If a segment disappears, the reader starts again, up to ``attempts`` times. It reports damage only if it finds the same damage
    twice. ``known``, and what it raises: as :func:`read`.
    """
    damage = ""
    for _ in range(attempts - 1):
        try:
            return read(storage, stream, known)
        except FileNotFoundError:
            continue
        except CorruptionError as error:
            if damage == str(error):
                raise
            damage = str(error)
    return read(storage, stream, known)


def snapshot_in(source: Readable, path: str, corrections: list[str] | None = None) -> State | None:
    """Return the state if the segment begins with a snapshot; else None.

    A torn first frame does not count: its writer was killed before the frame was durable, unless :func:`read` finds evidence of
    the opposite. A damaged first frame raises CorruptionError, since a driver may have acted on it (INV-5). ``corrections``:
    receives one sentence for each number outside its bounds.
    """
    return _snapshot_of(_first_record(source, path), path, corrections)


def _first_record(source: Readable, path: str) -> Frame | None:
    """Return the first whole frame after the segment's header, or None. Raises CorruptionError, NewerVersionError."""
    for found in _scan(source, path):
        if isinstance(found, TornTail):
            return None
        if isinstance(found, Damage):
            raise CorruptionError(path, found.offset, found.reason)
        if isinstance(found, Newer):
            raise NewerVersionError(
                path, found.offset, version=found.version, newest=found.newest, feature=found.feature
            )
        if found.header.kind != FrameKind.SEGMENT:
            return found
    return None


def _snapshot_of(first: Frame | None, path: str, corrections: list[str] | None) -> State | None:
    if first is None or first.header.kind != FrameKind.SNAPSHOT:
        return None
    try:
        return _state_decoder.decode(first.payload)
    except UNDECODABLE as error:
        within = bounds.decode(first.payload, State)
        if within is None:
            raise CorruptionError(path, first.offset, f"the snapshot can't be decoded: {error}") from None
        if corrections is not None:
            corrections += (f"{path} at byte {first.offset}: {sentence}" for sentence in within[1])
        return within[0]


def _frames(source: Readable, path: str) -> Iterator[Frame]:
    return intact_frames(_scan(source, path), path)


def _scan(source: Readable, path: str) -> Iterator[Scanned]:
    return scan_object(source, path) if isinstance(source, _Objects) else scan_segment(source, path)


def intact_frames(found: Iterable[Scanned], path: str) -> Iterator[Frame]:
    """Yield the frames of the segment ``path`` up to a torn tail. Raises CorruptionError, NewerVersionError."""
    for item in found:
        if isinstance(item, TornTail):
            return  # never answered, or written again in the next segment: the event numbers show it
        if isinstance(item, Damage):
            raise CorruptionError(path, item.offset, item.reason)
        if isinstance(item, Newer):
            raise NewerVersionError(path, item.offset, version=item.version, newest=item.newest, feature=item.feature)
        yield item


def _meta(decoder: msgspec.msgpack.Decoder[EventsMeta], frame: Frame, path: str) -> EventsMeta:
    try:
        return decoder.decode(frame.metadata)
    except UNDECODABLE as error:
        raise CorruptionError(
            path, frame.offset, f"the metadata of an events frame can't be decoded: {error}"
        ) from None


def _decode_events(frame: Frame, path: str, corrections: list[str]) -> tuple[ev.Event, ...]:
    try:
        return _events_decoder.decode(frame.payload)
    except msgspec.ValidationError as error:
        within = bounds.decode(frame.payload, tuple[ev.Event, ...])
        if within is not None:
            corrections += (f"{path} at byte {frame.offset}: {sentence}" for sentence in within[1])
            return within[0]
        raise ForebayError(
            f"{path} at byte {frame.offset}: the event is of a newer release: {error}; use the release that wrote it"
        ) from None
    except UNDECODABLE as error:
        raise CorruptionError(path, frame.offset, f"events can't be decoded: {error}") from None
