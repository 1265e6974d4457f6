"""Partitions that the group revokes or loses (rule 6)."""

from __future__ import annotations

from receiver import actions as act
from receiver import inputs as inp
from tests.receiver.stage import P0, P1, P2, Stage, view


def test_revoked_partitions_are_sealed_stored_and_reported_before_they_are_released() -> None:
    stage = Stage()
    starts = stage.own(P0, P1)
    stage.poll(starts[P0], range(3)).poll(starts[P1], range(2))
    stage.tell(inp.Revoked((P0,)))
    (pending,) = stage.sealed()
    stage.none(act.RevocationDone)
    stage.store(pending)
    stage.none(act.RevocationDone)
    stage.answer()
    assert set(stage.one(act.CommitAsync).positions) == {P0, P1}
    assert stage.one(act.RevocationDone).partitions == (P0,)
    release = stage.one(act.Release).message.releases
    assert [(r.partition, r.token) for r in release] == [(0, pending.ranges[0].token)]
    stage.poll(starts[P1], [2]).poll(starts[P0], [3]).wait(1.0)  # the other partitions go on
    (pending,) = stage.sealed()
    assert [part.tp for part in pending.ranges] == [P1]


def test_revocation_ends_at_deadline_and_late_block_only_makes_other_partitions_claim_again() -> None:
    stage = Stage()
    starts = stage.own(P0, P1)
    stage.poll(starts[P0], range(3)).poll(starts[P1], range(2)).tell(inp.Revoked((P0,)))
    (pending,) = stage.sealed()
    stage.wait(19.0)
    stage.none(act.RevocationDone)
    stage.wait(1.0)
    stage.one(act.RevocationDone)
    stage.store(pending).answer(refused={1: [P0]})
    stage.wait(0.5)
    (again,) = stage.claim({P1: view(P1, 0, 30)})
    assert again.offset == 2


def test_partitions_never_assigned_do_not_delay_a_revocation() -> None:
    stage = Stage()
    stage.own(P0)
    stage.tell(inp.Revoked((P2,)))
    stage.one(act.RevocationDone)


def test_lost_partitions_are_dropped_and_others_kept() -> None:
    stage = Stage()
    starts = stage.own(P0, P1)
    stage.poll(starts[P0], range(3)).poll(starts[P1], range(2)).tell(inp.Lost((P0,)))
    stage.wait(1.0)
    (pending,) = stage.sealed()
    assert [part.tp for part in pending.ranges] == [P1]
    stage.none(act.Release)
