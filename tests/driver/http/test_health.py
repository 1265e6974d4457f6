"""What ``forebay status`` calls a problem, and what it does not call one yet."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from driver.background.reach import (
    Outage,
)
from driver.decision_loop.loop import RESERVE_REACHED
from driver.decisions.problems import in_answer
from driver.decisions.receiver_lifecycle import ManagedReceivers
from driver.http.health import NAMES_SHOWN, WAITING_SECONDS, Grace, Health, HealthLog, HealthVerdict, journal_is_away
from driver.journal import events as ev
from driver.journal.transitions import apply
from driver.tracker.requests import FoundPartitions
from forebay import messages as m
from forebay.model.errors import RefusedError
from tests.support.state.tracked import TOPIC, Tracked

TIMEOUT = 30.0


def health_of(t: Tracked, outages: tuple[Outage, ...] = (), managed: bool = False, start: float = TIMEOUT) -> Health:
    return Health(t.tracker, Grace(TIMEOUT, start), managed=managed, since=t.now_ms / 1000, outages=lambda: outages)


def wait(t: Tracked, seconds: float) -> float:
    t.now_ms += round(seconds * 1000)
    return t.now_ms / 1000


def beat(t: Tracked, epoch: int, state: str = "active", detail: str = "", receiver: str = "r1") -> None:
    t.say(
        m.HeartbeatRequest(
            receiver_id=receiver, epoch=epoch, state=state, detail=detail, acknowledged=0, buffered_bytes=0, records=0
        )
    )


def agent(t: Tracked, state: str = "active", host: str = "h1", **fields: Any) -> None:
    t.say(
        m.AgentHeartbeatRequest(
            host=host, url=f"http://{host}:1", instance_id="i", acknowledged=0, blocks=0, used_bytes=0, free_bytes=0,
            state=state, **fields,
        )
    )  # fmt: skip


def kinds(verdict: HealthVerdict) -> tuple[list[str], list[str]]:
    return [p.kind for p in verdict.problems], [p.kind for p in verdict.pending]


def running(t: Tracked) -> tuple[Health, int]:
    """Both partitions have a receiver that sends heartbeats."""
    epoch = t.register()
    for partition in range(2):
        t.claim(epoch, partition)
    beat(t, epoch)
    return health_of(t), epoch


def test_stream_whose_partitions_have_a_live_receiver_has_no_problem() -> None:
    t = Tracked()
    health, epoch = running(t)
    for _ in range(100):
        beat(t, epoch)
        assert kinds(health.look(wait(t, 1))) == ([], [])


def test_partitions_without_a_receiver_are_pending_for_the_grace_of_a_start_and_then_a_problem() -> None:
    t = Tracked()
    health = health_of(t)
    assert kinds(health.look(wait(t, 29))) == ([], ["partitions-without-receiver"])
    verdict = health.look(wait(t, 2))
    assert kinds(verdict) == (["partitions-without-receiver"], [])
    assert verdict.problems[0].cause == f"no live receiver: 2 of 2 partitions ({TOPIC}/0, {TOPIC}/1)"
    assert "forebay receiver --id ID" in verdict.problems[0].command


def test_partitions_of_a_topic_that_is_no_longer_followed_need_no_receiver() -> None:
    t = Tracked()
    health = health_of(t)
    t.tracker.subscription = ("another",)
    assert kinds(health.look(wait(t, 1000))) == ([], [])
    t.tracker.subscription = (TOPIC,)
    assert kinds(health.look(wait(t, 1))) == (["partitions-without-receiver"], [])
    named = Health(t.tracker, Grace(10.0, 30.0), managed=False, since=0.0, topics={"another"})
    assert kinds(named.look(wait(t, 1))) == ([], [])


def test_partition_that_is_found_later_has_the_grace_of_a_start_from_then_on() -> None:
    t = Tracked(1)
    epoch = t.register()
    t.claim(epoch, 0)
    health = health_of(t)
    now = wait(t, 1000)
    beat(t, epoch)
    assert kinds(health.look(now)) == ([], [])
    t.say(FoundPartitions((ev.IncarnationStart(TOPIC, 1, 0, "id-1"),), t.now_ms, "earliest"))
    assert kinds(health.look(wait(t, 1))) == ([], ["partitions-without-receiver"])


def test_partitions_whose_grace_is_over_are_named_apart_from_those_that_just_lost_their_receiver() -> None:
    t = Tracked()
    epoch = t.register()
    t.claim(epoch, 1)
    health = health_of(t)
    beat(t, epoch)
    health.look(wait(t, 29))
    beat(t, epoch)
    health.look(wait(t, 2))
    token = t.state.partitions[f"{TOPIC}/1"].token
    t.say(m.ReleaseRequest(receiver_id="r1", epoch=epoch, releases=(m.Release(topic=TOPIC, partition=1, token=token),)))
    verdict = health.look(wait(t, 1))
    assert [p.cause for p in verdict.problems] == [f"no live receiver: 1 of 2 partitions ({TOPIC}/0)"]
    assert [p.cause.partition(";")[0] for p in verdict.pending] == [f"no live receiver: 1 of 2 partitions ({TOPIC}/1)"]


def test_partition_with_a_fault_is_not_named_as_one_without_a_receiver() -> None:
    t = Tracked()
    health, epoch = running(t)
    token = t.state.partitions[f"{TOPIC}/0"].token
    t.say(
        m.Fault(
            receiver_id="r1", epoch=epoch, topic=TOPIC, partition=0, token=token, kind="out-of-range", position=0, low=5,
            high=9,
        )
    )  # fmt: skip
    problems = health.look(wait(t, 31)).problems
    assert problems[0].cause == f"no live receiver: 1 of 2 partitions ({TOPIC}/1)"


def test_many_partitions_without_a_receiver_are_counted_and_a_few_are_named() -> None:
    t = Tracked(NAMES_SHOWN + 2)
    (problem,) = health_of(t).look(wait(t, 31)).problems
    assert problem.cause.endswith(f"{TOPIC}/{NAMES_SHOWN - 1} and 2 more)")


def test_receivers_that_agents_run_have_the_time_that_their_start_takes() -> None:
    t = Tracked()
    health = health_of(t, managed=True, start=90.0)
    assert kinds(health.look(wait(t, 89))) == ([], ["partitions-without-receiver"])
    (problem,) = health.look(wait(t, 2)).problems
    assert problem.command.startswith("start `forebay agent`")


def test_rebalance_that_ends_within_the_grace_is_no_problem() -> None:
    t = Tracked()
    health, epoch = running(t)
    health.look(wait(t, 1000))
    beat(t, epoch)
    health.look(wait(t, 1))
    token = t.state.partitions[f"{TOPIC}/0"].token
    t.say(m.ReleaseRequest(receiver_id="r1", epoch=epoch, releases=(m.Release(topic=TOPIC, partition=0, token=token),)))
    beat(t, epoch)
    assert kinds(health.look(wait(t, 20))) == ([], ["partitions-without-receiver"])
    beat(t, epoch)
    t.claim(epoch, 0)
    assert kinds(health.look(wait(t, 1))) == ([], [])


def test_receiver_that_falls_silent_is_a_problem_with_its_partitions_and_one_that_drained_is_none_by_itself() -> None:
    t = Tracked()
    health, epoch = running(t)
    verdict = health.look(wait(t, 31))
    assert kinds(verdict) == (["partitions-without-receiver", "receiver-gone"], [])
    assert "receiver r1 on host h1 has sent no heartbeat for 31 s" in verdict.problems[1].cause
    beat(t, epoch, "draining")
    assert kinds(health.look(wait(t, 31)))[0] == ["partitions-without-receiver"]
    assert kinds(health.look(wait(t, 1), state="stopping")) == ([], [])


def test_receiver_that_the_journal_knows_is_waited_for_only_while_it_holds_claims() -> None:
    t = Tracked()
    running(t)
    t.register("r2", "i2", "h2")
    t.tracker.receivers.latest.clear()
    health = health_of(t)
    problems = health.look(wait(t, 31)).problems
    assert [p.cause for p in problems if p.kind == "receiver-gone"] == [
        "receiver r1 on host h1 has sent no heartbeat for 31 s"
    ]


def test_receiver_that_was_fenced_or_belongs_to_the_driver_is_not_waited_for() -> None:
    t = Tracked()
    health, _ = running(t)
    apply(t.state, ev.ReceiverFenced("r1", t.state.next_epoch()))
    own = t.register("forebay-adoption", "i2")
    t.claim(own, 1, "forebay-adoption")
    assert kinds(health.look(wait(t, 31)))[0] == ["partitions-without-receiver"]


def test_agent_that_falls_silent_is_a_problem_unless_it_drained_or_is_forgotten() -> None:
    t = Tracked()
    health, epoch = running(t)
    agent(t)
    agent(t, "draining", "h2")
    now = wait(t, 31)
    beat(t, epoch)
    verdict = health.look(now)
    assert kinds(verdict) == (["agent-gone"], [])
    assert "the agent of host h1" in verdict.problems[0].cause
    assert verdict.problems[0].command.endswith("`forebay forget h1`")
    health.forget("h1", now)
    assert kinds(health.look(now)) == ([], [])
    wait(t, 1)
    agent(t)
    now = wait(t, 31)
    beat(t, epoch)
    assert kinds(health.look(now))[0] == ["agent-gone"]


def test_blocks_that_an_agent_cannot_delete_are_a_problem_until_they_are_deleted() -> None:
    t = Tracked()
    health, epoch = running(t)
    agent(t, undeleted_blocks=2, undeleted_cause="cannot delete /b/s/r1-1-1.block: Input/output error")
    assert kinds(health.look(wait(t, 0))) == ([], ["blocks-not-deleted"])
    (problem,) = health.look(wait(t, 5)).problems
    assert problem.kind == "blocks-not-deleted"
    assert "host h1 cannot delete 2 blocks" in problem.cause and "/b/s/r1-1-1.block: Input/output" in problem.cause
    agent(t)
    assert kinds(health.look(wait(t, 1))) == ([], [])
    agent(t, undeleted_blocks=2)
    assert kinds(health.look(wait(t, 0))) == ([], ["blocks-not-deleted"]), "its time begins again"
    beat(t, epoch)


def test_only_what_is_known_and_silent_is_forgotten() -> None:
    t = Tracked()
    health, _ = running(t)
    with pytest.raises(RefusedError, match="r1 sent a heartbeat 1 s ago: stop it first"):
        health.forget("r1", wait(t, 1))
    with pytest.raises(RefusedError, match="no receiver and no agent's host is named 'x'"):
        health.forget("x", wait(t, 1))
    health.forget("r1", wait(t, 31))
    assert kinds(health.look(wait(t, 1)))[0] == ["partitions-without-receiver"]


def test_receiver_that_a_new_driver_has_not_met_is_forgotten_once_its_time_is_over() -> None:
    t = Tracked()
    running(t)
    t.tracker.receivers.latest.clear()
    wait(t, 1000)
    health = health_of(t)
    with pytest.raises(
        RefusedError, match="r1 may still send a heartbeat: the driver has led for 1 s; try again after 30 s"
    ):
        health.forget("r1", wait(t, 1))
    health.forget("r1", wait(t, 31))
    assert kinds(health.look(wait(t, 1)))[0] == ["partitions-without-receiver"]


def test_receiver_that_waits_for_its_store_is_a_problem_with_its_message() -> None:
    t = Tracked()
    health, epoch = running(t)
    beat(t, epoch, "waiting", "the WAL does not take blocks, polling is paused: no such folder")
    assert kinds(health.look(wait(t, 1))) == ([], ["receiver-waiting"])
    (problem,) = health.look(wait(t, 6)).problems
    assert problem.cause.endswith(
        "takes in no records: the WAL does not take blocks, polling is paused: no such folder"
    )
    beat(t, epoch)
    assert kinds(health.look(wait(t, 1))) == ([], [])
    beat(t, epoch, "waiting", "again")  # its time begins anew
    assert kinds(health.look(wait(t, 1))) == ([], ["receiver-waiting"])


def test_waiting_receiver_without_heartbeats_is_missing_and_not_waiting() -> None:
    t = Tracked()
    health, epoch = running(t)
    beat(t, epoch, "waiting", "no such folder")
    health.look(wait(t, 1))
    assert kinds(health.look(wait(t, 31)))[0] == ["partitions-without-receiver", "receiver-gone"]


class Managed:
    """What the driver says of the receivers that agents run, in place of the tracker's own."""

    def __init__(self, t: Tracked) -> None:
        (self.receiver,) = ManagedReceivers("s", driver_epoch=1, count=1, known={}).status(0.0)
        t.tracker.agents.managed = self  # type: ignore[assignment]

    def say(self, **changes: Any) -> None:
        self.receiver = msgspec.structs.replace(self.receiver, **changes)

    def status(self, _: float) -> list[m.ManagedReceiver]:
        return [self.receiver]


