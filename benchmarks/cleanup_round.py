"""A round of clean-up in the decision loop, with 100,000 blocks in the state and with 1,000.

The round decides which segments are due by time or size, and which local copies may be deleted, when little has changed since
the last round. Blocks of 64 kB are in segments of 6.4 MB, and one segment is due. Ours: rounds with 100,000 blocks. Peer: rounds
with 1,000. The time of a round must not grow with the number of blocks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.setup import Setup
from driver.background.cleaner import due_paths
from driver.journal.state import State
from driver.journal.state_parts import Batch
from driver.tracker import Tracker
from driver.tracker.requests import CleanLocalCopies
from forebay.model.values import Block, BlockMeta, BlockRange, Handle, block_id
from tests.support.state.tracked import tracker_options
from wal.decisions.retention import RetentionLimits

MANY, FEW = 100_000, 1_000
BLOCK_BYTES = 64_000
BLOCKS_OF_A_SEGMENT = 100
ROUNDS = 2_000


def measure(setup: Setup) -> Iterator[Measured]:
    rounds = max(50, int(ROUNDS * setup.scale))
    many, few = _tracker(MANY), _tracker(FEW)
    pairs = alternate(setup.runs, lambda: _rate(many, rounds), lambda: _rate(few, rounds))
    yield ratio("cleanup", f"{MANY:,} blocks / {FEW:,} blocks", pairs, "rounds/s", Threshold(0.2, at_least=True))


def _rate(tracker: Tracker, rounds: int) -> float:
    begun = time.perf_counter()
    for number in range(rounds):
        assert len(due_paths(tracker.state, RetentionLimits(retention_ms=1_000), 1_500)) == 1
        tracker.decide(CleanLocalCopies(), number, number)
    return rounds / (time.perf_counter() - begun)


def _tracker(blocks: int) -> Tracker:
    """Return a tracker whose blocks are all released except the last, so that the oldest segment is due."""
    state = State(stream="bench", timeline=1, created=True)
    for number in range(blocks):
        segment, place = divmod(number, BLOCKS_OF_A_SEGMENT)
        held = BlockRange("t", 0, 1, number, number + 1, 1, 0, "0" * 16, 1)
        meta = BlockMeta(block_id("r1", 1, number + 1), "bench", "r1", 1, number + 1, (held,), 1, 0, "h1")
        path = f"bench/blocks/r1/{1:016x}/{segment:08d}.seg"
        state.blocks[meta.id] = Block(meta, Handle(path, place * BLOCK_BYTES, BLOCK_BYTES, 7), False)
        state.released[meta.id] = 1 + segment * 1_000
    state.released.popitem()
    last = next(reversed(state.blocks))
    state.batches[1] = Batch(1, 1, 0, ((last,),))
    state.batch_of[last] = 1
    state.__post_init__()
    return Tracker(state, 1, tracker_options(retention=RetentionLimits(retention_ms=1_000)))
