"""Housekeeping without a Kafka: what it asks in which order, what it publishes, and which errors it survives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from driver.background.discovery import Known, ReadKnown
from driver.service.activity import Activity
from driver.service.admission import Admission
from driver.service.commits import CommitCheck, CompletedGroup
from driver.service.housekeeping import Housekeeping
from driver.service.options import DriverOptions, Given
from driver.tracker.reads import PartitionOffsets, StreamOffsets
from forebay.kafka.client.admin import Committed
from forebay.kafka.client.group_offsets import Point
from forebay.model.errors import StoreError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock
from forebay.settings.reading.load import from_values

P0 = TopicPartition("t", 0)
SETTINGS = from_values(
    {
        "stream": "s",
        "kafka": {"bootstrap.servers": "unused:1", "topics": ["t"]},
        "wal": {"url": "memory://wal"},
        "driver": {"journal": "memory://journal"},
        "agent": {"blocks": "/unused"},
    }
)


class Kafka:
    """One partition. ``commit``: of the stream's group. ``published``: completed positions, in order."""

    def __init__(self, log: list[str]) -> None:
        self._log = log
        self.commit = Committed(4, -1, "forebay:1:1")
        self.published: list[int] = []

    def partitions(self, *_: object) -> set[TopicPartition]:
        return {P0}

    def committed(self, *_: object) -> dict[TopicPartition, Committed]:
        self._log.append("commits")
        return {P0: self.commit}

    def publish(self, group: str, positions: Mapping[TopicPartition, Point]) -> dict[TopicPartition, str]:
        self.published += [point.offset for point in positions.values()]
        return {}


class Asked:
    """The decision loop of a driver that knows the partition."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def ask(self, request: Any) -> Any:
        if isinstance(request, ReadKnown):
            return Known(frozenset({"t/0"}), frozenset({"t"}), created=True)
        self._log.append("positions")
        return StreamOffsets(1, {P0: PartitionOffsets(1, 8, 4)})


class Rounds:
    """A stop that is requested after some rounds, and each round passes its time."""

    def __init__(self, rounds: int, clock: ManualClock) -> None:
        self._left = rounds
        self._clock = clock

    def wait(self, timeout: float) -> bool:
        self._left -= 1
        self._clock.advance(timeout)
        return not self._left


def raised(error: BaseException) -> None:
    raise error


def housekeeping(
    log: list[str],
    kafka: Kafka,
    require: Callable[[], None],
    rounds: int = 1,
) -> tuple[Housekeeping, Admission, Activity]:
    admission, activity, asked, clock = Admission(lambda: False), Activity(), Asked(log), ManualClock(0)
    activity.stopping = cast(Any, Rounds(rounds, clock))
    given = Given(
        settings=SETTINGS,
        upstream=cast(Any, kafka),
        engine=cast(Any, None),
        jobs=(),
        clock=clock,
        options=DriverOptions(release="test"),
        listeners=cast(Any, None),
    )
    parts = SimpleNamespace(
        loop=asked,
        tracker=SimpleNamespace(subscription=None),
        copies=SimpleNamespace(require=require),
        commits=CommitCheck(settings=SETTINGS, upstream=cast(Any, kafka), ask=asked.ask, admission=admission),
    )
    made = Housekeeping(
        given,
        cast(Any, parts),
        activity=activity,
        admission=admission,
        is_draining=lambda: False,
        caught_up=lambda: None,
        failed=raised,
    )
    return made, admission, activity


def test_commits_are_read_before_the_positions_that_they_are_compared_with() -> None:
    """INV-1: a receiver commits what is accepted. Commits that are read later would seem to prove a lost journal."""
    log: list[str] = []
    kafka, asked = Kafka(log), Asked(log)
    admission = Admission(lambda: False)
    CommitCheck(settings=SETTINGS, upstream=cast(Any, kafka), ask=asked.ask, admission=admission).check()
    assert log[-2:] == ["commits", "positions"]
    assert admission.commits_checked


def test_claims_are_admitted_only_after_a_snapshot_copy() -> None:
    log: list[str] = []
    made: list[Admission] = []

    def require() -> None:
        assert not made[0].copied
        log.append("copy")

    run, admission, _ = housekeeping(log, Kafka(log), require)
    made.append(admission)
    run._run()
    assert "copy" in log
    assert admission.copied


def test_completed_positions_are_published_and_not_accepted_ones() -> None:
    """INV-3: another program reads up to them."""
    log: list[str] = []
    kafka = Kafka(log)
    CompletedGroup(settings=SETTINGS, upstream=cast(Any, kafka), ask=Asked(log).ask).publish()
    assert kafka.published == [4]


@pytest.mark.parametrize(
    ("error", "detail"),
    [(StoreError("no answer"), "WAL: no answer"), (UnreachableError("no broker"), "Kafka: no broker")],
    ids=["wal", "kafka"],
)
def test_outage_is_shown_and_ends_neither_housekeeping_nor_the_driver(error: Exception, detail: str) -> None:
    log: list[str] = []
    details: list[str] = []
    made: list[Activity] = []

    def require() -> None:
        if made[0].detail == detail:
            return
        details.append(detail)
        raise error

    run, admission, activity = housekeeping(log, Kafka(log), require, rounds=3)
    made.append(activity)
    run._run()
    assert details == [detail]
    assert admission.copied
    assert activity.detail == ""
