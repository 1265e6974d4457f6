"""A receiver with rate limits: a partition over its rate pauses alone, and everything else works as if it did not."""

from __future__ import annotations

from typing import Any

import pytest

from forebay import messages
from forebay.model.columns import Start
from forebay.model.identifiers import numbered
from forebay.model.units import Duration, Size
from forebay.model.values import TopicPartition
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.limits.throttle import GATHER_SECONDS, RESUME_SECONDS
from tests.receiver.stage import P0, P1, Stage, offsets_of, view

DRIVER = numbered(1, 1)


def beat(stage: Stage, *commands: messages.Command, driver_epoch: int = DRIVER) -> messages.HeartbeatRequest:
    """Answer the next heartbeat with ``commands``."""
    stage.wait(5.0)
    message = stage.all(act.Heartbeat)[-1]
    stage.tell(inp.HeartbeatAnswered(message.request, driver_epoch, commands))
    return message.message


def rate(version: int, of_all: float, *of_each: float, driver_epoch: int = DRIVER) -> messages.Command:
    parts = tuple(
        messages.PartitionRate(topic="t", partition=n, records_per_second=each) for n, each in enumerate(of_each)
    )
    new_rates = messages.Rates(records_per_second=of_all, partitions=parts)
    return messages.Command(version=version, driver_epoch=driver_epoch, kind="rate", rates=new_rates)


def slow_stage(*partitions: TopicPartition, **changes: Any) -> tuple[Stage, dict[TopicPartition, Start]]:
    """Limit each partition to ten records/s, and take the first ten of P0."""
    stage = Stage(max_rate_per_partition=10, **changes)
    starts = stage.own(*(partitions or (P0, P1)))
    stage.poll(starts[P0], range(10))
    return stage, starts


def forget_pauses(stage: Stage) -> None:
    stage.actions = [action for action in stage.actions if not isinstance(action, act.Pause | act.Resume)]


# ---- a partition over its rate ---------------------------------------------------------------------------------------


def test_a_partition_over_its_rate_pauses_alone_and_goes_on_when_there_is_room() -> None:
    stage, starts = slow_stage()
    assert stage.one(act.Pause).partitions == (P0,)
    stage.poll(starts[P1], range(5))
    stage.none(act.Pause)
    assert stage.machine.state == "active"
    stage.wait(RESUME_SECONDS - 0.05)
    stage.none(act.Resume)
    stage.wait(0.05)
    assert stage.one(act.Resume).partitions == (P0,)
    assert stage.machine.counters["pauses_for_rate"] == 1


def test_records_polled_of_a_paused_partition_are_taken_in() -> None:
    """INV-2: they were fetched before the pause. Dropping them would leave a gap."""
    stage, starts = slow_stage()
    stage.poll(starts[P0], range(10, 15))
    stage.wait(1.0)
    (pending,) = stage.sealed()
    assert offsets_of(pending, P0) == list(range(15))


def test_without_a_limit_no_poll_pauses_anything() -> None:
    stage = Stage(memory=Size(100_000_000))
    start = stage.own(P0)[P0]
    for first in range(0, 100_000, 10_000):
        stage.poll(start, range(first, first + 10_000), 1)
    stage.none(act.Pause)
    assert not stage.machine._parts.flow.throttle._of


def test_partition_over_its_rate_is_revoked_as_soon_as_its_records_are_reported() -> None:
    """Rule 6 holds whatever the rate."""
    stage, _ = slow_stage()
    forget_pauses(stage)
    stage.tell(inp.Revoked((P0,)))
    stage.store(*stage.sealed())
    stage.none(act.RevocationDone)
    stage.answer()
    assert stage.one(act.RevocationDone).partitions == (P0,)
    assert [release.partition for action in stage.all(act.Release) for release in action.message.releases] == [0]
    stage.wait(5.0)
    stage.none(act.Resume)


def test_partition_assigned_again_starts_with_full_buckets() -> None:
    stage, _ = slow_stage(P0)
    stage.tell(inp.Lost((P0,)))
    stage.tell(inp.Assigned((P0,)))
    forget_pauses(stage)
    starts = stage.claim({P0: view(P0)})
    stage.none(act.Pause)
    stage.poll(starts[0], range(5))
    stage.none(act.Pause)


def test_a_drain_ignores_rates() -> None:
    """The open block is sealed, stored and reported, although every partition is over its rate."""
    stage, starts = slow_stage(P0, initial_rate=1)
    stage.poll(starts[P0], range(10, 1000))
    forget_pauses(stage)
    stage.tell(inp.DrainRequested())
    assert stage.machine.poll_records_max(stage.now) > 0, (
        "polls of a drain do not wait, since rebalances arrive by them"
    )
    stage.store(*stage.sealed())
    while any(isinstance(action, act.Report) for action in stage.actions):
        stage.answer()
    stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
    stage.tell(inp.Released(stage.one(act.Release).request))
    assert stage.one(act.Exit).code == 0
    stage.none(act.Resume)


