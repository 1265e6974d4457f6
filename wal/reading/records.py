"""Records of a task's blocks, from the first tier that has them: each large block by itself, successive small ones together.

Small blocks are fetched together, along the same tiers and with the same checks of each block as by ``read_block``, and decoded
together. ``read_block`` reads a block again, alone, if no tier had it, or if it can't be decoded with the others: so an error
names the block, and its damage costs no other block. While the caller uses the rows of one group of small blocks, a thread reads
the next group if agents or a store have its blocks. It does not read local copies ahead: there is nothing to wait for, and two
threads with Python's lock between them take longer than one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

import msgspec
import pyarrow as pa

from forebay.model.block_runs import OpenBlock, decode_run, open_block
from forebay.model.errors import ForebayError, LostBlockError, UnreadableBlockError
from forebay.model.payload import decode_block
from forebay.model.records import to_dataframe, topics_to_dataframe
from wal.reading.outcome import FINAL_FAILURES, BlockRead, TierCounts, TierFailure
from wal.reading.reference import BlockReference, ReadPlan, Tier
from wal.reading.tiers import VerifiedBlock, places, read_from_kafka, read_one, read_several, this_host

#: blocks that are larger after decoding are read alone: they are mapped into memory, and decoded without a copy
SMALL_BYTES = 256 << 10
#: maximum decoded bytes and number of blocks that are fetched together, and so in memory at the same time
FETCH_BYTES, FETCH_BLOCKS = 8 << 20, 500
#: maximum decoded bytes of blocks that are decoded together
RUN_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class BlocksRead:
    """Records of one block or of several successive ones, in ``DATAFRAME_SCHEMA``, and what was read from which tier."""

    batches: tuple[pa.RecordBatch, ...]
    counts: TierCounts


class _Search(msgspec.Struct):
    """One small block on its way through the tiers. ``opened``: its payload, once a tier has it; None: it is read alone."""

    reference: BlockReference
    places: list[tuple[Tier, str]]
    failures: list[TierFailure] = []
    tier: Tier | None = None
    opened: OpenBlock | None = None


def read_block(reference: BlockReference, plan: ReadPlan) -> BlockRead:
    """Return the records of one block from the first tier that has them.

    Raises UnreadableBlockError if no tier has the block (INV-5); it names the block, each of its ranges and each tier's reason.
    It is a LostBlockError if another attempt can't find the block either.
    """
    wanted = [range_ for range_ in reference.ranges if not plan.lost or range_.label not in plan.lost]
    if not wanted:
        return BlockRead((), None, 0)
    failures: list[TierFailure] = []
    for tier, host in places(reference, plan):
        try:
            found = read_one(reference, plan, tier, host)
            if tier == "kafka":
                batches = read_from_kafka(reference, plan, wanted)
            else:
                batches = _records(found, plan) if found is not None else None
            if batches is None:
                continue
        except (ForebayError, OSError) as error:
            failures.append(TierFailure.of(tier, error))
        else:
            if found is not None:
                failures += _stored_back(found, plan, tier)
            return BlockRead(batches, tier, len(wanted), tuple(failures))
    lost = all(failure.kind in FINAL_FAILURES for failure in failures)
    raise (LostBlockError if lost else UnreadableBlockError)(
        f"no tier can read block {reference.id} with {', '.join(range_.label for range_ in wanted)}: "
        + ("; ".join(f"{f.tier}: {f.detail}" for f in failures) or "no tier keeps it")
    )


def _records(block: VerifiedBlock, plan: ReadPlan) -> tuple[pa.RecordBatch, ...]:
    """Return the rows of the block that the plan wants."""
    decoded = decode_block(block.payload, block.stored.meta, verify_digests=plan.verify_digests, path=block.where)
    return tuple(
        to_dataframe(batch, range_.topic, plan.headers)
        for range_, batches in decoded
        if not plan.lost or range_.label not in plan.lost
        for batch in batches
    )


def _stored_back(block: VerifiedBlock, plan: ReadPlan, tier: Tier) -> list[TierFailure]:
    """Send a block that was read from the WAL to the agent of this host, if the plan has ``store_back``. Return the failures."""
    if tier != "wal" or not plan.store_back:
        return []
    from wal.reading.agents import store_back

    return store_back(block.stored, plan, this_host())


def read_blocks(references: Iterable[BlockReference], plan: ReadPlan) -> Iterator[BlocksRead]:
    """Yield the records of the blocks, in order.

    Memory holds one large block, or small blocks of at most ``FETCH_BYTES`` (``BlockReference.decoded_bytes``), and the next
    small blocks of at most ``FETCH_BYTES``, which are read ahead unless this host has copies of all of them.

    Raises UnreadableBlockError as ``read_block``, after the records of all earlier groups. Closing the iterator waits for the
    read ahead.
    """
    groups = _groups(references, plan)
    with ThreadPoolExecutor(1, "forebay-read-ahead") as ahead:  # it starts its thread at the first use
        group = next(groups, None)
        begun: Future[list[BlocksRead]] | None = None
        while group is not None:
            found = _read(group, plan) if begun is None else begun.result()
            group = next(groups, None)
            begun = None
            if group is not None and len(group) > 1 and not _all_local(group, plan):
                with suppress(RuntimeError):  # no thread can be started: the group is read when its turn comes
                    begun = ahead.submit(_read, group, plan)
            yield from found


def _all_local(group: Sequence[BlockReference], plan: ReadPlan) -> bool:
    """Return whether the journal names this host for a copy of each block, and the plan reads local copies."""
    if "local" not in plan.tiers or plan.blocks_directory is None:
        return False
    host = this_host()
    return all(host in reference.hosts for reference in group)


def _read(group: Sequence[BlockReference], plan: ReadPlan) -> list[BlocksRead]:
    if len(group) == 1:
        return [_alone(group[0], plan)]
    searches = [_Search(reference, list(places(reference, plan))) for reference in group]
    _fetch_all(searches, plan)
    return [read for run in _runs(searches) for read in _decoded(run, plan)]


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


def _alone(reference: BlockReference, plan: ReadPlan) -> BlocksRead:
    read = read_block(reference, plan)
    return BlocksRead(read.batches, read.counts)


def _fetch_all(searches: Sequence[_Search], plan: ReadPlan) -> None:
    """Take each block from the first place that has it. The blocks with the same next place are fetched from it together."""
    waiting = list(searches)
    before: OpenBlock | None = None
    while waiting:
        by_place: dict[tuple[Tier, str], dict[str, _Search]] = {}
        for search in waiting:
            if search.places and search.places[0][0] != "kafka":
                by_place.setdefault(search.places.pop(0), {})[search.reference.id] = search
        for (tier, host), asking in by_place.items():
            for reference, found in read_several([search.reference for search in asking.values()], plan, tier, host):
                before = _take(asking[reference.id], found, plan, tier, before)
        waiting = [search for asking in by_place.values() for search in asking.values() if search.tier is None]


def _take(
    search: _Search,
    found: VerifiedBlock | ForebayError | OSError | None,
    plan: ReadPlan,
    tier: Tier,
    before: OpenBlock | None,
) -> OpenBlock | None:
    """Note the block that ``tier`` returned, or its failure. ``before``: the block opened before; return the newest one."""
    if found is None:
        return before
    if not isinstance(found, VerifiedBlock):
        search.failures.append(TierFailure.of(tier, found))
        return before
    search.tier = tier
    try:
        search.opened = open_block(found.payload, found.stored.meta, before)
    except ValueError:
        return before  # read_block says what is wrong with it
    search.failures += _stored_back(found, plan, tier)
    return search.opened


def _runs(searches: Sequence[_Search]) -> Iterator[list[_Search]]:
    """Yield the successive blocks that are decoded together; a block that is read alone is a run of its own."""
    number = size = 0

    def run_of(search: _Search) -> tuple[int, bytes]:
        nonlocal number, size
        length = search.opened.decoded_bytes if search.opened is not None else 0
        if search.opened is None or size + length > RUN_BYTES:
            number, size = number + 1, 0
        if search.opened is None:
            return number, b""
        size += length
        return number, search.opened.head

    for _, run in groupby(searches, run_of):
        yield list(run)


def _decoded(run: Sequence[_Search], plan: ReadPlan) -> Iterator[BlocksRead]:
    opened = [search.opened for search in run if search.opened is not None]
    if len(opened) == len(run):
        try:
            rows = decode_run(opened, verify_digests=plan.verify_digests)
        except ValueError:
            pass  # read_block says which block is damaged
        else:
            ranges = [(search.tier, len(search.reference.ranges)) for search in run]
            counts = TierCounts.of(ranges, (failure for search in run for failure in search.failures))
            yield BlocksRead((topics_to_dataframe(rows, plan.headers),), counts)
            return
    for search in run:
        yield _alone(search.reference, plan)
