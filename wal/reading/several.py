"""The same tiers for several small blocks: one request to an agent, one ranged read of neighbouring frames of the WAL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import pyarrow as pa

from forebay.model.errors import CorruptionError, ForebayError
from wal.blocks import StoredBlock, block_of_frame
from wal.reading.plan import ReadPlan, Tier
from wal.reading.reference import BlockReference, Fetched
from wal.reading.tiers import read_stored_block, wal_of
from wal.segments.frame import HEADER_LENGTH, MAX_FRAME
from wal.segments.scan import frame_at

#: frames of one segment are read together if fewer bytes are between them, which are read for nothing
GAP_BYTES_MAX = 64 << 10

_PLACE = attrgetter("handle.path", "handle.offset")


def fetch(references: Sequence[BlockReference], plan: ReadPlan, tier: Tier, host: str) -> Iterator[Fetched]:
    """Yield what ``tier`` has of each block, in any order. ``host``: whose agent to ask, for the agent tier."""
    if tier == "agent" and len(references) > 1 and host in plan.agent_urls:
        from wal.reading.agents import read_several_from_agent

        yield from read_several_from_agent(references, plan, host)
    elif tier == "wal":
        yield from _from_wal(references, plan)
    else:
        for reference in references:
            yield reference, _one(reference, plan, tier, host)


def _one(reference: BlockReference, plan: ReadPlan, tier: Tier, host: str) -> Any:
    try:
        return read_stored_block(reference, plan, tier, host)
    except (ForebayError, OSError) as error:
        return error


def _from_wal(references: Iterable[BlockReference], plan: ReadPlan) -> Iterator[Fetched]:
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