def test_managed_receiver_that_does_not_run_is_pending_for_the_grace_of_a_start_after_it_ran_last() -> None:
    t = Tracked()
    health, epoch = running(t)
    managed = Managed(t)

    def seen(seconds: float) -> tuple[list[str], list[str]]:
        now = wait(t, seconds)
        beat(t, epoch)
        return kinds(health.look(now))

    managed.say(state="failed", restarts=1)
    assert seen(1) == ([], ["receiver-not-running"])
    assert seen(31) == (["receiver-not-running"], [])
    managed.say(state="active")
    assert seen(1) == ([], [])
    managed.say(state="scheduled")
    assert seen(1) == ([], ["receiver-not-running"])
    managed.say(fault="a person must do something")  # status has it already
    assert seen(31) == ([], [])


def test_managed_receiver_that_is_silent_is_named_by_its_agent_alone() -> None:
    t = Tracked()
    health, _ = running(t)
    managed = Managed(t)
    managed.say(state="active")
    beat(t, t.register(managed.receiver.receiver_id, "i2"), receiver=managed.receiver.receiver_id)
    problems = health.look(wait(t, 31)).problems
    assert [p.cause for p in problems if p.kind == "receiver-gone"] == [
        "receiver r1 on host h1 has sent no heartbeat for 31 s"
    ]


