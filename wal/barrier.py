"""Barriers, on stores of whole objects: an empty segment under the next name of an epoch that was fenced.

What a fenced writer sent, and was not answered, may land at any time, also after the WAL was searched for it. But names are
dense, and a writer sends no object before the last one is there: the name after the last one is all under which anything can
still land. Once something else lies there, nothing can: the writer, should it still live, finds its name taken and ends.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from forebay.model.values import RESERVED_PREFIX, timeline_of
from wal.frame import Frame, FrameKind, SegmentHeader, encode_frame
from wal.layout import BlockPlace, block_segment, parse_block
from wal.scan import Readable, scan_segment, segment_header
from wal.storage import Storage

#: in a barrier's header the writer, which is no receiver's id, nor the adopter's: its epochs are barred too
BARRIER_WRITER = f"{RESERVED_PREFIX}barrier"
#: a barrier is deleted after so long: what was sent before it was made does not land any more
BARRIER_KEPT_MS = 24 * 3600 * 1000


def bar(
    storage: Storage,
    first: BlockPlace,
    wall_ms: Callable[[], int],
    new_uid: Callable[[], int],
) -> BlockPlace:
    """Makes the barrier of one epoch, durable on return, and returns its place. May be repeated: one that is there is found.

    ``first``: where to begin; it holds only if no segment of the epoch at or after its place was ever deleted. Raises
    StoreError.
    """
    place = first
    while True:
        path = block_segment(*place)
        try:
            storage.put_new(path, _empty_segment(path, place, wall_ms(), new_uid()))
            return place
        except FileExistsError:
            if _lies_at(storage, path):
                return place
        place = place._replace(sequence=place.sequence + 1)


def barrier_made_ms(frame: Frame, path: str) -> int | None:
    """When the barrier was made of which ``frame`` is the first one; None if the segment at ``path`` is none."""
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


def _lies_at(storage: Readable, path: str) -> bool:
    try:
        first = next(scan_segment(storage, path, payloads=False), None)
    except FileNotFoundError:
        return False  # it was one of the writer's, and clean-up has deleted it meanwhile
    return isinstance(first, Frame) and barrier_made_ms(first, path) is not None
