"""Receivers that drain, stop or restart."""

from __future__ import annotations

from forebay import messages
from forebay.model.identifiers import numbered
from receiver import actions as act
from receiver import inputs as inp
from tests.receiver.stage import P0, Stage, answer_beat, offsets_of, view


def test_drain_seals_stores_reports_commits_releases_and_exits_with_0() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).tell(inp.DrainRequested())
    assert stage.machine.state == "draining"
    stage.poll(start, [3])  # too late: Kafka still has it
    (pending,) = stage.sealed()
    assert offsets_of(pending, P0) == [0, 1, 2]
    stage.none(act.CommitSync)
    stage.store(pending).answer()
    stage.all(act.CommitAsync)
    commit = stage.one(act.CommitSync)
    assert commit.positions[P0].offset == 3
    stage.none(act.Release)
    stage.tell(inp.CommitSynced(commit.request, {}))
    release = stage.one(act.Release)
    stage.none(act.Exit)
    stage.tell(inp.Released(release.request))
    assert stage.one(act.Exit).code == 0


def test_process_exits_with_1_after_drain_timeout_and_names_what_is_left() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).tell(inp.DrainRequested()).store(*stage.sealed())
    stage.wait(20.0)
    ended = stage.one(act.Exit)
    assert ended.code == 1
    assert "1 blocks not reported" in ended.reason


def test_a_refusal_while_draining_is_claimed_and_cut_again_but_nothing_more_is_read() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).tell(inp.DrainRequested()).store(*stage.sealed())
    stage.answer(refused={1: [P0]})
    stage.none(act.Release)
    stage.wait(0.5)
    assert stage.claim({P0: view(P0, 1, 30)}) == []
    (pending,) = stage.sealed()
    assert offsets_of(pending, P0) == [1, 2]
    stage.store(pending).answer()
    stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
    stage.tell(inp.Released(stage.one(act.Release).request))
    assert stage.one(act.Exit).code == 0


def test_receiver_restarted_by_the_driver_drains_and_exits_with_6() -> None:
    """Its supervisor starts it again."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3))
    order = messages.Command(version=1, driver_epoch=numbered(1, 1), kind="restart")
    answer_beat(stage, numbered(1, 1), order)
    assert stage.machine.state == "draining"
    (pending,) = stage.sealed()
    stage.store(pending).answer()
    stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
    stage.tell(inp.Released(stage.one(act.Release).request))
    assert stage.one(act.Exit).code == 6


def test_restart_of_a_receiver_that_drains_already_does_not_start_it_again() -> None:
    stage = Stage()
    stage.own(P0)
    stage.tell(inp.DrainRequested())
    answer_beat(stage, numbered(1, 1), messages.Command(version=1, driver_epoch=numbered(1, 1), kind="restart"))
    stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
    stage.tell(inp.Released(stage.one(act.Release).request))
    assert stage.one(act.Exit).code == 0


def test_a_stop_ends_without_reporting_what_is_open() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).seal_and_store()
    answer_beat(stage, numbered(1, 1), messages.Command(version=1, driver_epoch=numbered(1, 1), kind="stop"))
    stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
    stage.tell(inp.Released(stage.one(act.Release).request))
    assert stage.one(act.Exit).code == 0
