"""The driver's decisions on replicas beside a WAL: they are used where they are known, and never hold up a block."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from driver.decisions.clean_up import to_give_up
from driver.journal import events as ev
from driver.journal.transitions import apply
from driver.tracker import CopyRules, Tracker
from driver.tracker.requests import CleanLocalCopies
from forebay import messages as m
from forebay.model.errors import UsageError
from forebay.model.values import Block, Handle
from tests.driver.tracker.test_without_wal import Copied
from tests.support.state.tracked import offsets, tracker_options
from wal.reading import BlockReference
from wal.segments.layout import block_segment

RULES = CopyRules(copies=2, timeout_seconds=30.0, room_bytes=1_000, beside_wal=True)


class Replicated(Copied):
    """A stream with a WAL, whose receiver on h1 sends replicas to h2."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker.replicas.rules = RULES

    def made(self, until: int, **changes: Any) -> Block:
        start = self.state.partitions["t/0"].position
        made = self.block(self.epoch, [offsets(start, until, self.token)])
        return msgspec.structs.replace(made, local=True, **{"other_hosts": self.hosts, **changes})


def test_block_names_its_replica_and_tasks_find_it() -> None:
    t = Replicated()
    taken = t.take(5)
    assert t.state.blocks[taken.id].hosts == ("h1", "h2") and taken.in_wal
    assert BlockReference.of(t.state.blocks[taken.id]).hosts == ("h1", "h2")
    t.check()


@pytest.mark.parametrize("unknown", [("h3",), ("nowhere",)])
def test_block_whose_replica_host_is_unknown_is_accepted_without_the_replica(unknown: tuple[str, ...]) -> None:
    """The WAL has it: a replica is never a reason to refuse. A repeated report gets the same answer."""
    t = Replicated()
    t.beat_agent("h3")
    made = t.made(5, other_hosts=unknown)
    for _ in range(2):
        (result,) = t.report(t.epoch, made)
        assert result.accepted
    assert t.state.blocks[made.id].hosts == ("h1",)
    t.check()


def test_new_driver_accepts_blocks_before_it_knows_a_replica_host() -> None:
    """The replica host may be lost together with the driver before it, and blocks must not wait for it."""
    t = Replicated()
    made = t.made(5)
    t.tracker = Tracker(t.state, t.tracker.driver_epoch + 1, tracker_options(copy_rules=RULES))
    (result,) = t.report(t.epoch, made)
    assert result.accepted and t.state.blocks[made.id].hosts == ("h1",)


@pytest.mark.parametrize("others", [("h1",), ("h2", "h3"), ("../h2",)])
def test_block_with_impossible_replicas_is_refused(others: tuple[str, ...]) -> None:
    t = Replicated()
    with pytest.raises(UsageError):
        t.report(t.epoch, t.made(5, other_hosts=others))
    assert not t.state.blocks


def test_replica_is_deleted_with_the_local_copy_when_the_batch_is_completed() -> None:
    """INV-8: by an intent for each host. The block stays in the WAL."""
    t = Replicated()
    taken = t.take(5)
    batch = t.batch()
    t.say(CleanLocalCopies())
    assert not t.state.cleanups, "the batch may still read them"
    t.complete(batch)
    t.say(CleanLocalCopies())
    assert {c.host: c.blocks for c in t.state.cleanups.values()} == {"h1": (taken.id,), "h2": (taken.id,)}
    t.check()
    (command,) = t.beat_agent("h2")
    assert (command.kind, command.blocks) == ("delete", (f"{t.state.stream}/{taken.id}",))
    t.beat_agent("h2", acknowledged=command.version)
    assert t.state.blocks[taken.id].hosts == ("h1",)
    t.check()


def test_host_without_room_may_delete_replicas() -> None:
    t = Replicated()
    taken = t.take(5)
    assert to_give_up(t.state, "h2", 1) == to_give_up(t.state, "h1", 1) == (taken.id,)
    assert to_give_up(t.state, "h3", 1) == ()


def test_replica_of_a_block_that_is_written_again_with_other_bytes_is_forgotten() -> None:
    """Its checksum is not the one that the journal names from then on. The same bytes at another place keep it."""
    t = Replicated()
    taken = t.take(5)
    batch = t.batch()
    t.complete(batch)
    path = block_segment(t.state.stream, "recovery", t.epoch, 1)
    same = Handle(path, 0, taken.handle.length, taken.handle.checksum)
    apply(t.state, ev.BlockMoved(block_id=taken.id, handle=same, local=True))
    assert t.state.blocks[taken.id].hosts == ("h1", "h2")
    t.check()
    other = Handle(path, 5_000, taken.handle.length, taken.handle.checksum + 1)
    apply(t.state, ev.BlockMoved(block_id=taken.id, handle=other, local=False))
    assert t.state.blocks[taken.id].hosts == ()
    assert "h2" not in t.state.index.superfluous
    t.check()


def test_driver_without_replicas_names_no_host() -> None:
    t = Replicated()
    assert t.second() == m.ReplicaHost(host="h2", url="http://h2:1")
    t.tracker = Tracker(t.state, t.tracker.driver_epoch + 1, tracker_options())
    t.beat_agent("h2")
    assert t.second("h2") is None
