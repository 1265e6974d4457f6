"""Records of successive small blocks, which are fetched and decoded together.

Each block takes the same tiers and passes the same checks as by ``read_block``. If no tier has a block, or if it can't be decoded
with the others, ``read_block`` reads it again, alone: so an error names the block, and its damage costs no other block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from forebay.model.block_runs.decoding import OpenBlock, decode_run, open_block
from forebay.model.errors import ForebayError
from forebay.model.records import topics_to_dataframe
from wal.reading.one_block import OnLost, read_alone
from wal.reading.outcome import BlocksRead, TierCounts, TierFailure
from wal.reading.reference import BlockReference, ReadPlan, Tier
from wal.reading.tiers import VerifiedBlock, places, read_several, stored_back

#: maximum decoded bytes of blocks that are decoded together
RUN_BYTES = 8 << 20


class _Search(msgspec.Struct):
    """One small block on its way through the tiers. ``opened``: its payload, once a tier has it; None: it is read alone."""

    reference: BlockReference
    places: list[tuple[Tier, str]]
    failures: list[TierFailure] = []
    tier: Tier | None = None
    opened: OpenBlock | None = None


def read_together(
    references: Sequence[BlockReference], plan: ReadPlan, on_lost: OnLost | None = None
) -> Iterator[BlocksRead]:
    """Yield the records of the blocks, in order, after all of them are fetched. Raises as ``read_blocks``."""
    searches = [_Search(reference, list(places(reference, plan))) for reference in references]
    _fetch_all(searches, plan)
    for run in _runs(searches):
        yield from _decoded(run, plan, on_lost)


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
    search.failures += stored_back(found, plan, tier)
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


def _decoded(run: Sequence[_Search], plan: ReadPlan, on_lost: OnLost | None) -> Iterator[BlocksRead]:
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
        yield from read_alone(search.reference, plan, on_lost)
