"""Reading of one block or of several from one tier. Each block is verified and decrypted.

``read_one`` raises the error of a tier that does not return the block. ``read_several`` yields it in place of the block, so that
the failure of one block costs no other block.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa

from forebay.model.errors import CorruptionError, ForebayError, MissingKeyError, UnreachableError
from forebay.model.payload import block_rows
from forebay.model.records import to_dataframe
from forebay.model.values import BlockRange
from wal.blocks import CopiesMemory, StoredBlock, block_of_frame, cached_path, local_name, read_local
from wal.blocks.digests import check_digest
from wal.reading import per_process
from wal.reading.reference import BlockReference, Fetched, ReadPlan, Tier, incarnation_key
from wal.segments.frame import HEADER_LENGTH, MAX_FRAME
from wal.segments.scan import frame_at, read_frame
from wal.storage import Storage, open_storage

#: frames of one segment are read together if fewer bytes are between them, which are read for nothing
GAP_BYTES_MAX = 64 << 10

_PLACE = attrgetter("handle.path", "handle.offset")


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


def this_host() -> str:
    """Return the name that services on this machine take if none is configured."""
    return socket.gethostname()


def read_one(reference: BlockReference, plan: ReadPlan, tier: Tier, host: str) -> VerifiedBlock | None:
    """Return the block from ``tier``; None if the tier does not apply. ``host``: for the agent tier, the host of the agent.

    Raises FileNotFoundError, ForebayError, OSError.
    """
    stored = _stored(reference, plan, tier, host)
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


def stored_copy(reference: BlockReference, plan: ReadPlan, tier: Tier) -> StoredBlock | None:
    """Return the block as ``tier`` keeps it, fully verified, its payload unchanged; None if the tier does not apply.

    For callers that write the block again. Raises FileNotFoundError, CorruptionError, NewerVersionError, StoreError, OSError;
    for agents UnreachableError, which gives each asked host's reason.
    """
    if tier == "agent":
        return _copy_of_any_agent(reference, plan)
    return _checked_copy(reference, plan, tier, "")


def _copy_of_any_agent(reference: BlockReference, plan: ReadPlan) -> StoredBlock | None:
    """Return the first verified copy of the hosts' agents; None if no host keeps one."""
    reasons = []
    for host in reference.hosts:
        try:
            stored = _checked_copy(reference, plan, "agent", host)
            if stored is not None:
                return stored
        except FileNotFoundError:
            reasons.append(f"{host} has none")
        except (ForebayError, OSError) as error:  # another host may have it whole
            reasons.append(f"{host}: {error}")
    if reasons:
        raise UnreachableError("; ".join(reasons))
    return None


def _checked_copy(reference: BlockReference, plan: ReadPlan, tier: Tier, host: str) -> StoredBlock | None:
    stored = _stored(reference, plan, tier, host)
    if stored is not None:
        check_same(reference, stored, f"{tier} copy of block {reference.id}")
    return stored


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


def _stored(reference: BlockReference, plan: ReadPlan, tier: Tier, host: str) -> StoredBlock | None:
    """Return the block as ``tier`` keeps it, its frame verified; None if the tier does not apply.

    ``host``: whose agent to ask, for the agent tier. Raises FileNotFoundError, ForebayError, OSError.
    """
    match tier:
        case "local":
            return _read_local_copy(reference, plan)
        case "agent":
            from wal.reading.agents import read_from_agent  # loads an HTTP client, which few tasks ever need

            return read_from_agent(reference, plan, host)
        case "wal":
            return _read_from_wal(reference, plan)
        case "kafka":
            return None  # it keeps records, not blocks


def _read_local_copy(
    reference: BlockReference, plan: ReadPlan, memory: CopiesMemory | None = None
) -> StoredBlock | None:
    if plan.blocks_directory is None or not reference.hosts:
        return None
    length = reference.handle.length
    try:
        try:
            return read_local(local_name(plan.blocks_directory, reference.stream, reference.id), length, memory)
        except FileNotFoundError:
            cached = cached_path(plan.blocks_directory, reference.stream, reference.id)
            stored = read_local(cached, length, memory)  # another process sent it
            check_digest(reference.sha256, stored.payload, str(cached))
            return stored
    except FileNotFoundError:
        if this_host() not in reference.hosts:
            return None  # another host has it: no failure
        raise


def _read_from_wal(reference: BlockReference, plan: ReadPlan) -> StoredBlock | None:
    if not reference.in_wal:
        return None
    return block_of_frame(read_frame(wal_of(plan), reference.handle), reference.handle.path)


def wal_of(plan: ReadPlan) -> Storage:
    """Return the store of the WAL. A process opens it once for each URL and its options: streams may share the process."""
    name = f"{plan.wal_url} {msgspec.json.encode(plan.storage, order='sorted').decode()}"
    storage: Storage = per_process.once(name, lambda: open_storage(plan.wal_url, plan.storage))
    return storage


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
        yield from _from_wal(references, plan)
    elif tier == "local":
        yield from _local_copies(references, plan)
    else:
        for reference in references:
            yield reference, _one(reference, plan, tier, host)


def _one(reference: BlockReference, plan: ReadPlan, tier: Tier, host: str) -> Any:
    try:
        return _stored(reference, plan, tier, host)
    except (ForebayError, OSError) as error:
        return error


def _local_copies(references: Sequence[BlockReference], plan: ReadPlan) -> Iterator[Fetched]:
    memory = CopiesMemory(reference.handle.length for reference in references)
    for reference in references:
        found: StoredBlock | ForebayError | OSError | None
        try:
            found = _read_local_copy(reference, plan, memory)
        except (ForebayError, OSError) as error:
            found = error
        yield reference, found


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
