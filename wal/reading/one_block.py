"""Records of one block, from the first tier that has it; else an error that names the block and each tier's reason."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from forebay.model.errors import ForebayError, LostBlockError, UnreadableBlockError
from forebay.model.payload import decode_block
from forebay.model.records import to_dataframe
from wal.reading.outcome import FINAL_FAILURES, BlockRead, BlocksRead, TierFailure
from wal.reading.reference import BlockReference, ReadPlan
from wal.reading.tiers import VerifiedBlock, places, read_from_kafka, read_one, stored_back

#: called with the error of a block that no tier has any more; if it returns, the block is omitted
OnLost = Callable[[LostBlockError], None]


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
                failures += stored_back(found, plan, tier)
            return BlockRead(batches, tier, len(wanted), tuple(failures))
    lost = all(failure.kind in FINAL_FAILURES for failure in failures)
    raise (LostBlockError if lost else UnreadableBlockError)(
        f"no tier can read block {reference.id} with {', '.join(range_.label for range_ in wanted)}: "
        + ("; ".join(f"{f.tier}: {f.detail}" for f in failures) or "no tier keeps it")
    )


def read_alone(reference: BlockReference, plan: ReadPlan, on_lost: OnLost | None) -> list[BlocksRead]:
    """Return what ``read_block`` returns; nothing for a lost block if ``on_lost`` is set and returns."""
    try:
        return [BlocksRead.of(read_block(reference, plan))]
    except LostBlockError as error:
        if on_lost is None:
            raise
        on_lost(error)
        return []


def _records(block: VerifiedBlock, plan: ReadPlan) -> tuple[pa.RecordBatch, ...]:
    """Return the rows of the block that the plan wants."""
    decoded = decode_block(block.payload, block.stored.meta, verify_digests=plan.verify_digests, path=block.where)
    return tuple(
        to_dataframe(batch, range_.topic, plan.headers)
        for range_, batches in decoded
        if not plan.lost or range_.label not in plan.lost
        for batch in batches
    )
