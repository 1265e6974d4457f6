"""Each kind of change is noticed by the check after the step that makes it."""

from __future__ import annotations

from random import Random

import pytest

from tests.simulation import traces
from tests.simulation.invariants import InvariantViolation
from tests.simulation.kafka import Committed
from tests.simulation.options import Options
from tests.simulation.world import World


@pytest.fixture
def settled() -> World:
    """Return a world with accepted blocks in its WAL."""
    outcome = traces.explore(0, 20, drawn=lambda _: Options(warm_rounds=10, faults=()))
    assert isinstance(outcome, World)
    outcome.invariants.check()
    return outcome


def wal_segments(world: World) -> list[str]:
    assert world.invariants.durable is not None
    return sorted({block.handle.path for block in world.invariants.durable.blocks.values()})


def test_commit_beyond_durable_position_is_noticed(settled: World) -> None:
    """INV-1."""
    group = settled.kafka.group
    tp, known = next(iter(group.committed.items()))
    group.committed[tp] = Committed(known.offset + 1, known.metadata)
    group.commits += 1
    with pytest.raises(InvariantViolation, match=r"INV-1.*was committed"):
        settled.invariants.check()


def test_deleted_segment_of_accepted_block_is_noticed(settled: World) -> None:
    """INV-8."""
    settled.wal.delete(wal_segments(settled)[0])
    with pytest.raises(InvariantViolation, match=r"INV-8.*the WAL lost it"):
        settled.invariants.check()


def test_segment_that_its_disk_lost_is_noticed(settled: World) -> None:
    """INV-1."""
    settled.wal.forget(wal_segments(settled)[0])
    with pytest.raises(InvariantViolation, match=r"INV-1.*does not durably hold it"):
        settled.invariants.check()


def test_journal_that_its_disk_lost_is_noticed(settled: World) -> None:
    for path in settled.journal.paths(settled.stream):
        settled.journal.forget(path)
    settled.journal.crash_host(Random(1))
    settled.invariants.check()
    assert settled.invariants.lost