def test_managed_receiver_that_takes_in_no_records_is_a_problem_with_its_message() -> None:
    """Its process runs, so its agent has nothing to say."""
    t = Tracked()
    health, _ = running(t)
    managed = Managed(t)
    managed.say(state="active")
    name = managed.receiver.receiver_id
    epoch = t.register(name, "i2")
    beat(t, epoch, "waiting", "no space in the WAL: 0 bytes are free", receiver=name)
    health.look(wait(t, 1))
    (problem,) = health.look(wait(t, 6)).problems
    assert problem.cause == f"receiver {name} on host h1 takes in no records: no space in the WAL: 0 bytes are free"


def test_managed_receiver_that_ends_repeatedly_is_a_problem_immediately_and_one_that_starts_is_not() -> None:
    t = Tracked()
    health, _ = running(t)
    (receiver,) = ManagedReceivers("s", driver_epoch=1, count=1, known={}).status(0.0)
    said = [receiver]

    class Managed:
        def status(self, _: float) -> list[m.ManagedReceiver]:
            return said

    t.tracker.agents.managed = Managed()  # type: ignore[assignment]
    assert kinds(health.look(wait(t, 1))) == ([], ["receiver-not-running"])
    said[:] = [msgspec.structs.replace(receiver, state="failed", restarts=2, detail="exit code 2: no such key")]
    (problem,) = health.look(wait(t, 1)).problems
    assert "does not run (restarts 2): exit code 2: no such key" in problem.cause
    said[:] = [msgspec.structs.replace(receiver, state="active", restarts=2)]
    assert kinds(health.look(wait(t, 1))) == ([], [])


