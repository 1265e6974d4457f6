"""How many of the waiting blocks make the next batch. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Of records and of bytes (frames in the WAL) in one batch; 0: no limit."""

    max_records: int = 0
    max_bytes: int = 0


UNLIMITED = BatchLimits()


def longest_prefix(blocks: Iterable[tuple[int, int]], limits: BatchLimits) -> int:
    """How many of ``blocks``, (records, bytes) in order of acceptance, lie within ``limits``. At least one, if there is one:
    a block is never cut, so one that alone is beyond a limit is a batch of its own. Looks no further than it must."""
    count = records = size = 0
    for block_records, block_bytes in blocks:
        records += block_records
        size += block_bytes
        beyond = (limits.max_records and records > limits.max_records) or (limits.max_bytes and size > limits.max_bytes)
        if beyond and count:
            break
        count += 1
    return count
