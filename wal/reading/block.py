"""Reading one block's records from the first tier that has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from forebay.model.errors import (
    AccessError,
    CorruptionError,
    ForebayError,
    LostBlockError,
    MissingKeyError,
    NewerVersionError,
    RangeNotHeldError,
    UnreachableError,
    UnreadableBlockError,
)
from forebay.model.payload import decode_block
from forebay.model.records import to_dataframe
from wal.blocks import StoredBlock
from wal.reading import per_process
from wal.reading.kafka import read_from_kafka
from wal.reading.outcome import FINAL_FAILURES, BlockRead, TierFailure
from wal.reading.plan import ReadPlan, Tier
from wal.reading.reference import BlockReference, check_same
from wal.reading.tiers import read_stored_block, this_host


def read_block(reference: BlockReference, plan: ReadPlan) -> BlockRead:
    """Return the records of one block from the first tier that has them.

    Raises UnreadableBlockError if no tier has the block (INV-5); it names the block, each of its ranges and each tier's reason.
    It is a LostBlockError if another attempt can't find the block either.
    """
    wanted = [range_ for range_ in reference.ranges if range_.label not in plan.lost]
    if not wanted:
        return BlockRead((), None, 0)
    failures: list[TierFailure] = []
    for tier, host in places(reference, plan):
        try:
            stored = read_stored_block(reference, plan, tier, host)
            if tier == "kafka":
                batches = read_from_kafka(reference, plan, wanted)
            elif stored is None:
                batches = None
            else:
                where = f"{tier} {host}".strip()
                batches = _records(reference, plan, stored, where, by_digest=tier != "local")
            if batches is None:
                continue
        except (ForebayError, OSError) as error:
            failures.append(failure_of(tier, error))
        else:
            if tier == "wal" and stored is not None and plan.store_back:
                from wal.reading.agents import store_back

                failures += store_back(stored, plan, this_host())
            return BlockRead(batches, tier, len(wanted), tuple(failures))
    lost = all(failure.kind in FINAL_FAILURES for failure in failures)
    raise (LostBlockError if lost else UnreadableBlockError)(
        f"no tier can read block {reference.id} with {', '.join(range_.label for range_ in wanted)}: "
        + ("; ".join(f"{f.tier}: {f.detail}" for f in failures) or "no tier keeps it")
    )


def failure_of(tier: Tier, error: ForebayError | OSError) -> TierFailure:
    """Return the failure of ``tier`` that ``error``, raised by a read, means."""
    match error:
        case FileNotFoundError():
            return TierFailure(tier, "missing", "it is not there")
        case RangeNotHeldError():
            return TierFailure(tier, "missing", str(error))
        case CorruptionError():
            return TierFailure(tier, "damaged", str(error))
        case NewerVersionError():
            return TierFailure(tier, "newer", str(error))
        case MissingKeyError():
            return TierFailure(tier, "locked", str(error))
        case AccessError():
            return TierFailure(tier, "refused", str(error))
        case ConnectionError() | UnreachableError():
            return TierFailure(tier, "unreachable", str(error))
        case _:
            return TierFailure(tier, "failed", str(error))


def places(reference: BlockReference, plan: ReadPlan) -> Iterator[tuple[Tier, str]]:
    """Yield where to look for the block, in order: the tiers, and for the agent tier each host that keeps a copy."""
    for tier in plan.tiers:
        if tier == "agent":
            yield from ((tier, host) for host in reference.hosts)
        else:
            yield tier, ""


def _records(
    reference: BlockReference, plan: ReadPlan, stored: StoredBlock, name: str, *, by_digest: bool
) -> tuple[pa.RecordBatch, ...]:
    """Return the rows of ``stored`` that the plan wants, after :func:`check_same`."""
    where = f"{name} copy of block {reference.id}"
    check_same(reference, stored, where, by_digest=by_digest)
    payload = plain_payload(stored, plan, where)
    decoded = decode_block(payload, stored.meta, verify_digests=plan.verify_digests, path=where)
    return tuple(
        to_dataframe(batch, range_.topic, plan.headers)
        for range_, batches in decoded
        if range_.label not in plan.lost
        for batch in batches
    )


def plain_payload(stored: StoredBlock, plan: ReadPlan, where: str) -> Any:
    """Return the payload, decrypted if it is encrypted.

    This process reads the keys, and reads them again if one is missing, since it may have been added. A plan never holds keys.
    """
    if stored.meta.key_id is None:
        return stored.payload
    from wal.blocks.encryption import load_keys, plain_payload

    name = f"keys of {plan.key_file}"
    try:
        return plain_payload(
            stored.meta, stored.payload, per_process.once(name, lambda: load_keys(plan.key_file)), where
        )
    except MissingKeyError:
        per_process.forget(name)
        return plain_payload(
            stored.meta, stored.payload, per_process.once(name, lambda: load_keys(plan.key_file)), where
        )
