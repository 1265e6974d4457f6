"""Barriers on stores of whole objects: an empty segment under the next name of a fenced epoch.

An object that a fenced writer sent without an answer may appear at any time, even after the WAL was searched. But names are
dense, and a writer sends no object before the last one is stored. So an object can still appear only under the name after the
last one. The driver takes this name with a barrier. A writer that still runs finds its name taken and ends.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from forebay.model.identifiers import RESERVED_PREFIX, timeline_of
from wal.segments.encoding import encode_frame
from wal.segments.frame import Frame, FrameKind, SegmentHeader
from wal.segments.layout import BlockPlace, block_segment, parse_block
from wal.segments.scan import Readable, scan_segment, segment_header
from wal.storage import Storage

#: the writer in a barrier's header: not a receiver's id, and not the adopter's, whose epochs get barriers too
BARRIER_WRITER = f"{RESERVED_PREFIX}barrier"
#: how long a barrier is kept: an object that was sent before it does not appear later than that
BARRIER_KEPT_MS = 24 * 3600 * 1000


def bar(
    storage: Storage,
    first: BlockPlace,
    wall_ms: Callable[[], int],
    new_uid: Callable[[], int],
) -> BlockPlace:
    """Create the barrier of one epoch, durable on return, and return its place. May be repeated: an existing barrier is found.

    ``first``: the first name to try. No segment of the epoch at or after it may ever have been deleted. Raises StoreError.
    """
    place = first
    while True:
        path = block_segment(*place)
        try:
            storage.put_new(path, _empty_segment(path, place, wall_ms(), new_uid()))
            return place
        except FileExistsError:
            if _is_barrier(storage, path):
                return place
        place = place._replace(sequence=place.sequence + 1)


def barrier_made_ms(frame: Frame, path: str) -> int | None:
    """Return when the barrier at ``path`` was created, from its first frame; None if the segment is no barrier."""
    header, place = segment_header(frame), parse_block(path)
    if header is None or place is None or header.writer != BARRIER_WRITER:
        return None
    return header.created_ms


def _empty_segment(path: str, place: BlockPlace, created_ms: int, uid: int) -> bytes:
    header = SegmentHeader(
        path=path,
        stream=place.stream,
        writer=BARRIER_WRITER,
        epoch=place.epoch,
        sequence=place.sequence,
        timeline=timeline_of(place.epoch),
        uid=uid,
        created_ms=created_ms,
    )
    metadata = msgspec.msgpack.encode(header)
    return b"".join(encode_frame(FrameKind.SEGMENT, uid=uid, offset=0, index=0, metadata=metadata, payload=b""))


def _is_barrier(storage: Readable, path: str) -> bool:
    try:
        first = next(scan_segment(storage, path, payloads=False), None)
    except FileNotFoundError:
        return False  # it was the writer's, and clean-up has deleted it since
    return isinstance(first, Frame) and barrier_made_ms(first, path) is not None
