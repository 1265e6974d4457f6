"""Records of a task's blocks, from the first tier that has them: each large block by itself, successive small ones together.

While the caller uses the rows of one group of small blocks, a thread reads the next group if agents or a store have its blocks.
It does not read local copies ahead: there is nothing to wait for, and two threads with Python's lock between them take longer
than one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from wal.reading.local_tier import this_host
from wal.reading.one_block import OnLost, read_alone
from wal.reading.outcome import BlocksRead
from wal.reading.reference import BlockReference, ReadPlan
from wal.reading.together import read_together

#: blocks that are larger after decoding are read alone: they are mapped into memory, and decoded without a copy
SMALL_BYTES = 256 << 10
#: maximum decoded bytes and number of blocks that are fetched together, and so in memory at the same time
FETCH_BYTES, FETCH_BLOCKS = 8 << 20, 500


def read_blocks(
    references: Iterable[BlockReference], plan: ReadPlan, on_lost: OnLost | None = None
) -> Iterator[BlocksRead]:
    """Yield the records of the blocks, in order.

    Memory holds one large block, or small blocks of at most ``FETCH_BYTES`` (``BlockReference.decoded_bytes``), and the next
    small blocks of at most ``FETCH_BYTES``, which are read ahead unless this host has copies of all of them.

    ``on_lost``: called for each block that no tier has any more, in the order of blocks and possibly from another thread.

    Raises UnreadableBlockError as ``read_block``, or what ``on_lost`` raises, after the records of all earlier groups. Closing
    the iterator waits for the read ahead.
    """
    groups = _groups(references, plan)
    with ThreadPoolExecutor(1, "forebay-read-ahead") as ahead:  # it starts its thread at the first use
        group = next(groups, None)
        begun: Future[list[BlocksRead]] | None = None
        while group is not None:
            found = _read(group, plan, on_lost) if begun is None else begun.result()
            group = next(groups, None)
            begun = None
            if group is not None and len(group) > 1 and not _all_local(group, plan):
                with suppress(RuntimeError):  # no thread can be started: the group is read when its turn comes
                    begun = ahead.submit(_read, group, plan, on_lost)
            yield from found


def _all_local(group: Sequence[BlockReference], plan: ReadPlan) -> bool:
    """Return whether the journal names this host for a copy of each block, and the plan reads local copies."""
    if "local" not in plan.tiers or plan.blocks_directory is None:
        return False
    host = this_host()
    return all(host in reference.hosts for reference in group)


def _read(group: Sequence[BlockReference], plan: ReadPlan, on_lost: OnLost | None) -> list[BlocksRead]:
    if len(group) == 1:
        return read_alone(group[0], plan, on_lost)
    return list(read_together(group, plan, on_lost))


def _groups(references: Iterable[BlockReference], plan: ReadPlan) -> Iterator[list[BlockReference]]:
    """Yield successive blocks that are fetched together. A block with a range that is lost, or without records, is alone."""
    group: list[BlockReference] = []
    size = 0
    for reference in references:
        length = reference.decoded_bytes
        small = length < SMALL_BYTES and reference.records > 0
        if small and plan.lost:
            small = not any(range_.label in plan.lost for range_ in reference.ranges)
        if group and (not small or size + length > FETCH_BYTES or len(group) == FETCH_BLOCKS):
            yield group
            group, size = [], 0
        if small:
            group.append(reference)
            size += length
        else:
            yield [reference]
    if group:
        yield group