def test_partition_over_its_rate_is_reclaimed_on_command_and_pauses_again() -> None:
    """The new start resumes it in Kafka's client, but its buckets stay overdrawn."""
    stage, starts = slow_stage(P0)
    stage.poll(starts[P0], range(10, 100))
    forget_pauses(stage)
    order = messages.Command(version=1, driver_epoch=DRIVER, kind="reclaim", partitions=(P0,))
    beat(stage, order)
    stage.store(*stage.sealed())
    stage.answer()
    forget_pauses(stage)
    look = stage.one(act.Lookup)
    stage.tell(inp.LookupAnswered(look.request, (view(P0, 100),)))
    stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
    claim = stage.one(act.Claim)
    granted = messages.ClaimGrant(granted=True, view=view(P0, 100, token=9))
    stage.tell(inp.Claimed(claim.request, (granted,)))
    kinds = [type(action) for action in stage.actions if isinstance(action, act.StartPartitions | act.Pause)]
    assert kinds == [act.StartPartitions, act.Pause]


def test_records_cut_again_are_not_counted_twice() -> None:
    """Rule 4: they were polled once."""
    stage, _ = slow_stage(P0)
    forget_pauses(stage)
    stage.wait(1.0)
    (pending,) = stage.sealed()
    stage.store(pending).answer(refused={1: [P0]})
    forget_pauses(stage)
    stage.wait(0.5)
    starts = stage.claim({P0: view(P0, 0, token=99)})
    assert starts[0].offset == 10
    stage.none(act.Pause)


def test_full_memory_pauses_and_resumes_around_those_that_are_over_their_rate() -> None:
    stage, starts = slow_stage(memory=Size(2000))
    forget_pauses(stage)
    stage.poll(starts[P0], range(10, 50))
    stage.wait(1.0)
    stage.wait(1.0)
    assert stage.all(act.Pause)[-1].partitions == (P0, P1)
    stage.none(act.Resume)
    stage.store(*stage.sealed())
    while any(isinstance(action, act.Report) for action in stage.actions):
        stage.answer()
    assert stage.one(act.Resume).partitions == (P1,)
    stage.wait(3.0)
    assert stage.one(act.Resume).partitions == (P0,)


# ---- a receiver over its rate ----------------------------------------------------------------------------------------


def test_poll_waits_until_it_may_return_many_records() -> None:
    """Without the wait each poll would return a record or two."""
    stage = Stage(max_rate=1000, memory=Size(1_000_000))
    start = stage.own(P0)[P0]
    assert stage.machine.poll_records_max(stage.now) == 1000
    stage.poll(start, range(1000), 1)
    assert stage.machine.poll_records_max(stage.now) == 0
    assert stage.machine.seconds_until_poll(stage.now) == pytest.approx(GATHER_SECONDS)
    stage.wait(0.0625)
    assert stage.machine.poll_records_max(stage.now) == 62
    stage.none(act.Pause)


def test_receiver_that_has_to_wait_long_pauses_so_that_polling_goes_on() -> None:
    """So the group keeps the receiver, and a rebalance is noticed immediately."""
    stage = Stage(max_rate_bytes=Size(100))
    starts = stage.own(P0, P1)
    stage.poll(starts[P0], range(5), 100)
    assert stage.one(act.Pause).partitions == (P0, P1)
    assert stage.machine.poll_records_max(stage.now) > 0
    stage.wait(4.0)
    stage.none(act.Resume)
    stage.wait(0.1)
    assert set(stage.one(act.Resume).partitions) == {P0, P1}


# ---- rates of the driver ---------------------------------------------------------------------------------------------


def test_rates_in_a_heartbeats_answer_are_in_the_next_heartbeat() -> None:
    stage = Stage()
    stage.own(P0, P1)
    assert beat(stage, rate(3, 100.0, 60.0, 40.0)).rate == 0
    sent = beat(stage)
    assert (sent.acknowledged, sent.rate) == (3, 100)
    assert {p.partition: p.rate for p in sent.partitions} == {0: 60, 1: 40}


def test_rates_that_are_repeated_or_from_an_older_driver_change_nothing() -> None:
    """INV-4."""
    newer = numbered(1, 2)
    stage = Stage()
    stage.own(P0)
    beat(stage, rate(1, 100.0, 60.0, driver_epoch=newer), driver_epoch=newer)
    beat(stage, rate(1, 100.0, 60.0, driver_epoch=newer), rate(9, 5.0, 5.0), driver_epoch=newer)
    assert beat(stage, driver_epoch=newer).rate == 100
    assert stage.machine.counters["commands_refused"] == 1


def test_new_driver_without_rates_removes_those_of_the_older_one() -> None:
    """Backpressure was disabled, or the journal was rebuilt. An old rate must not hold for ever."""
    stage = Stage(max_rate=1000)
    stage.own(P0)
    beat(stage, rate(1, 100.0, 60.0))
    assert beat(stage, driver_epoch=numbered(1, 2)).rate == 100
    assert beat(stage, driver_epoch=numbered(1, 2)).rate == 1000


def test_new_driver_with_rates_sends_them_with_its_first_answer() -> None:
    newer = numbered(1, 2)
    stage = Stage()
    stage.own(P0)
    beat(stage, rate(7, 100.0, 60.0))
    beat(stage, rate(1, 90.0, 50.0, driver_epoch=newer), driver_epoch=newer)
    assert beat(stage, driver_epoch=newer).rate == 90


def test_command_beside_rates_is_performed_too() -> None:
    stage = Stage(drain_timeout=Duration(20.0))
    stage.own(P0)
    beat(stage, rate(1, 100.0, 60.0), messages.Command(version=2, driver_epoch=DRIVER, kind="drain"))
    assert stage.machine.state == "draining"
