"""Managed receivers: every row of their table, and fleets of played agents to which everything happens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.decisions.receiver_lifecycle import (
    TRANSITIONS,
    ReceiverChange,
    ReceiverState,
)
from forebay import messages as m
from forebay.model.identifiers import managed_id, managed_ordinal
from tests.driver.decisions.played_agents import STREAM, TIMEOUT_SECONDS, Played, PlayedAgent, Process

# ---- the table -------------------------------------------------------------------------------------------------------

#: the same table once more, as a picture: state → what happened → the state then; "": nothing changes
PICTURE = """
            RUNS      ENDED    LOST     HANGS     MOVED     RESTARTED UNWANTED  WANTED
scheduled   active    failed   failed   .         .         .         draining  .
active      .         failed   failed   draining  draining  draining  draining  .
draining    .         stopped  stopped  .         .         .         .         .
stopped     draining  .        .        .         .         .         .         scheduled
failed      active    .        .        .         .         .         stopped   scheduled
"""


def rows() -> list[tuple[ReceiverState, ReceiverChange, ReceiverState]]:
    head, *lines = PICTURE.strip("\n").splitlines()
    happened = [ReceiverChange[name] for name in head.split()]
    found = []
    for line in lines:
        name, *then = line.split()
        found += [
            (ReceiverState(name), what, ReceiverState(name) if after == "." else ReceiverState(after))
            for what, after in zip(happened, then, strict=True)
        ]
    return found


@pytest.mark.parametrize(("state", "happened", "then"), rows())
def test_each_transition_is_the_tables(state: ReceiverState, happened: ReceiverChange, then: ReceiverState) -> None:
    assert TRANSITIONS.get((state, happened), state) is then


def test_the_picture_shows_every_state_and_change() -> None:
    assert {(state, what) for state, what, _ in rows()} == {(s, h) for s in ReceiverState for h in ReceiverChange}


def test_receivers_are_started_once_each_and_shown() -> None:
    played = Played(3, "a", "b").step(3)
    assert played.hosts() == {0: "a", 1: "b", 2: "a"}
    assert len(played.started) == 3
    assert played.states() == ["active"] * 3
    assert played.of(0).pid == played.process(0).pid
    played.step(30)
    assert len(played.started) == 3, "nothing changed, nothing is started"


@pytest.mark.parametrize("exit_code", [0, 1, 2, 4, -9])
def test_one_that_ends_while_it_is_wanted_is_started_again_with_0_too(exit_code: int) -> None:
    played = Played(1, "a").step(100)
    played.end(0, exit_code)
    played.step(5)
    seen = played.of(0)
    assert (seen.state, seen.exit_code, seen.restarts, seen.host) == ("active", exit_code, 1, "a")


def test_restarted_receiver_drains_and_starts_again_on_its_host_without_a_failure() -> None:
    played = Played(2, "a", "b").step(3)
    before = played.process(0)
    assert played.driver.restart(managed_id(STREAM, 0), played.now)
    played.step(4)
    seen = played.of(0)
    assert before.exit_code == 0
    assert (seen.state, seen.host, seen.restarts) == ("active", "a", 0)
    assert len(played.started) == 3, "the other one goes on undisturbed"
    assert not played.driver.restart("r7", played.now)


def test_receiver_that_waits_for_its_delay_is_restarted_immediately() -> None:
    played = Played(1, "a").step(2)
    for _ in range(6):  # its delay grows to 30 s
        played.end(0, 1)
        while played.states() != ["failed"]:
            played.step()
        assert played.driver.restart(managed_id(STREAM, 0), played.now)
        played.step(3)
        assert played.hosts() == {0: "a"}


def test_another_host_is_taken_when_its_own_keeps_failing() -> None:
    played = Played(1, "a", "b", host_failures_max=4, avoid_seconds=300.0).step(2)
    failures = 0
    while played.hosts().get(0) != "b":
        if 0 in played.hosts():
            played.end(0, 1)
            failures += 1
        played.step()
    assert failures == 4
    assert "failed repeatedly on a" in played.of(0).detail
    assert played.step(100).hosts() == {0: "b"}, "it does not move back immediately"
    played.step(200)
    assert "failed repeatedly" not in played.of(0).detail, "the host is given another chance after a while"


def test_where_there_is_no_other_host_it_is_tried_on_with_a_delay_that_grows_and_is_bounded() -> None:
    played = Played(1, "a").step(2)
    pauses = []
    for _ in range(10):
        played.end(0, 1)
        ended = played.now
        while 0 not in played.hosts():
            played.step()
        pauses.append(played.now - ended)
    assert pauses == sorted(pauses) and pauses[0] <= 4 < 30 <= pauses[-1] <= 34


def test_one_that_ran_long_enough_begins_with_the_first_delay_again() -> None:
    played = Played(1, "a").step(2)
    for _ in range(6):
        played.step(70)
        played.end(0, 1)
        played.step(4)
        assert played.hosts() == {0: "a"}


def test_receivers_of_a_lost_host_move_to_the_others_and_no_others_move() -> None:
    played = Played(4, "a", "b", "c").step(3)
    before = played.hosts()
    played.crash("b")
    played.step(int(TIMEOUT_SECONDS) - 2)
    assert played.hosts() == {n: h for n, h in before.items() if h != "b"}, "silence shorter than the time-out is borne"
    played.step(6)
    assert {n: h for n, h in played.hosts().items() if before[n] != "b"} == {
        n: h for n, h in before.items() if h != "b"
    }
    assert sorted(played.hosts().values()) == ["a", "a", "c", "c"]


def test_a_host_that_joins_gets_its_share_one_by_one_each_drained_before_it_starts_there() -> None:
    played = Played(6, "a", "b").step(3)
    played.agents["c"] = PlayedAgent("c")
    started = len(played.started)
    for _ in range(20):
        played.step()  # which asserts that none runs twice
        assert played.states().count("draining") <= 1
    assert sorted(played.hosts().values()) == ["a", "a", "b", "b", "c", "c"]
    assert len(played.started) == started + 2
    assert all(played.of(n).restarts == 0 for n in range(6)), "a move is no restart"


def test_an_agent_that_is_about_to_end_gets_none_and_its_receivers_start_elsewhere() -> None:
    played = Played(2, "a", "b").step(3)
    played.agents["b"].capacity = 0
    played.end(1, 0)
    played.step(3)
    assert played.hosts() == {0: "a", 1: "a"}


def test_a_host_whose_capacity_was_taken_away_is_drained() -> None:
    played = Played(2, "a", "b").step(3)
    played.agents["b"].capacity = 0
    played.step(4)
    assert played.hosts() == {0: "a", 1: "a"}


def test_a_silent_receiver_is_killed_and_started_on_another_host() -> None:
    """It runs, so its agent does not know better: only its own heartbeats tell."""
    played = Played(2, "a", "b").step(3)
    hung = played.process(1)
    hung.hangs = True
    played.step(int(TIMEOUT_SECONDS) - 2)
    assert hung.running
    played.step(8)
    assert hung.exit_code == -9
    assert played.hosts() == {0: "a", 1: "a"}
    assert played.of(1).restarts == 1


def test_a_receiver_that_cannot_be_killed_is_replaced_and_killed_if_it_returns() -> None:
    """INV-4: it is fenced when the other one registers."""
    played = Played(1, "a", "b").step(3)
    hung = played.process(0)
    hung.hangs = True
    obey, deaf = played.obey, "a"
    played.obey = lambda agent, command: None if agent.host == deaf else obey(agent, command)  # type: ignore[method-assign]
    played.cut_off = True
    played.step(int(TIMEOUT_SECONDS) * 3)
    assert "s-r0" in played.agents["b"].live()
    deaf = ""
    played.cut_off = False
    played.agents["a"].up = False
    played.beat(played.agents["a"])
    assert not hung.running
    assert played.step(20).hosts() == {0: "b"}


def test_a_receiver_just_started_gets_longer_for_its_first_heartbeat() -> None:
    played = Played(1, "a", "b", start_timeout_seconds=60.0)
    obey = played.obey

    def silent(agent: PlayedAgent, command: m.Command) -> None:
        obey(agent, command)
        agent.children["s-r0"].hangs = True

    played.obey = silent  # type: ignore[method-assign]
    played.step(60)
    assert played.hosts() == {0: "a"}
    played.obey = obey  # type: ignore[method-assign]
    played.step(8)
    assert played.hosts() == {0: "b"}


def test_a_driver_that_could_not_take_heartbeats_declares_no_receiver_lost() -> None:
    """Its journal had no space, so it took no heartbeats. Then the agents' heartbeats come before the receivers'."""
    played = Played(2, "a", "b").step(3)
    pids = [played.process(n).pid for n in (0, 1)]
    played.now += 10_000
    for number in (0, 1):
        played.process(number).hangs = True
    played.step()
    for number in (0, 1):
        played.process(number).hangs = False
    played.step(3)
    assert [played.process(n).pid for n in (0, 1)] == pids
    assert [played.of(n).restarts for n in (0, 1)] == [0, 0]


def test_a_new_driver_takes_over_what_runs_and_moves_nothing() -> None:
    played = Played(4, "a", "b", hosts_wait_seconds=5.0).step(10)
    before, started = played.hosts(), len(played.started)
    for host in ("b", "a"):  # one agent's heartbeat comes later than the other's
        played.agents[host].up = False
        played.lead()
        played.step(2)
        played.agents[host].up = True
        played.step(20)
    assert played.hosts() == before
    assert len(played.started) == started
    assert played.states() == ["active"] * 4


def test_a_new_driver_starts_what_ended_while_there_was_none() -> None:
    played = Played(2, "a", "b").step(3)
    played.end(0, -9)
    played.crash("b")
    played.lead()
    played.step(3)
    assert played.hosts() == {0: "a"}, "b may yet come back with its receiver"
    played.step(int(TIMEOUT_SECONDS) + 5)
    assert played.hosts() == {0: "a", 1: "a"}


def test_a_replaced_receiver_of_a_disconnected_agent_is_killed_when_the_agent_returns() -> None:
    """INV-4: until then it was fenced by the registration of the one that took its place."""
    played = Played(1, "a", "b").step(3)
    played.cut_off = True
    played.agents["a"].up = False
    played.receiver_heartbeats.pop("s-r0")
    played.step(int(TIMEOUT_SECONDS) + 5)
    assert "s-r0" in played.agents["b"].live()
    played.agents["a"].up = True
    played.step(3)
    assert played.hosts() == {0: "b"}
    assert played.agents["a"].live() == []


def test_a_disconnected_agent_keeps_its_receiver_while_that_sends_heartbeats() -> None:
    played = Played(1, "a", "b").step(3)
    played.agents["a"].up = False
    for _ in range(60):
        played.receiver_heartbeats["s-r0"] = played.now + 1
        played.step()
    assert played.hosts() == {0: "a"}


def test_the_driver_waits_for_hosts_at_start_for_a_limited_time() -> None:
    played = Played(3, "a", hosts_wait_seconds=20.0).step(10)
    assert played.hosts() == {0: "a"}
    assert "waits up to" in played.of(1).detail
    played.agents["b"] = PlayedAgent("b")
    played.step(3)
    assert played.hosts() == {0: "a", 1: "b"}
    played.step(10)
    assert played.hosts() == {0: "a", 1: "b", 2: "a"}


def test_the_wait_ends_with_the_host_that_makes_them_enough() -> None:
    played = Played(2, "a", hosts_wait_seconds=1000.0).step(5)
    played.agents["b"] = PlayedAgent("b")
    assert played.step(3).hosts() == {0: "a", 1: "b"}


def test_a_host_that_is_not_preferred_is_not_taken_while_a_preferred_one_may_come() -> None:
    played = Played(2, "a", hosts_wait_seconds=20.0, preferred=("disk=fast",)).step(5)
    assert played.hosts() == {}
    played.agents["b"] = PlayedAgent("b", labels=("disk=fast",))
    assert played.step(3).hosts() == {0: "b", 1: "a"}


def test_status_names_a_receiver_without_a_host_and_the_next_step() -> None:
    played = Played(3, "a", capacity=2).step(3)
    assert played.hosts() == {0: "a", 1: "a"}
    assert "raise agent.capacity" in played.of(2).fault
    played.agents["b"] = PlayedAgent("b")
    assert played.step(3).hosts()[2] == "b"
    assert not played.of(2).fault


def test_status_names_a_receiver_whose_hosts_capacity_was_lowered() -> None:
    played = Played(3, "a", capacity=3).step(3)
    played.agents["a"].capacity = 2
    played.agents["a"].children.clear()
    played.step(30)
    assert sorted(played.hosts().values()) == ["a", "a"]
    (waits,) = {0, 1, 2} - played.hosts().keys()
    assert [bool(played.of(n).fault) for n in range(3)] == [n == waits for n in range(3)]
    played.agents["b"] = PlayedAgent("b")
    played.step(10)
    assert sorted(played.hosts()) == [0, 1, 2]
    assert not any(played.of(n).fault for n in range(3))


def test_those_beyond_the_count_drain_and_stay_stopped() -> None:
    played = Played(4, "a", "b").step(3)
    played.count = 2
    played.lead()
    played.step(10)
    assert sorted(played.hosts()) == [0, 1]
    assert played.states() == ["active", "active", "stopped", "stopped"]
    played.driver.want(0, played.now)
    played.step(3)
    assert played.hosts() == {} and set(played.states()) == {"stopped"}
    played.driver.want(2, played.now)
    assert sorted(played.step(3).hosts()) == [0, 1]


def test_static_receivers_are_left_alone() -> None:
    played = Played(0, "a").step(3)
    assert played.started == [] and played.states() == []


def test_what_an_agent_says_of_other_ids_is_ignored() -> None:
    played = Played(1, "a").step(2)
    played.agents["a"].children["other-r0"] = Process(99, 1, 1)
    played.agents["a"].children["s-rx"] = Process(98, 1, 1)
    commands = played.driver.take_heartbeat(played.agents["a"].said(), played.now)
    assert commands == ()


# ---- everything at the same time -------------------------------------------------------------------------------------

HOSTS = ["a", "b", "c"]
EVENTS = st.one_of(
    st.tuples(st.just("step"), st.integers(1, 15)),
    st.tuples(st.just("end"), st.integers(0, 4)),
    st.tuples(st.just("hang"), st.integers(0, 4)),
    st.tuples(st.just("crash"), st.sampled_from(HOSTS)),
    st.tuples(st.just("restart"), st.sampled_from(HOSTS)),
    st.tuples(st.just("drained"), st.sampled_from(HOSTS)),
    st.tuples(st.just("lead"), st.none()),
)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.lists(EVENTS, max_size=14))
def test_after_any_failures_each_receiver_runs_exactly_once(count: int, events: list[tuple[str, object]]) -> None:
    """:meth:`Played.step` asserts after each second that none runs twice."""
    played = Played(count, *HOSTS, hosts_wait_seconds=3.0, avoid_seconds=20.0)
    for what, argument in events:
        if what == "step":
            assert isinstance(argument, int)
            played.step(argument)
        elif what in ("end", "hang"):
            for number in {argument} & played.hosts().keys():
                assert isinstance(number, int)
                process = played.process(number)
                process.hangs = what == "hang"
                process.exit_code = None if what == "hang" else 1
        elif what == "crash":
            played.crash(str(argument))
        elif what == "restart":
            played.agents[str(argument)].children.clear()
            played.agents[str(argument)].up = True
        elif what == "drained":
            for process in played.agents[str(argument)].children.values():
                process.exit_code = process.exit_code if process.exit_code is not None else 0
        else:
            played.lead()
    for agent in played.agents.values():
        agent.up = True
    played.step(160)
    assert sorted(played.running()) == [managed_id(STREAM, number) for number in range(count)]
    loads = [len(agent.live()) for agent in played.agents.values()]
    assert max(loads) - min(loads) <= 1, "even within one"
    pids = {n: played.process(n).pid for n in played.hosts()}
    played.step(20)
    assert {n: played.process(n).pid for n in played.hosts()} == pids, "at rest"


@pytest.mark.parametrize(
    ("receiver_id", "number"),
    [("s-r0", 0), ("s-r12", 12), ("s-r012", None), ("s-r-1", None), ("t-r0", None), ("s-r", None), ("s-r0/..", None)],
)
def test_only_ids_of_the_streams_own_receivers_have_a_number(receiver_id: str, number: int | None) -> None:
    assert managed_ordinal("s", receiver_id) == number
