"""Claims, and which polled records count after them (rules 2 and 3)."""

from __future__ import annotations

from forebay import messages
from forebay.model.units import Duration
from receiver import actions as act
from receiver import inputs as inp
from tests.receiver.stage import P0, P1, Stage, view


def test_a_partition_is_looked_up_committed_and_claimed_before_it_is_read() -> None:
    """Rules 2 and 4: the claim names the token of the lookup, after a commit that only a member of the group can do."""
    stage = Stage().register()
    stage.tell(inp.Assigned((P0,)))
    look = stage.one(act.Lookup)
    stage.none(act.CommitSync)
    stage.tell(inp.LookupAnswered(look.request, (view(P0, 40, token=6, incarnation=2, leader_epoch=3),)))
    commit = stage.one(act.CommitSync)
    point = commit.positions[P0]
    assert (point.offset, point.leader_epoch, point.metadata) == (40, 3, "forebay:1:2")
    stage.none(act.Claim)
    stage.tell(inp.CommitSynced(commit.request, {}))
    claim = stage.one(act.Claim)
    assert claim.message.claims == (messages.ClaimAsk(topic="t", partition=0, known_token=6),)
    stage.none(act.StartPartitions)
    granted = view(P0, 42, token=8, incarnation=2, leader_epoch=4)
    stage.tell(inp.Claimed(claim.request, (messages.ClaimGrant(granted=True, view=granted),)))
    (start,) = stage.one(act.StartPartitions).starts
    assert (start.offset, start.leader_epoch) == (42, 4)


def test_a_zombie_whose_commit_fails_claims_nothing() -> None:
    """Rule 4: a local assignment does not prove membership."""
    stage = Stage().register()
    stage.tell(inp.Assigned((P0,)))
    stage.tell(inp.LookupAnswered(stage.one(act.Lookup).request, (view(P0),)))
    commit = stage.one(act.CommitSync)
    stage.tell(inp.CommitSynced(commit.request, {P0: "unknown member"}))
    stage.none(act.Claim)
    stage.none(act.Lookup)
    stage.wait(0.5)
    stage.one(act.Lookup)


def test_refused_claims_are_retried_with_growing_delay() -> None:
    stage = Stage().register()
    stage.tell(inp.Assigned((P0,)))
    delays = []
    for _ in range(7):
        stage.tell(inp.LookupAnswered(stage.one(act.Lookup).request, (view(P0),)))
        stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
        claim = stage.one(act.Claim)
        stage.tell(inp.Claimed(claim.request, (messages.ClaimGrant(granted=False, view=view(P0, token=5)),)))
        delay = 0.0
        while not any(isinstance(action, act.Lookup) for action in stage.actions):
            stage.wait(0.25)
            delay += 0.25
        delays.append(delay)
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    stage.none(act.StartPartitions)


def test_a_partition_that_the_driver_does_not_know_yet_is_looked_up_again() -> None:
    stage = Stage().register()
    stage.tell(inp.Assigned((P0, P1)))
    unknown = messages.PartitionView(topic="t", partition=0, known=False)
    stage.tell(inp.LookupAnswered(stage.one(act.Lookup).request, (unknown, view(P1))))
    assert set(stage.one(act.CommitSync).positions) == {P1}
    stage.wait(0.5)
    assert stage.one(act.Lookup).message.partitions == (P0,)


def test_late_and_repeated_answers_change_nothing() -> None:
    stage = Stage().register()
    stage.tell(inp.Assigned((P0,)))
    look = stage.one(act.Lookup)
    answer = inp.LookupAnswered(look.request, (view(P0),))
    stage.wait(31.0)  # considered lost
    stage.wait(1.0)
    second = stage.one(act.Lookup)
    assert second.request != look.request
    stage.tell(answer)
    stage.none(act.CommitSync)
    stage.tell(inp.LookupAnswered(second.request, (view(P0),)))
    commit = stage.one(act.CommitSync)
    stage.tell(inp.LookupAnswered(second.request, (view(P0),)))
    stage.none(act.CommitSync)
    stage.tell(inp.CommitSynced(commit.request, {}))
    claim = stage.one(act.Claim)
    stage.tell(inp.CommitSynced(commit.request, {}))
    stage.none(act.Claim)
    stage.tell(inp.Revoked((P0,)))
    stage.tell(inp.Claimed(claim.request, (messages.ClaimGrant(granted=True, view=view(P0, token=9)),)))
    stage.none(act.StartPartitions)


def test_reclaim_delay_setting_sets_the_delay() -> None:
    stage = Stage(reclaim_delay=Duration(3.0)).register()
    stage.tell(inp.Assigned((P0,)))
    stage.tell(inp.LookupAnswered(stage.one(act.Lookup).request, ()))
    stage.wait(2.9)
    stage.none(act.Lookup)
    stage.wait(0.2)
    stage.one(act.Lookup)
