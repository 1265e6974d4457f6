"""``forebay wal inspect``: the content of the write-ahead log, frame by frame."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click
import msgspec

from deploy.console.invocation import FINDINGS, FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.parameters import MomentType, PartitionType
from deploy.console.progress import progress_bar
from forebay.model.errors import CorruptionError, StoreError, UsageError
from forebay.model.values import BlockRange, TopicPartition

if TYPE_CHECKING:
    from rich.console import Group

    from wal.segments.layout import BlockPlace
    from wal.segments.scan import Scanned
    from wal.storage import Storage


class Entry(msgspec.Struct, frozen=True):
    """One place in a segment.

    ``state``: whole | torn | damaged | newer | unreadable (the store's read failed there) | deleted (only from
    ``forebay wal follow``). ``kind``: of the frame, "" if unknown. ``ranges``: labels ``topic/partition[from, until)``, if the
    metadata could be read.
    """

    path: str
    offset: int
    length: int
    state: str
    kind: str = ""
    version: int = 0
    block_id: str = ""
    records: int = 0
    ranges: tuple[str, ...] = ()
    detail: str = ""


class SegmentSummary(msgspec.Struct, frozen=True):
    """Counts over one segment. ``versions``: format versions of its frames."""

    path: str
    bytes: int
    frames: int
    blocks: int
    records: int
    versions: tuple[int, ...]
    torn: int
    damaged: int
    newer: int


class Inspection(msgspec.Struct, frozen=True):
    """The inspected segments, and the places in them."""

    segments: tuple[SegmentSummary, ...]
    entries: tuple[Entry, ...]

    @property
    def findings(self) -> list[Entry]:
        """The places that are damaged, unreadable, or written by a newer release. A torn tail is none of these."""
        return [entry for entry in self.entries if entry.state in ("damaged", "newer", "unreadable")]


class BlockContent(NamedTuple):
    """The records at a place; no ranges if the frame is not a block. ``created_ms``: time when the block was sealed."""

    ranges: tuple[BlockRange, ...] = ()
    created_ms: int = 0


class Filters(msgspec.Struct, frozen=True):
    """Conditions on segments and blocks.

    ``spans``: (partition, from, until). ``since_ms``, ``before_ms``: bounds of the time when a block was sealed. ``receiver``
    and ``epoch`` are compared with the segment's name; a place with unknown content passes all other conditions.
    """

    receiver: str | None = None
    epoch: int | None = None
    partitions: frozenset[TopicPartition] = frozenset()
    spans: tuple[tuple[TopicPartition, int, int], ...] = ()
    since_ms: int | None = None
    before_ms: int | None = None

    def takes_segment(self, place: BlockPlace | None) -> bool:
        if self.receiver is None and self.epoch is None:
            return True
        return place is not None and self.receiver in (None, place.receiver) and self.epoch in (None, place.epoch)

    def takes(self, held: BlockContent | None) -> bool:
        if held is None:
            return True
        if (self.partitions or self.spans) and not any(map(self._takes_range, held.ranges)):
            return False
        timed = self.since_ms is not None or self.before_ms is not None
        if timed and not held.ranges:
            return False
        return (self.since_ms or 0) <= held.created_ms < (self.before_ms or 1 << 63)

    def _takes_range(self, r: BlockRange) -> bool:
        return r.tp in self.partitions or any(
            r.tp == tp and r.from_offset < until and r.until_offset > start for tp, start, until in self.spans
        )


def inspect_log(storage: Storage, paths: Sequence[str], filters: Filters) -> Inspection:
    """Scan the segments at ``paths`` that pass ``filters``, and return the places in them that pass.

    A segment that can't be read is a finding. Raises StoreError if none can be read: the store is unavailable.
    """
    from wal.segments.layout import parse_block

    segments: list[SegmentSummary] = []
    entries: list[Entry] = []
    errors: list[StoreError] = []
    wanted = [path for path in paths if filters.takes_segment(parse_block(path))]
    with progress_bar("segments", len(wanted), unit_bytes=False) as progress:
        for path in wanted:
            size, found, error = _places(storage, path, filters)
            if error is not None:
                errors.append(error)
            entries += found
            segments.append(_summary(path, size, found))
            progress(1)
    if errors and len(errors) == len(wanted):
        raise errors[0]
    return Inspection(tuple(segments), tuple(entries))


def _places(storage: Storage, path: str, filters: Filters) -> tuple[int, list[Entry], StoreError | None]:
    """Return the segment's size, its places, and the store's error if not even one of them could be read."""
    from wal.segments.scan import scan_segment

    size = reached = 0
    found: list[Entry] = []
    try:
        size = storage.size(path)
        for scanned in scan_segment(storage, path):
            entry, held = describe(path, scanned)
            reached = entry.offset + entry.length
            if filters.takes(held):
                found.append(entry)
    except StoreError as error:
        found.append(Entry(path, reached, max(0, size - reached), "unreadable", detail=str(error)))
        return size, found, None if reached else error
    return size, found, None


def describe(path: str, scanned: Scanned) -> tuple[Entry, BlockContent | None]:
    """Return the entry for one place, and its content (None if unknown)."""
    from wal.segments.frame import Frame, FrameKind
    from wal.segments.scan import Damage, Newer, TornTail

    if isinstance(scanned, TornTail):
        return Entry(path, scanned.offset, scanned.length, "torn", detail="an incomplete write at the end"), None
    if isinstance(scanned, Newer):
        detail = f"written in format {scanned.version} with {scanned.feature}: read it with a newer release"
        length = scanned.until - scanned.offset
        return Entry(path, scanned.offset, length, "newer", version=scanned.version, detail=detail), None
    if isinstance(scanned, Damage):
        held = _held(scanned.metadata, path, scanned.offset) if scanned.metadata is not None else None
        return Entry(
            path,
            scanned.offset,
            scanned.until - scanned.offset,
            "damaged",
            ranges=tuple(r.label for r in held.ranges) if held is not None else (),
            detail=scanned.reason,
        ), held
    assert isinstance(scanned, Frame)
    kind = FrameKind(scanned.header.kind).name.lower()
    entry = Entry(path, scanned.offset, scanned.length, "whole", kind, scanned.header.version)
    if scanned.header.kind != FrameKind.BLOCK:
        return entry, BlockContent()
    from wal.blocks import decode_meta

    try:
        meta = decode_meta(scanned.metadata, path, scanned.offset)
    except CorruptionError as error:
        return msgspec.structs.replace(entry, state="damaged", detail=error.reason), None
    entry = msgspec.structs.replace(
        entry, block_id=meta.id, records=meta.records, ranges=tuple(r.label for r in meta.ranges)
    )
    return entry, BlockContent(meta.ranges, meta.created_ms)


def _held(metadata: bytes, path: str, offset: int) -> BlockContent | None:
    from wal.blocks import decode_meta

    try:
        meta = decode_meta(metadata, path, offset)
    except CorruptionError:  # not a block, or unreadable metadata: the entry reports the damage
        return None
    return BlockContent(meta.ranges, meta.created_ms)


def _summary(path: str, size: int, entries: Sequence[Entry]) -> SegmentSummary:
    states = [entry.state for entry in entries]
    return SegmentSummary(
        path=path,
        bytes=size,
        frames=states.count("whole"),
        blocks=sum(entry.kind == "block" for entry in entries),
        records=sum(entry.records for entry in entries),
        versions=tuple(sorted({entry.version for entry in entries if entry.version})),
        torn=states.count("torn"),
        damaged=states.count("damaged"),
        newer=states.count("newer"),
    )


def tables(inspection: Inspection, frames: bool) -> Iterator[Group]:
    """Yield the table of segments and, with ``frames``, the table of places."""
    from deploy.console.table import table

    yield table(
        "Segments",
        ("segment", "bytes", "frames", "blocks", "records", "format", "torn", "damaged", "newer"),
        [
            (s.path, s.bytes, s.frames, s.blocks, s.records, _versions(s), s.torn, s.damaged, s.newer)
            for s in inspection.segments
        ],
    )
    if frames:
        yield table(
            "Frames",
            ("segment", "offset", "length", "state", "kind", "block", "records", "ranges"),
            [
                (e.path, e.offset, e.length, e.state, e.kind, e.block_id, e.records, e.detail or "\n".join(e.ranges))
                for e in inspection.entries
            ],
        )


def _versions(segment: SegmentSummary) -> str:
    return ", ".join(map(str, segment.versions)) or "-"


def relative_to(storage_url: str, path: str) -> str:
    """Return ``path`` relative to the storage, if it is an absolute path below the storage's root. Raises UsageError."""
    if not os.path.isabs(path):
        return path.rstrip("/")
    root = urlsplit(storage_url).path.rstrip("/")
    if os.path.normpath(path) == root:
        return ""
    if not os.path.normpath(path).startswith(f"{root}/"):
        raise UsageError(f"{path} is not in {storage_url}: name a segment or folder in it")
    return os.path.normpath(path).removeprefix(f"{root}/")


