"""Rate limits in records and bytes, for the receiver and for each partition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.messages import PartitionRate, Rates
from forebay.model.units import Size
from forebay.model.values import TopicPartition
from forebay.settings.schema import ReceiverSettings
from receiver.machine.limits.throttle import (
    BURST_SECONDS,
    GATHER_SECONDS,
    POLLS_APART_SECONDS,
    RESUME_SECONDS,
    Throttle,
)

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = (P0, P1)


def throttle(**settings: int) -> Throttle:
    sizes = {name: Size(value) if name.endswith("_bytes") else value for name, value in settings.items()}
    made = Throttle(ReceiverSettings(**sizes))  # type: ignore[arg-type]
    made.begin(0.0)
    return made


def rates(of_all: float, **of_each: float) -> Rates:
    return Rates(
        records_per_second=of_all,
        partitions=tuple(
            PartitionRate(topic="t", partition=int(name[1:]), records_per_second=rate) for name, rate in of_each.items()
        ),
    )


def test_without_a_limit_nothing_is_counted() -> None:
    free = throttle()
    free.took(P0, 10**9, 10**12, 0.0)
    assert not free.limited
    assert free.records_max(BOTH, 0.0) == math.inf
    assert free.seconds_until_poll(0.0) == 0
    assert not free.over(BOTH, 0.0)
    assert not free._of


def test_receiver_takes_one_second_of_its_rate_as_burst_and_then_its_rate() -> None:
    slow = throttle(max_rate=1000)
    assert slow.records_max(BOTH, 0.0) == 1000 * BURST_SECONDS
    slow.took(P0, 1000, 1, 0.0)
    assert slow.seconds_until_poll(0.0) == pytest.approx(GATHER_SECONDS)
    assert slow.seconds_until_poll(GATHER_SECONDS) == 0
    assert slow.records_max(BOTH, GATHER_SECONDS) == pytest.approx(50)
    assert slow.records_max(BOTH, 3600.0) == 1000, "at most one second of the rate, however long nothing was taken"
    assert not slow.over(BOTH, 3600.0), "the partitions have no limit of their own"


def test_bytes_have_their_own_limit() -> None:
    """1 MB/s and records of 2000 bytes: the rest counts in records of that size."""
    slow = throttle(max_rate_bytes=1_000_000)
    slow.took(P0, 250, 500_000, 0.0)
    assert slow.records_max(BOTH, 0.0) == pytest.approx(250)
    slow.took(P0, 1000, 2_000_000, 0.0)
    assert slow.seconds_until_poll(0.0) == pytest.approx(1.5 + GATHER_SECONDS)
    assert slow.records_max(BOTH, 0.0) == 1


def test_a_partition_over_its_rate_waits_while_the_other_goes_on() -> None:
    slow = throttle(max_rate_per_partition=100)
    slow.took(P0, 100, 1, 0.0)
    assert slow.over(BOTH, 0.0) == {P0}
    assert slow.records_max([P1], 0.0) == 100
    assert slow.over(BOTH, RESUME_SECONDS - 0.01) == {P0}, "not for a record or two"
    assert slow.over(BOTH, RESUME_SECONDS) == frozenset()


def test_partition_overdrawn_by_one_poll_waits_until_its_bucket_is_refilled() -> None:
    slow = throttle(max_rate_per_partition_bytes=1000)
    slow.took(P0, 1, 5000, 0.0)  # a record larger than all it may take in a second
    assert slow.over(BOTH, 4.0) == {P0}
    assert slow.over(BOTH, 4.0 + RESUME_SECONDS) == frozenset()


def test_rate_of_the_driver_is_bounded_by_the_settings() -> None:
    slow = throttle(max_rate=1000, max_rate_per_partition=300, min_rate_per_partition=50)
    assert (slow.rate, slow.rate_of(P0)) == (1000, 300)
    slow.learn(rates(500, p0=400, p1=10), 0.0)
    assert (slow.rate, slow.rate_of(P0), slow.rate_of(P1)) == (500, 300, 50)
    slow.learn(rates(5000, p0=200), 0.0)
    assert (slow.rate, slow.rate_of(P0), slow.rate_of(P1)) == (1000, 200, 300)
    slow.learn(None, 0.0)
    assert (slow.rate, slow.rate_of(P0)) == (1000, 300)


def test_initial_rate_holds_until_the_driver_sets_one() -> None:
    slow = throttle(initial_rate=200)
    assert slow.rate == 200
    slow.learn(rates(5000), 0.0)
    assert slow.rate == 5000


def test_rate_of_zero_is_not_taken_for_unlimited() -> None:
    slow = throttle()
    slow.learn(rates(0.0, p0=0.0), 0.0)
    assert (slow.rate, slow.rate_of(P0)) == (1, 1)


def test_another_rate_keeps_the_level_in_seconds() -> None:
    slow = throttle()
    slow.learn(rates(10_000), 0.0)
    slow.took(P0, 15_000, 1, 0.0)  # overdrawn by half a second of the rate
    slow.learn(rates(100), 0.0)
    assert slow.seconds_until_poll(0.0) == pytest.approx(0.5 + GATHER_SECONDS)
    slow.learn(rates(10_000), 0.0)
    assert slow.seconds_until_poll(0.0) == pytest.approx(0.5 + GATHER_SECONDS)


def test_a_poll_that_has_to_wait_for_long_is_made_with_all_partitions_paused() -> None:
    slow = throttle(max_rate_bytes=1000)
    slow.took(P0, 1, 1000, 0.0)
    assert not slow.all_over(0.0)
    slow.took(P0, 1, 2000, 0.0)
    assert slow.all_over(0.0)
    assert slow.all_over(2.0 + GATHER_SECONDS - 0.01), "until there is enough for a poll"
    assert not slow.all_over(2.0 + GATHER_SECONDS + 0.01)


def test_a_partition_that_left_is_forgotten() -> None:
    slow = throttle(max_rate_per_partition=100)
    slow.took(P0, 1000, 1, 0.0)
    slow.forget(P0)
    assert not slow.over(BOTH, 0.0)


@given(
    st.floats(1, 10_000),
    st.floats(1, 10_000),
    st.lists(st.tuples(st.floats(0, 2), st.sampled_from(BOTH), st.integers(0, 3000)), min_size=1, max_size=60),
)
def test_average_rate_is_kept_and_no_poll_waits_for_ever(
    of_all: float, of_each: float, polls: list[tuple[float, TopicPartition, int]]
) -> None:
    """INV-6. Polls what is allowed, of either partition, whenever there is room."""
    slow = throttle()
    slow.learn(rates(of_all, p0=of_each, p1=of_each), 0.0)
    now, taken = 0.0, dict.fromkeys(BOTH, 0)
    most = dict.fromkeys(BOTH, 0)  # of the largest poll, by which a partition may be overdrawn
    for wait, tp, wanted in polls:
        now += wait
        open_now = [p for p in BOTH if p not in slow.over(BOTH, now)]
        if slow.seconds_until_poll(now) or tp not in open_now:
            continue
        count = min(wanted, int(slow.records_max(open_now, now)))
        slow.took(tp, count, count, now)
        taken[tp] += count
        most[tp] = max(most[tp], count)
    assert sum(taken.values()) <= max(1.0, of_all * BURST_SECONDS) + of_all * now + 1
    for tp in BOTH:
        assert taken[tp] <= max(1.0, of_each * BURST_SECONDS) + of_each * now + most[tp]
    debts = [taken[tp] / of_each for tp in BOTH]
    later = now + max(debts) + 2.0
    assert slow.seconds_until_poll(later) == 0
    assert not slow.over(BOTH, later)
    assert slow.records_max(BOTH, later) >= 1
    assert POLLS_APART_SECONDS > GATHER_SECONDS
