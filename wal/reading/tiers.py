"""Reading of one block or of several from one tier. Each block is verified and decrypted.

``read_one`` raises the error of a tier that does not return the block. ``read_several`` yields it in place of the block, so that
the failure of one block costs no other block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from forebay.model.errors import CorruptionError, ForebayError, MissingKeyError
from forebay.model.payload import block_rows
from forebay.model.records import to_dataframe
from forebay.model.values import BlockRange
from wal.blocks import StoredBlock
from wal.blocks.digests import check_digest
from wal.reading import per_process
from wal.reading.local_tier import read_local_copies, read_local_copy, this_host
from wal.reading.outcome import TierFailure
from wal.reading.reference import BlockReference, Fetched, ReadPlan, Tier, incarnation_key
from wal.reading.wal_tier import read_from_wal, read_several_from_wal


class VerifiedBlock(msgspec.Struct, frozen=True):
    """A block that matches its entry in the journal. ``payload``: decrypted. ``where``: the tier and host, for errors."""

    stored: StoredBlock
    payload: Any
    where: str


def places(reference: BlockReference, plan: ReadPlan) -> Iterator[tuple[Tier, str]]:
    """Yield where to look for the block, in order: the tiers, and for the agent tier each host that keeps a copy."""
    for tier in plan.tiers:
        if tier == "agent":
            yield from ((tier, host) for host in reference.hosts)
        else:
            yield tier, ""


def read_one(reference: BlockReference, plan: ReadPlan, tier: Tier, host: str) -> VerifiedBlock | None:
    """Return the block from ``tier``; None if the tier does not apply. ``host``: for the agent tier, the host of the agent.

    Raises FileNotFoundError, ForebayError, OSError.
    """
    stored = fetch(reference, plan, tier, host)
    return None if stored is None else _verified(reference, stored, plan, tier, host)


def read_several(
    references: Sequence[BlockReference], plan: ReadPlan, tier: Tier, host: str
) -> Iterator[tuple[BlockReference, VerifiedBlock | ForebayError | OSError | None]]:
    """Yield for each block the outcome of :func:`read_one`, in any order. Errors are yielded, not raised.

    An agent gets one request for all blocks. Neighbouring frames of the WAL are read by one ranged request.
    """
    for reference, found in _fetched(references, plan, tier, host):
        if not isinstance(found, StoredBlock):
            yield reference, found
            continue
        try:
            verified = _verified(reference, found, plan, tier, host)
        except (ForebayError, OSError) as error:
            yield reference, error
        else:
            yield reference, verified


def _verified(reference: BlockReference, stored: StoredBlock, plan: ReadPlan, tier: Tier, host: str) -> VerifiedBlock:
    where = f"{tier} {host}".strip() + f" copy of block {reference.id}"
    check_same(reference, stored, where, by_digest=tier != "local")
    return VerifiedBlock(stored, _plain_payload(stored, plan, where), where)


def check_same(reference: BlockReference, stored: StoredBlock, where: str, *, by_digest: bool = True) -> None:
    """Raise CorruptionError if ``stored``, read at ``where``, is not the very block that the journal names.

    ``by_digest``: whether to compare the SHA-256. False is enough for bytes that no other user can write (docs/SECURITY.md).
    """
    if stored.meta.id != reference.id or stored.meta.stream != reference.stream:
        raise CorruptionError(where, 0, f"it contains another block: {stored.meta.id} of stream {stored.meta.stream}")
    if stored.checksum != reference.handle.checksum:
        raise CorruptionError(where, 0, "its checksum is not the one that the journal names")
    if stored.meta.ranges != reference.ranges or stored.meta.headers != reference.headers:
        raise CorruptionError(where, 0, "its ranges are not the ones that the journal names")
    if by_digest:
        check_digest(reference.sha256, stored.payload, where)


def read_from_kafka(
    reference: BlockReference, plan: ReadPlan, wanted: Sequence[BlockRange]
) -> tuple[pa.RecordBatch, ...] | None:
    """Return the records of ``wanted``, verified by topic id, count and digest; None if the Kafka tier is switched off.

    Raises RangeNotHeldError if Kafka no longer has exactly these records; other ForebayErrors.
    """
    if plan.kafka is None:
        return None
    from forebay.kafka.consume.block_ranges import Wanted, read_ranges  # loads librdkafka, which few tasks ever need

    asked = [Wanted(range_, plan.topic_ids.get(incarnation_key(range_), "")) for range_ in wanted]
    return tuple(
        to_dataframe(batch, rows.tp.topic, plan.headers)
        for rows in read_ranges(plan.kafka, asked, reference.headers)
        for batch in block_rows(rows, reference.headers)
    )


def fetch(reference: BlockReference, plan: ReadPlan, tier: Tier, host: str) -> StoredBlock | None:
    """Return the block as ``tier`` keeps it, its frame verified; None if the tier does not apply.

    ``host``: whose agent to ask, for the agent tier. Raises FileNotFoundError, ForebayError, OSError.
    """
    match tier:
        case "local":
            return read_local_copy(reference, plan)
        case "agent":
            from wal.reading.agents import read_from_agent  # loads an HTTP client, which few tasks ever need

            return read_from_agent(reference, plan, host)
        case "wal":
            return read_from_wal(reference, plan)
        case "kafka":
            return None  # it keeps records, not blocks


def _plain_payload(stored: StoredBlock, plan: ReadPlan, where: str) -> Any:
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


def _fetched(references: Sequence[BlockReference], plan: ReadPlan, tier: Tier, host: str) -> Iterator[Fetched]:
    """Yield the blocks as ``tier`` keeps them, in any order."""
    if tier == "agent" and len(references) > 1 and host in plan.agent_urls:
        from wal.reading.agents import read_several_from_agent

        yield from read_several_from_agent(references, plan, host)
    elif tier == "wal":
        yield from read_several_from_wal(references, plan)
    elif tier == "local":
        yield from read_local_copies(references, plan)
    else:
        for reference in references:
            yield reference, _one(reference, plan, tier, host)


def _one(
    reference: BlockReference, plan: ReadPlan, tier: Tier, host: str
) -> StoredBlock | ForebayError | OSError | None:
    try:
        return fetch(reference, plan, tier, host)
    except (ForebayError, OSError) as error:
        return error


def stored_back(block: VerifiedBlock, plan: ReadPlan, tier: Tier) -> list[TierFailure]:
    """Send a block that was read from the WAL to the agent of this host, if the plan has ``store_back``. Return the failures."""
    if tier != "wal" or not plan.store_back:
        return []
    from wal.reading.agents import store_back

    return store_back(block.stored, plan, this_host())