@click.command(
    "inspect",
    epilog=example("forebay wal inspect", "forebay wal inspect --partition flights/0 --frames"),
)
@click.argument("path", required=False)
@click.option("--receiver", metavar="ID", help="Only segments of this receiver.")
@click.option("--epoch", metavar="HEX", help="Only segments of this epoch, in hexadecimal as in their paths.")
@click.option(
    "--partition",
    "partitions",
    metavar="TOPIC/PARTITION",
    type=PartitionType(),
    multiple=True,
    help="Only blocks with offsets of this partition; repeatable.",
)
@click.option(
    "--range",
    "ranges",
    metavar="RANGE",
    multiple=True,
    help="Only blocks with offsets of TOPIC/PARTITION[FROM, UNTIL); repeatable.",
)
@click.option("--since", metavar="TIME", type=MomentType(), help="Only blocks sealed at or after TIME.")
@click.option("--before", metavar="TIME", type=MomentType(), help="Only blocks sealed before TIME.")  # fmt: skip
@click.option("--frames", is_flag=True, help="Show each frame [default: only if PATH is one segment].")
@click.option("--journal", is_flag=True, help="Inspect the segments of the driver's journal instead.")
@shared_options
@pass_invocation
def inspect(
    invocation: Invocation,
    path: str | None,
    receiver: str | None,
    epoch: str | None,
    partitions: tuple[TopicPartition, ...],
    ranges: tuple[str, ...],
    since: int | None,
    before: int | None,
    frames: bool,
    journal: bool,
) -> int:
    """Show the content of the segments of the WAL, or of those below PATH, and verify every checksum.

    Changes nothing; receivers may be running, and a frame that is being written appears as a torn tail. Exits with 1 if a
    frame is damaged, can't be read, or was written by a newer release.
    """
    from wal.storage import open_storage

    settings = invocation.settings()
    url = settings.driver.journal if journal else settings.wal.url
    storage: Any = open_storage(url, settings.storage)
    wanted = relative_to(url, path) if path is not None else settings.stream
    filters = Filters(receiver, _epoch(epoch), frozenset(partitions), tuple(map(_span, ranges)), since, before)
    try:
        paths = [wanted] if wanted.endswith(".seg") else [p for p in storage.list(wanted) if p.endswith(".seg")]
        if path is None:  # segments that recovery set aside are not part of the log
            paths = [p for p in paths if not p.startswith(f"{settings.stream}/aside/")]
        inspection = inspect_log(storage, paths, filters)
    except FileNotFoundError:
        raise UsageError(f"{url} has no {wanted}") from None
    except ValueError as error:  # a path that leads out of the store
        raise UsageError(str(error)) from None
    invocation.write(inspection, lambda: list(tables(inspection, frames or wanted.endswith(".seg"))))
    if not inspection.segments:
        invocation.say(f"forebay: no segment in {url}{f' below {wanted}' if wanted else ''}")
    for entry in inspection.findings:
        content = f" ({', '.join(entry.ranges)})" if entry.ranges else ""
        invocation.say(
            f"forebay: {entry.path}, bytes {entry.offset} to {entry.offset + entry.length}{content}: {entry.detail}"
        )
    return FINDINGS if inspection.findings else FINE


def _epoch(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", text):
        raise UsageError(f"--epoch {text!r}: write up to 16 hexadecimal digits, as in the path of a segment")
    return int(text, 16)


def _span(text: str) -> tuple[TopicPartition, int, int]:
    """Return the offsets of a range in every incarnation."""
    from deploy.commands.wal.export import span

    found = span(text)
    return TopicPartition(found.topic, found.partition), found.start, found.until
