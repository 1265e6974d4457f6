"""Tokens under which a block may still be written: a gap waits for them (rule 8)."""

from __future__ import annotations

from forebay import messages
from forebay.model.columns import PartitionFault
from forebay.model.identifiers import numbered
from forebay.model.units import Duration, Size
from forebay.model.values import TopicPartition
from receiver import actions as act
from receiver import inputs as inp
from tests.receiver.stage import P0, Stage, answer_beat, view


def _holds(stage: Stage) -> tuple[int, set[tuple[TopicPartition, int]]]:
    """Return the finished claims and held tokens that a heartbeat sent now names."""
    for beat in stage.all(act.Heartbeat):
        stage.tell(inp.HeartbeatAnswered(beat.request, numbered(1, 1), ()))
    message = answer_beat(stage, numbered(1, 1)).message
    return message.claims_done, {(TopicPartition(h.topic, h.partition), h.token) for h in message.holding}


def test_a_token_is_held_while_its_partition_takes_in_and_while_the_store_has_a_block_of_it() -> None:
    """This holds after the partition is lost too: the block may become durable long after that."""
    stage = Stage(block_interval=Duration(1.0))
    start = stage.own(P0)[P0]
    token = stage.tokens
    assert _holds(stage) == (1, {(P0, token)})
    stage.poll(start, range(3)).wait(1.0)
    (pending,) = stage.sealed()
    stage.tell(inp.Lost((P0,)))
    assert _holds(stage) == (1, {(P0, token)})
    stage.store(pending)
    assert _holds(stage) == (1, set())


def test_a_block_that_was_refused_is_held_until_the_store_has_written_it() -> None:
    """The store still writes a withdrawn block."""
    stage = Stage(block_interval=Duration(1.0), block_size=Size(40))
    start = stage.own(P0)[P0]
    token = stage.tokens
    stage.poll(start, range(3)).wait(1.0)
    stage.store(*stage.sealed())
    stage.poll(start, range(3, 6)).wait(1.0)
    (second,) = stage.sealed()
    stage.answer(refused={1: [P0]})
    assert (P0, token) in _holds(stage)[1]
    stage.store(second)
    assert (P0, token) not in _holds(stage)[1]


def test_token_of_partition_with_fault_is_not_held_and_next_heartbeat_is_immediate() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    _holds(stage)
    for beat in stage.all(act.Heartbeat):
        stage.tell(inp.HeartbeatAnswered(beat.request, numbered(1, 1), ()))
    stage.none(act.Heartbeat)
    stage.tell(inp.Polled([PartitionFault(P0, start.generation, "out-of-range", "gone")]))
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 5, 9, ""))
    assert stage.one(act.SendFault).message.position == 0
    assert stage.one(act.Heartbeat).message.holding == ()


def test_claim_is_done_when_answered_or_considered_lost() -> None:
    """While the answer is on its way, the receiver does not know the token, so it cannot name it as held."""
    stage = Stage().register()
    stage.tell(inp.Assigned((P0,)))
    stage.tell(inp.LookupAnswered(stage.one(act.Lookup).request, (view(P0),)))
    stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
    claim = stage.one(act.Claim)
    assert claim.message.number == 1
    assert _holds(stage) == (0, set())
    stage.tell(inp.DriverFailed(claim.request, "no answer in time"))
    assert _holds(stage) == (1, set())
    late = messages.ClaimGrant(granted=True, view=view(P0, token=99))
    stage.tell(inp.Claimed(claim.request, (late,)))
    assert (P0, 99) not in _holds(stage)[1]


def test_a_partition_is_not_released_while_the_store_has_a_block_of_it() -> None:
    """A release says that nothing is written under the token any more (INV-2)."""
    stage = Stage(block_interval=Duration(1.0), drain_timeout=Duration(3.0))
    start = stage.own(P0)[P0]
    stage.poll(start, range(3))
    stage.tell(inp.Revoked((P0,)))
    stage.wait(3.0)
    assert stage.one(act.RevocationDone).partitions == (P0,)
    stage.none(act.Release)
