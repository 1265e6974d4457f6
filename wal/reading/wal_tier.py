"""The WAL as a tier: one frame by a ranged read, neighbouring frames of a segment by one read together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter

import msgspec
import pyarrow as pa

from forebay.model.errors import CorruptionError, ForebayError
from wal.blocks import StoredBlock, block_of_frame
from wal.reading import per_process
from wal.reading.reference import BlockReference, Fetched, ReadPlan
from wal.segments.frame import HEADER_LENGTH, MAX_FRAME
from wal.segments.scan import frame_at, read_frame
from wal.storage import Storage, open_storage

#: frames of one segment are read together if fewer bytes are between them, which are read for nothing
GAP_BYTES_MAX = 64 << 10

_PLACE = attrgetter("handle.path", "handle.offset")


def read_from_wal(reference: BlockReference, plan: ReadPlan) -> StoredBlock | None:
    if not reference.in_wal:
        return None
    return block_of_frame(read_frame(wal_of(plan), reference.handle), reference.handle.path)


def wal_of(plan: ReadPlan) -> Storage:
    """Return the store of the WAL. A process opens it once for each URL and its options: streams may share the process."""
    name = f"{plan.wal_url} {msgspec.json.encode(plan.storage, order='sorted').decode()}"
    return per_process.once(name, lambda: open_storage(plan.wal_url, plan.storage))


def read_several_from_wal(references: Iterable[BlockReference], plan: ReadPlan) -> Iterator[Fetched]:
    stored = sorted((reference for reference in references if reference.in_wal), key=_PLACE)
    for path, in_segment in groupby(stored, key=lambda reference: reference.handle.path):
        for span in _spans(in_segment):
            begin, end = span[0].handle.offset, _end(span[-1])
            try:
                data = pa.py_buffer(wal_of(plan).read(path, begin, end - begin))
            except (ForebayError, OSError) as error:
                yield from ((reference, error) for reference in span)
                continue
            for reference in span:
                yield reference, _in_span(reference, data, begin)


def _spans(references: Iterable[BlockReference]) -> Iterator[list[BlockReference]]:
    """Yield the blocks of one segment that are read together, in order of their offsets."""
    span: list[BlockReference] = []
    for reference in references:
        if span and not 0 <= reference.handle.offset - _end(span[-1]) <= GAP_BYTES_MAX:
            yield span
            span = []
        span.append(reference)
    if span:
        yield span


def _end(reference: BlockReference) -> int:
    return reference.handle.offset + reference.handle.length


def _in_span(reference: BlockReference, data: pa.Buffer, begin: int) -> StoredBlock | ForebayError:
    """Return the block from the bytes of its segment from ``begin`` on."""
    handle = reference.handle
    try:
        if not HEADER_LENGTH <= handle.length <= MAX_FRAME:
            raise CorruptionError(handle.path, handle.offset, f"no frame has {handle.length} bytes")
        start = min(handle.offset - begin, data.size)  # the file may end earlier than the journal says
        part = data.slice(start, min(handle.length, data.size - start))
        return block_of_frame(frame_at(handle, part), handle.path)
    except ForebayError as error:
        return error
