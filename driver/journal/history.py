"""The history: completed batches in compact form, beside the journal. The audit and replays read it.

The driver makes a batch durable here before it journals that its state drops the batch (``BatchesArchived``). If the driver is
killed between the two, both have the batch. Readers use each batch id once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import msgspec

from driver.journal.files import HistoryMeta
from driver.journal.state import State
from driver.journal.state_parts import Batch
from driver.journal.statistics import BatchStatistics
from driver.journal.versions import StateCommit
from forebay.kafka.consume.planning import sizes
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.bounds import total_size
from forebay.model.errors import CorruptionError, NewerVersionError
from forebay.model.identifiers import timeline_of
from forebay.model.values import Block, BlockRange
from forebay.model.wire import UNDECODABLE, WIRE_NAMES
from forebay.process import failpoints
from wal.segments import layout
from wal.segments.frame import FrameKind
from wal.segments.scan import Damage, Newer, TornTail, scan_object, scan_segment
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import Storage

#: maximum number of batches that move to the history together
LEAVING_MAX = 10_000

_FROM, _UNTIL, _RECORDS, _BYTES = map(attrgetter, ("from_offset", "until_offset", "records", "bytes"))


class FinishedRange(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """Offsets ``[from, until)`` of one incarnation that one batch contains without a gap, and the number of records.

    ``bytes``: size of their keys and values; None under an older release, and in a direct stream.
    """

    topic: str
    partition: int
    incarnation: int
    from_offset: int
    until_offset: int
    records: int
    bytes: int | None = None

    @property
    def label(self) -> str:
        """The range as ``BlockRange.label`` writes it."""
        incarnation = "" if self.incarnation == 1 else f" life {self.incarnation}"
        return f"{self.topic}/{self.partition}[{self.from_offset}, {self.until_offset}){incarnation}"


class FinishedBatch(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """A completed batch. ``tasks``: for each task its block ids, for a replay within the rewind horizon. ``lost``: accepted
    losses. ``skipped``: who skipped the batch, and why; "": it was not skipped."""

    batch_id: int
    number: int
    time_ms: int
    completed_ms: int
    attempts: int
    records: int
    ranges: tuple[FinishedRange, ...]
    tasks: tuple[tuple[str, ...], ...]
    lost: tuple[str, ...] = ()
    loss_causes: dict[str, str] = {}  # range → who accepted its loss, and why
    spans: tuple[OffsetRange, ...] = ()  # of a direct stream, in place of tasks: what each task read
    incarnations: tuple[int, ...] = ()  # the incarnation of each span's partition; () under an older release
    skipped: str = ""
    statistics: BatchStatistics | None = None  # None under an older release
    states: tuple[StateCommit, ...] = ()  # keyed states that its outputs changed in its first run


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[FinishedBatch, ...])


def merge(ranges: Iterable[BlockRange | FinishedRange]) -> tuple[FinishedRange, ...]:
    """Join touching ranges of one partition and incarnation. Ranges that overlap, or have a gap between them, stay separate."""
    lines: defaultdict[tuple[str, int, int], list[BlockRange | FinishedRange]] = defaultdict(list)
    for r in ranges:
        lines[r.topic, r.partition, r.incarnation].append(r)
    merged: list[FinishedRange] = []
    for _, pieces in sorted(lines.items()):
        # nearly always; a batch may have 500,000 ranges
        if list(map(_FROM, pieces[1:])) == list(map(_UNTIL, pieces[:-1])):
            merged.append(_joined(pieces))
            continue
        pieces.sort(key=attrgetter("from_offset", "until_offset"))
        parts = pieces[:1]
        for piece in pieces[1:]:
            if piece.from_offset != parts[-1].until_offset:
                merged.append(_joined(parts))
                parts = []
            parts.append(piece)
        merged.append(_joined(parts))
    return tuple(merged)


def _joined(parts: Sequence[BlockRange | FinishedRange]) -> FinishedRange:
    """Return touching ranges, in order, as one."""
    first = parts[0]
    found = list(map(_BYTES, parts))
    return FinishedRange(
        first.topic,
        first.partition,
        first.incarnation,
        first.from_offset,
        parts[-1].until_offset,
        sum(map(_RECORDS, parts)),
        None if None in found else total_size(found),
    )


@dataclass(frozen=True, slots=True)
class Leaving:
    """A completed batch that moves to the history, with its blocks. Neither changes any more."""

    batch: Batch
    blocks: tuple[Block, ...]

    def finished(self) -> FinishedBatch:
        """Return the batch as the history stores it. Slow for many blocks: do not call it in the decision loop."""
        batch = self.batch
        assert batch.completed_ms is not None
        return FinishedBatch(
            batch_id=batch.batch_id,
            number=batch.number,
            time_ms=batch.time_ms,
            completed_ms=batch.completed_ms,
            attempts=batch.attempts,
            records=sum(block.meta.records for block in self.blocks) + sizes(batch.spans),
            ranges=merge(
                chain(
                    (r for block in self.blocks for r in block.meta.ranges),
                    ranges_of_spans(batch.spans_with_incarnations),
                )
            ),
            tasks=batch.tasks,
            lost=batch.lost,
            loss_causes=batch.loss_causes,
            spans=batch.spans,
            incarnations=batch.incarnations,
            skipped=batch.skipped,
            statistics=batch.statistics,
            states=batch.states,
        )


def ranges_of_spans(spans: Iterable[tuple[OffsetRange, int]]) -> Iterator[FinishedRange]:
    """Yield the ranges of a direct stream's batch, as the history stores them. ``spans``: each offset range with its incarnation.

    The number of records in a span is unknown, so its number of offsets is stored. If the topic is compacted or transactional,
    this is more than its records.
    """
    for span, incarnation in spans:
        yield FinishedRange(span.topic, span.partition, incarnation, span.from_offset, span.until_offset, span.size)


def leaving(state: State, limit: int = LEAVING_MAX, windows: bool = True) -> tuple[Leaving, ...]:
    """Return the batches of the contiguous completed prefix, in order, ``limit`` at most. With ``windows``: only those that
    can leave the journal's state, because no uncompleted batch's window contains them."""
    done: list[Leaving] = []
    for batch in sorted(state.batches.values(), key=lambda b: b.number):
        past = state.is_past(batch.number) if windows else batch.number <= state.completed_number
        if not past or batch.completed_ms is None or len(done) == limit:
            break
        done.append(Leaving(batch, tuple(state.blocks[block_id] for block_id in batch.block_ids)))
    return tuple(done)


def finished(state: State, limit: int = LEAVING_MAX, windows: bool = True) -> tuple[FinishedBatch, ...]:
    """Return what :func:`leaving` returns, as the history stores it."""
    return tuple(batch.finished() for batch in leaving(state, limit, windows))


class HistoryWriter:
    """Appends completed batches. Each driver epoch has segments of its own."""

    def __init__(
        self,
        storage: Storage,
        stream: str,
        epoch: int,
        *,
        segment_bytes: int,
        now: Callable[[], float],
        new_uid: Callable[[], int],
    ) -> None:
        self._writer = LogWriter(
            storage,
            lambda sequence: layout.history_segment(stream, epoch, sequence),
            identity=SegmentIdentity(stream=stream, writer="driver", epoch=epoch, timeline=timeline_of(epoch)),
            limits=SegmentLimits(size_bytes=segment_bytes, age_seconds=float("inf")),
            now=now,
            new_uid=new_uid,
        )
        self._waiting: tuple[FinishedBatch, ...] = ()

    def append(self, batches: tuple[FinishedBatch, ...]) -> None:
        """Append ``batches``; they are durable on return. Raises OutOfSpaceError (nothing is lost: call it again later),
        StoreError."""
        if batches != self._waiting:  # batches that wait for space are already in the writer
            meta = _encoder.encode(HistoryMeta(actions=True)) if any(batch.skipped for batch in batches) else b""
            self._writer.append(FrameKind.HISTORY, meta, _encoder.encode(batches))
            self._waiting = batches
        self._writer.sync()
        self._waiting = ()
        failpoints.hit("history.after-append")

    def close(self) -> None:
        self._writer.close()


def _listed(storage: Storage, stream: str) -> dict[int, set[int]]:
    """Return epoch → sequences of the segments that a listing shows."""
    listed: dict[int, set[int]] = defaultdict(set)
    for path in storage.list(f"{stream}/history"):
        if (place := layout.parse_history(path)) is not None:
            listed[place.epoch].add(place.sequence)
    return listed


def _paths(storage: Storage, stream: str, epoch: int, listed: set[int]) -> list[str]:
    """Return the segments of an epoch in order: those that a listing shows, and those before, between and after them that exist.

    Names are dense. Raises CorruptionError if a segment between two others is missing.
    """
    found: list[str] = []
    sequence = 1
    while True:
        path = layout.history_segment(stream, epoch, sequence)
        if sequence in listed or storage.exists(path):
            found.append(path)
        elif sequence > max(listed):
            return found
        elif found:
            raise CorruptionError(path, 0, "the segment is missing, and later ones of its epoch exist")
        sequence += 1


def read(storage: Storage, stream: str) -> Iterator[FinishedBatch]:
    """Return every completed batch, in the order written. A batch may occur twice (same id, same content). Raises
    CorruptionError, also if a segment between others is missing; NewerVersionError, StoreError."""
    for epoch, listed in sorted(_listed(storage, stream).items()):
        for path in _paths(storage, stream, epoch, listed):
            yield from _batches(storage, path)


def read_back(storage: Storage, stream: str, before_epoch: int | None = None) -> Iterator[tuple[FinishedBatch, ...]]:
    """Return the batches of each segment, the newest segment first. A segment is read only when it is reached. With
    ``before_epoch``: only segments of older journal epochs. Raises as :func:`read`."""
    for epoch, listed in sorted(_listed(storage, stream).items(), reverse=True):
        if before_epoch is not None and epoch >= before_epoch:
            continue
        for path in reversed(_paths(storage, stream, epoch, listed)):
            yield tuple(_batches(storage, path))


def _batches(storage: Storage, path: str) -> Iterator[FinishedBatch]:
    for found in scan_segment(storage, path) if storage.appendable else scan_object(storage, path):
        if isinstance(found, TornTail):
            break
        if isinstance(found, Damage):
            raise CorruptionError(path, found.offset, found.reason)
        if isinstance(found, Newer):
            raise NewerVersionError(
                path, found.offset, version=found.version, newest=found.newest, feature=found.feature
            )
        if found.header.kind == FrameKind.HISTORY:
            try:
                yield from _decoder.decode(found.payload)
            except UNDECODABLE as error:
                raise CorruptionError(path, found.offset, f"history can't be decoded: {error}") from None
