"""The size of the next batch: the number of waiting blocks that go into it. Decision logic, without I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Maximum records and bytes (of frames in the WAL) in one batch; 0: no limit."""

    max_records: int = 0
    max_bytes: int = 0


UNLIMITED = BatchLimits()


def longest_prefix(blocks: Iterable[tuple[int, int]], limits: BatchLimits) -> int:
    """Return the number of blocks at the beginning of ``blocks`` that fit into one batch. ``blocks``: (records, bytes) of each
    block, in order of acceptance.

    The result is at least 1 if there is a block: blocks are never cut, so a block beyond a limit is a batch of its own.
    Consumes no more of ``blocks`` than needed.
    """
    count = records = size = 0
    for block_records, block_bytes in blocks:
        records += block_records
        size += block_bytes
        beyond = (limits.max_records and records > limits.max_records) or (limits.max_bytes and size > limits.max_bytes)
        if beyond and count:
            break
        count += 1
    return count
