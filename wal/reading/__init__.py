"""Reading of blocks inside a Spark task: local copy, else the agents of its hosts, else the WAL, else Kafka by exact offsets.

``read_block`` uses the first tier whose bytes pass the checks: the frame's checksums, the checksum that the journal's handle
names, the block's id and ranges, and the SHA-256 that the journal names. For the copy that this host's own receiver wrote, the
SHA-256 is not checked (docs/SECURITY.md). From Kafka it checks the topic's id, the number of records and their digest. Reading
never lists, locks, recovers or creates anything in a store. ``read_blocks`` does the same for all blocks of a task, small ones
together.
"""

from __future__ import annotations

from wal.reading.local_tier import this_host
from wal.reading.one_block import read_block
from wal.reading.outcome import FINAL_FAILURES, BlockRead, BlocksRead, TierCounts, TierFailure
from wal.reading.records import read_blocks
from wal.reading.reference import TIERS, BlockReference, ReadPlan, Tier, incarnation_key
from wal.reading.tiers import check_same

__all__ = [
    "FINAL_FAILURES",
    "TIERS",
    "BlockRead",
    "BlockReference",
    "BlocksRead",
    "ReadPlan",
    "Tier",
    "TierCounts",
    "TierFailure",
    "check_same",
    "incarnation_key",
    "read_block",
    "read_blocks",
    "this_host",
]
