"""How a receiver registers, and which topics it joins (rule 1 in docs/architecture/ownership.md)."""

from __future__ import annotations

from forebay.model.identifiers import numbered
from receiver import actions as act
from receiver import inputs as inp
from tests.receiver.stage import EPOCH, P0, Stage


def test_receiver_joins_no_group_before_the_driver_grants_an_epoch() -> None:
    stage = Stage().tell(inp.Tick())
    register = stage.one(act.Register)
    assert register.message.instance_id == "instance"
    stage.none(act.Subscribe)
    stage.tell(inp.DriverFailed(register.request, "refused")).wait(0.1)
    stage.none(act.Register)
    stage.wait(10.0)
    stage.tell(inp.Registered(stage.one(act.Register).request, EPOCH, 1, 1))
    assert stage.one(act.Subscribe).epoch == EPOCH


def test_receiver_joins_the_topics_that_the_driver_names_at_registration() -> None:
    stage = Stage().tell(inp.Tick())
    stage.tell(inp.Registered(stage.one(act.Register).request, EPOCH, 1, 1, ("a", "b")))
    assert stage.one(act.Subscribe) == act.Subscribe(EPOCH, ("a", "b"))
    stage.none(act.Follow)


def _named(stage: Stage, driver_epoch: int, topics: tuple[str, ...] | None) -> Stage:
    """Answer the next heartbeat with ``topics``."""
    beats = stage.all(act.Heartbeat) or stage.wait(10.0).all(act.Heartbeat)
    (beat,) = beats
    stage.actions.clear()
    return stage.tell(inp.HeartbeatAnswered(beat.request, driver_epoch, (), None, topics))


def test_receiver_subscribes_again_when_the_driver_names_other_topics_and_only_then() -> None:
    stage = Stage().tell(inp.Tick())
    stage.tell(inp.Registered(stage.one(act.Register).request, EPOCH, numbered(1, 1), 1, ()))
    assert stage.machine.detail == "no topic matches kafka.pattern"
    assert _named(stage, numbered(1, 1), ("a",)).one(act.Follow) == act.Follow(("a",))
    assert stage.machine.detail == ""
    _named(stage, numbered(1, 1), ("a",)).none(act.Follow)
    _named(stage, numbered(1, 1), None).none(act.Follow)  # a driver of an older release
    assert _named(stage, numbered(1, 2), ("a", "b")).one(act.Follow) == act.Follow(("a", "b"))
    _named(stage, numbered(1, 1), ("a",)).none(act.Follow)  # INV-4: of a driver that was superseded


def _warnings(stage: Stage) -> list[str]:
    return [note.text for note in stage.all(act.Note) if note.warning]


def test_receiver_warns_once_of_older_driver_without_topics_and_joins_when_newer_one_names_them() -> None:
    stage = Stage(by_pattern=True).tell(inp.Tick())
    stage.tell(inp.Registered(stage.one(act.Register).request, EPOCH, numbered(1, 1), 1))
    (warning,) = _warnings(stage)
    assert warning.endswith("upgrade the driver: until then no topic is subscribed to")
    assert (stage.machine.state, stage.machine.detail) == ("waiting", warning.partition(": until")[0])
    beat = stage.one(act.Heartbeat)
    assert beat.message.detail == stage.machine.detail
    assert [note.message for note in beat.message.errors] == [warning]
    stage.tell(inp.HeartbeatAnswered(beat.request, numbered(1, 1), (), None, None))
    assert not _warnings(stage) and stage.machine.detail
    assert _named(stage, numbered(1, 2), ("a",)).one(act.Follow) == act.Follow(("a",))
    assert stage.machine.detail == ""


def test_receiver_that_goes_back_to_an_older_driver_keeps_its_topics_and_warns() -> None:
    stage = Stage(by_pattern=True).tell(inp.Tick())
    stage.tell(inp.Registered(stage.one(act.Register).request, EPOCH, numbered(1, 2), 1, ("a",)))
    assert not _warnings(stage)
    _named(stage, numbered(1, 1), None)  # INV-4: of a driver that was superseded
    assert not _warnings(stage)
    _named(stage, numbered(1, 3), None)
    (warning,) = _warnings(stage)
    assert warning.endswith("new and deleted topics are not noticed")
    assert stage.machine.detail == ""
    stage.none(act.Follow)


def test_receiver_of_named_topics_needs_none_from_the_driver() -> None:
    stage = Stage().tell(inp.Tick())
    stage.tell(inp.Registered(stage.one(act.Register).request, EPOCH, 1, 1))
    assert not _warnings(stage) and stage.machine.detail == ""


def test_draining_receiver_keeps_its_subscription() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(5)).wait(10.0)  # a heartbeat is under way
    beat = stage.one(act.Heartbeat)
    stage.tell(inp.DrainRequested())
    stage.tell(inp.HeartbeatAnswered(beat.request, numbered(1, 1), (), None, ("other",)))
    stage.none(act.Follow)


def test_superseded_process_exits_with_4_and_does_nothing_more() -> None:
    """INV-4."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(5)).tell(inp.Fenced("registered again since"))
    assert stage.one(act.Exit).code == 4
    stage.actions.clear()
    stage.wait(5.0)
    assert stage.actions == []