def test_outage_of_kafka_and_of_each_store_is_a_problem_with_cause_and_command() -> None:
    t = Tracked()
    running(t)
    outages = tuple(Outage(name, f"why {name}", 7.0) for name in ("kafka", "wal", "journal"))
    verdict = health_of(t, outages).look(wait(t, 1))
    assert [p.kind for p in verdict.problems] == ["kafka", "wal", "journal"]
    for problem in verdict.problems:
        assert f"out of reach: why {problem.kind}" in problem.cause
        assert problem.command
    # the driver's own problem about the same is not shown a second time
    health = health_of(t, outages)
    for _ in range(2):
        verdict = health.look(wait(t, 6), "waiting", "Kafka: refused")
        assert kinds(verdict) == (["kafka", "wal", "journal"], [])


def test_journal_without_room_is_a_problem_whether_the_driver_can_answer_or_not() -> None:
    t = Tracked()
    health, _ = running(t)
    (problem,) = health.look(wait(t, 1), detail=RESERVE_REACHED).problems
    assert (problem.kind, problem.cause) == ("journal", RESERVE_REACHED)
    for outage, message in (("", "waits for space"), ("no answer for 9 s", "out of reach: no answer for 9 s")):
        answer = journal_is_away("s", "test", 1 << 40 | 3, outage)
        assert (answer.timeline, answer.state) == (1, "waiting")
        assert message in answer.problems[0].cause
        assert answer.problems[0].command


