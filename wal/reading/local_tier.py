"""The host's local copies as a tier: the copy of this host's receiver, else a cached copy that another process sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence

from forebay.model.errors import ForebayError
from wal.blocks import CopiesMemory, StoredBlock, cached_path, local_name, read_local
from wal.blocks.digests import check_digest
from wal.reading.reference import BlockReference, Fetched, ReadPlan


def this_host() -> str:
    """Return the name that services on this machine take if none is configured."""
    return socket.gethostname()


def read_local_copy(
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


def read_local_copies(references: Sequence[BlockReference], plan: ReadPlan) -> Iterator[Fetched]:
    memory = CopiesMemory(reference.handle.length for reference in references)
    for reference in references:
        found: StoredBlock | ForebayError | OSError | None
        try:
            found = read_local_copy(reference, plan, memory)
        except (ForebayError, OSError) as error:
            found = error
        yield reference, found
