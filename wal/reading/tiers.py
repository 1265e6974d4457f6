"""The tiers that keep whole blocks: this host's local copies, the hosts' agents, the WAL."""

from __future__ import annotations

import socket

import msgspec

from wal.blocks import StoredBlock, block_of_frame, cached_path, local_name, read_local
from wal.blocks.digests import check_digest
from wal.reading import per_process
from wal.reading.plan import ReadPlan, Tier
from wal.reading.reference import BlockReference, check_same
from wal.segments.scan import read_frame
from wal.storage import Storage, open_storage


def this_host() -> str:
    """Return the name that services on this machine take if none is configured."""
    return socket.gethostname()


def read_stored_block(reference: BlockReference, plan: ReadPlan, tier: Tier, host: str) -> StoredBlock | None:
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


def stored_copy(reference: BlockReference, plan: ReadPlan, tier: Tier) -> StoredBlock | None:
    """Return the block as ``tier`` keeps it, fully verified, its payload unchanged; None if the tier does not apply.

    For callers that write the block again. Raises FileNotFoundError, CorruptionError, NewerVersionError, StoreError, OSError;
    for agents UnreachableError, which gives each asked host's reason.
    """
    if tier == "agent":
        from wal.reading.agents import read_from_any_agent

        return read_from_any_agent(reference, plan)
    stored = read_stored_block(reference, plan, tier, "")
    if stored is not None:
        check_same(reference, stored, f"{tier} copy of block {reference.id}")
    return stored


def _read_local_copy(reference: BlockReference, plan: ReadPlan) -> StoredBlock | None:
    if plan.blocks_directory is None or not reference.hosts:
        return None
    length = reference.handle.length
    try:
        try:
            return read_local(local_name(plan.blocks_directory, reference.stream, reference.id), length)
        except FileNotFoundError:
            cached = cached_path(plan.blocks_directory, reference.stream, reference.id)
            stored = read_local(cached, length)  # another process sent it
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
