"""Receivers that agents start: commands to agents, restarts by an operator, and what status shows of them."""

from __future__ import annotations

import pytest

from driver.decisions.receiver_lifecycle import ManagedReceivers, ManagedRules
from driver.tracker.requests import BeginDrain, PlaceReceivers
from forebay import messages as m
from forebay.model.errors import RefusedError
from forebay.model.identifiers import numbered
from tests.support.state.shown import shown
from tests.support.state.tracked import STREAM, Tracked


def agent_says(host: str = "h1", *running: str) -> m.AgentHeartbeatRequest:
    return m.AgentHeartbeatRequest(
        host=host,
        url="http://a",
        instance_id="a",
        acknowledged=0,
        blocks=0,
        used_bytes=0,
        free_bytes=0,
        capacity=2,
        labels=("rack=a",),
        receivers=tuple(
            m.ReceiverProcess(receiver_id=name, driver_epoch=numbered(1, 1), version=1, running=True, pid=7)
            for name in running
        ),
    )


def managed(count: int = 1) -> Tracked:
    t = Tracked()
    t.tracker.agents.managed = ManagedReceivers(
        STREAM, driver_epoch=numbered(1, 1), count=count, known={}, rules=ManagedRules(hosts_wait_seconds=0.0)
    )
    return t


def test_agent_gets_its_start_command_until_it_reports_the_receiver_running() -> None:
    t = managed()
    assert t.say(agent_says()).commands == ()
    journalled = len(t.events)
    assert t.say(PlaceReceivers()) == ()
    (start,) = t.say(agent_says()).commands
    assert (start.kind, start.receiver_id) == ("start-receiver", f"{STREAM}-r0")
    assert t.say(agent_says()).commands == (start,), "its answer may have been lost"
    assert t.say(agent_says("h1", f"{STREAM}-r0")).commands == ()
    assert len(t.events) == journalled
    assert any("scheduled → active" in said for said in t.say(PlaceReceivers()))


def test_status_shows_managed_receivers_and_what_their_agents_offer() -> None:
    t = managed(count=3)
    t.say(agent_says())
    t.say(PlaceReceivers())
    t.say(agent_says())
    t.say(agent_says("h1", f"{STREAM}-r0"))
    seen = shown(t.tracker, t.now_ms / 1000)
    assert [(r.receiver_id, r.state, r.host, r.pid) for r in seen.managed] == [
        (f"{STREAM}-r0", "active", "h1", 7),
        (f"{STREAM}-r1", "scheduled", "h1", 0),
        (f"{STREAM}-r2", "scheduled", "", 0),
    ]
    assert "has no host" in seen.managed[2].fault
    assert (seen.agents[0].capacity, seen.agents[0].labels) == (2, ("rack=a",))


def test_managed_receivers_that_drain_with_their_driver_are_not_started_again() -> None:
    t = managed()
    t.say(agent_says())
    t.say(PlaceReceivers())
    t.say(agent_says())
    t.say(agent_says("h1", f"{STREAM}-r0"))
    t.say(BeginDrain())
    (stop,) = t.say(agent_says("h1", f"{STREAM}-r0")).commands
    assert (stop.kind, stop.receiver_id) == ("stop-receiver", f"{STREAM}-r0")
    assert t.say(agent_says()).commands == ()
    t.now_ms += 100_000
    t.say(PlaceReceivers())
    assert t.say(agent_says()).commands == ()
    assert [r.state for r in t.tracker.managed.status(0)] == ["stopped"]


def test_operator_restarts_a_managed_receiver_by_its_agent() -> None:
    t = managed()
    name = f"{STREAM}-r0"
    for request in (agent_says(), PlaceReceivers(), agent_says(), agent_says("h1", name)):
        t.say(request)
    assert "its agent starts it again" in t.say(m.RestartReceiverRequest(receiver_id=name)).message
    assert [command.kind for command in t.say(agent_says("h1", name)).commands] == ["stop-receiver"]
    assert t.say(agent_says()).commands == ()
    t.say(PlaceReceivers())
    assert [command.kind for command in t.say(agent_says()).commands] == ["start-receiver"]


def test_operator_restarts_a_static_receiver_by_one_command_until_it_registers_again() -> None:
    t = Tracked()
    epoch = t.register()
    restart = m.RestartReceiverRequest(receiver_id="r1", cause="anna")
    with pytest.raises(RefusedError, match="does not run: start it on host h1"):
        t.say(restart)
    t.beat(epoch)
    for _ in range(2):
        assert "exits with 6" in t.say(restart).message
    (command,) = t.beat(epoch)
    assert command.kind == "restart"
    assert t.beat(epoch, seen=command.version) == ()
    again = t.register(instance="i2")
    assert t.beat(again) == ()
    with pytest.raises(RefusedError, match="no receiver is named 'r9'"):
        t.say(m.RestartReceiverRequest(receiver_id="r9"))
    t.now_ms += 60_000
    with pytest.raises(RefusedError, match="does not run"):
        t.say(restart)


def test_errors_that_a_receiver_tells_are_shown() -> None:
    t = Tracked()
    epoch = t.register()
    note = m.ErrorNote(message="Kafka: a broker is away", count=2, seconds_ago=1.5)
    t.say(
        m.HeartbeatRequest(
            receiver_id="r1", epoch=epoch, state="active", detail="", acknowledged=0, buffered_bytes=0, records=0,
            errors=(note,),
        )
    )  # fmt: skip
    assert shown(t.tracker, t.now_ms / 1000).receivers[0].errors == (note,)