def test_driver_that_waits_for_kafka_is_a_problem_after_a_moment() -> None:
    t = Tracked()
    health, _ = running(t)
    message = "Kafka: topic t does not exist yet; create it, and the driver finds it"
    assert kinds(health.look(wait(t, 1), "waiting", message)) == ([], ["kafka"])
    (problem,) = health.look(wait(t, 6), "waiting", message).problems
    assert "topic t does not exist yet; create it" in problem.cause
    assert kinds(health.look(wait(t, 1))) == ([], [])
    for _ in range(2):
        assert kinds(health.look(wait(t, 6), "stopping", message)) == ([], [])


def test_log_has_each_kind_once_and_what_a_start_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    t = Tracked()
    health, log = health_of(t), HealthLog("s")
    for _ in range(40):
        log.note(health.look(wait(t, 1)), t.now_ms / 1000)
    epoch = t.register()
    for partition in range(2):
        t.claim(epoch, partition)
    beat(t, epoch)
    log.note(health.look(wait(t, 1)), t.now_ms / 1000)
    lines = [record.getMessage() for record in caplog.records if record.name == "driver.http.health"]
    assert len(lines) == 3
    assert lines[0].startswith("stream s waits: no live receiver: 2 of 2 partitions")
    assert "Next step: start `forebay receiver --id ID`" in lines[0]
    assert lines[1].startswith("stream s, problem partitions-without-receiver: ")
    assert lines[2] == "stream s, problem partitions-without-receiver is over"


def test_log_repeats_a_problem_that_lasts_after_growing_delays(caplog: pytest.LogCaptureFixture) -> None:
    log = HealthLog("s")
    verdict = HealthVerdict(problems=(m.Problem(kind="kafka", cause="Kafka is out of reach: refused"),))
    logged = []
    for second in range(1000):
        caplog.clear()
        log.note(verdict, float(second))
        logged += [second] * len(caplog.records)
    assert logged == [0, 60, 180, 420, 900]
    log.note(HealthVerdict(), 1000.0)
    caplog.clear()
    log.note(verdict, 1001.0)
    assert len(caplog.records) == 1, "it began again"


def test_log_names_what_is_pending_after_a_moment_and_when_it_recurs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    t = Tracked()
    health, epoch = running(t)
    log = HealthLog("s")
    for _ in range(2):
        beat(t, epoch, "waiting", "no room")
        log.note(health.look(wait(t, 1)), t.now_ms / 1000)
        assert not caplog.records
        for seconds in (1, 1):
            pending = health.look(wait(t, seconds)).pending
            late = tuple(msgspec.structs.replace(p, seconds=WAITING_SECONDS) for p in pending)
            log.note(HealthVerdict(pending=late), t.now_ms / 1000)
        (line,) = caplog.records
        assert line.getMessage().startswith("stream s waits: receiver r1 on host h1 takes in no records: no room")
        assert getattr(line, "fields", None) == {"problem": "receiver-waiting", "seconds": WAITING_SECONDS}
        caplog.clear()
        beat(t, epoch)
        log.note(health.look(wait(t, 1)), t.now_ms / 1000)


@pytest.mark.parametrize("state", ["failing", "failed", "running"])
def test_batch_whose_job_fails_is_a_problem_in_every_attempt(state: str) -> None:
    batch = m.BatchEntry(
        batch_id=7, number=7, time_ms=0, state=state, blocks=1, records=5, attempts=4, detail="KeyError: 'carrier'"
    )
    answer = m.StatusAnswer(
        stream="s", release="", timeline=1, driver_epoch=1, state="failed", detail="batch 7", topic_ids_known=True,
        waiting_blocks=0, waiting_records=0, batches_completed=0, records_completed=0, batches=(batch,),
    )  # fmt: skip
    (problem,) = in_answer(answer)
    assert (problem.kind, problem.cause) == ("job", "the job fails, batch 7: KeyError: 'carrier'")
    assert "forebay batch retry" in problem.command
