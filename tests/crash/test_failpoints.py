"""The real processes are killed at each failpoint while records flow: every offset is in exactly one completed batch.

A test goes over ``forebay.process.failpoints.NAMES``; another over each kind of journal event. Each asserts that its
failpoint was hit.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from driver.journal import events
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.process import failpoints
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka

#: a killed receiver's place in the group is free after this time
SESSION = {"session.timeout.ms": "1500"}
#: records that must flow after the failpoint was hit
RECORDS_AFTER = 200

#: failpoint → the arrival at which it kills: late enough that records flow. The other ones need a scene of their own.
ARRIVALS = {
    "receiver.after-poll": 3,
    "receiver.after-local-write": 3,
    "wal.mid-write": 3,
    "wal.before-sync": 3,
    "wal.after-sync": 3,
    "receiver.before-report": 3,
    "receiver.after-report": 3,
    "receiver.before-commit": 3,
    "driver.answer": 8,
    "journal.before-write": 8,
    "journal.before-sync": 8,
    "journal.after-sync": 8,
    "driver.after-allocate": 2,
    "driver.in-job": 2,
    "driver.before-complete": 2,
    "driver.after-complete": 2,
    "cleanup.after-intent": 1,
    "cleanup.after-delete": 1,
    "cleanup.after-done": 1,
    "copy.after-write": 2,
    "copy.after-event": 2,
    "history.after-append": 1,
    "agent.before-delete": 1,
}
OPENING = ("journal.opening", "journal.after-snapshot")
REBALANCE = ("receiver.revoke",)
#: tests/integration/test_rebuild.py
REBUILD = tuple(f"rebuild.after-{step}" for step in ("marker", "claim", "blocks", "history", "snapshot"))
#: tests/integration/test_adoption.py; the first one: test_recovery_on_s3.py
ADOPTION = tuple(f"adoption.before-{step}" for step in ("bar", "search", "claim", "write", "report", "release"))
#: passed by ``forebay recover --apply``: tests/recovery/test_killed.py
RECOVERY = ("recovery.after-write", "recovery.after-journal", "recovery.after-aside", "recovery.after-delete")
#: tests/executor_agent/test_incoming_copies.py
GIVEN = ("agent.before-copy-kept",)

#: passed by output helpers: tests/driver/outputs/test_killed.py
OUTPUTS = tuple(f"output.{step}" for step in ("before-write", "mid-write", "before-commit", "aside", "after-commit"))
#: tests/crash/test_keyed_state.py
STATES = tuple(
    f"state.{step}"
    for step in ("before-write", "mid-write", "before-manifest", "after-manifest", "before-clean", "mid-clean")
)
#: tests/pyspark_forebay/sink/test_transactions.py
SINK = tuple(f"sink.{step}" for step in ("task-end", "before-rows", "mid-rows", "before-commit", "after-commit"))


def process_of(failpoint: str) -> str:
    part = failpoint.partition(".")[0]
    return {"receiver": "r1", "wal": "r1", "agent": "agent"}.get(part, "driver")


@contextmanager
def records_flowing(
    folder: Path, broker: KafkaBroker, topic: str, receivers: int = 1, **settings: Any
) -> Iterator[tuple[Cluster, Flow]]:
    broker.create_topic(topic)
    settings["kafka"] = {**SESSION, **settings.get("kafka", {})}
    with (
        Flow(broker.options, topic) as flow,
        Cluster(folder, broker.options, [topic], receivers=receivers, start=False, **settings) as cluster,
    ):
        yield cluster, flow


def finish(cluster: Cluster, flow: Flow) -> None:
    """Lets more records flow, waits until all are completed, and checks."""
    target = flow.records + RECORDS_AFTER
    cluster.wait(lambda: flow.records >= target, "more records")
    flow.stop()
    cluster.await_completed(flow.truth.ends())
    cluster.check(flow.truth)


def test_every_failpoint_has_a_test() -> None:
    assert sorted(
        [*ARRIVALS, *OPENING, *REBALANCE, *ADOPTION, *REBUILD, *RECOVERY, *GIVEN, *OUTPUTS, *STATES, *SINK]
    ) == sorted(failpoints.NAMES)


@pytest.mark.parametrize("failpoint", ARRIVALS)
def test_a_kill_loses_and_repeats_nothing(
    failpoint: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-2, INV-3, INV-8."""
    with records_flowing(tmp_path, kafka_broker, topic_name()) as (cluster, flow):
        cluster.start_all(failpoints=f"{failpoint}=kill@{ARRIVALS[failpoint]}")
        cluster.await_hit(failpoint)
        killed = process_of(failpoint)
        cluster.wait(lambda: cluster.starts(killed) == 2, f"{killed} killed and started again")
        finish(cluster, flow)


@pytest.mark.parametrize("restart", [False, True], ids=["new", "again"])
@pytest.mark.parametrize("failpoint", OPENING)
def test_a_kill_while_the_journal_opens_loses_and_repeats_nothing(
    failpoint: str, restart: bool, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """An opener that died counts only from its durable snapshot on (INV-4, INV-7): of a new journal, and of one in use."""
    with records_flowing(tmp_path, kafka_broker, topic_name()) as (cluster, flow):
        cluster.start_all(failpoints="" if restart else f"{failpoint}=kill")
        if restart:
            cluster.await_records(100)
            cluster.kill9("driver")
            cluster.restart("driver", failpoints=f"{failpoint}=kill")
        cluster.await_hit(failpoint)
        cluster.wait(lambda: cluster.starts("driver") == 2 + restart, "the driver killed and started again")
        finish(cluster, flow)


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_kill_while_partitions_are_revoked_loses_and_repeats_nothing(
    strategy: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    kafka: dict[str, object] = {"partition.assignment.strategy": strategy}
    with records_flowing(tmp_path, kafka_broker, topic_name(), receivers=2, kafka=kafka) as (cluster, flow):
        for name in ("driver", "agent", "r1"):
            cluster.start(name, failpoints="receiver.revoke=kill")
        cluster.await_records(100)
        cluster.start("r2")  # takes partitions from r1
        cluster.await_hit("receiver.revoke")
        cluster.wait(lambda: cluster.starts("r1") == 2, "r1 killed and started again")
        finish(cluster, flow)


#: what the network, not a crash, takes away: the request is repeated, and what it asked for happens once
DROPS = ("driver.answer:BlockAdded", "driver.answer:ClaimGiven", "receiver.before-report", "receiver.after-report")


@pytest.mark.parametrize("failpoint", DROPS)
def test_a_lost_message_is_repeated_and_counts_once(
    failpoint: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """A repeated block id gets the same answer (INV-2)."""
    with records_flowing(tmp_path, kafka_broker, topic_name(), receiver={"report_timeout": "500ms"}) as (cluster, flow):
        cluster.start_all(failpoints=f"{failpoint}=drop")
        cluster.await_hit(failpoint)
        finish(cluster, flow)
        assert all(cluster.starts(name) == 1 for name in cluster.names)


def test_a_commit_that_never_reaches_kafka_changes_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """The journal is the authority, not the group's offsets (INV-1): the receiver that comes after the lost commit goes on at
    the journal's position."""
    with records_flowing(tmp_path, kafka_broker, topic_name()) as (cluster, flow):
        cluster.start_all(failpoints="receiver.before-commit=drop")
        cluster.await_hit("receiver.before-commit")
        cluster.kill9("r1")
        cluster.restart("r1")
        finish(cluster, flow)


# ---- around each kind of journal event ----


def kinds() -> set[str]:
    return {kind.__name__ for kind in typing.get_args(events.Event)}


#: in the order in which they come
FLOWING = (
    "StreamCreated", "ReceiverRegistered", "ClaimGiven", "BlockAdded", "BatchAllocated", "BatchCompleted", "CleanupIntended",
    "CleanupDone", "BatchesArchived", "SnapshotCopied",
)  # fmt: skip
#: kind → the test that kills around it, or why none can
ELSEWHERE = {
    "PartitionsAdded": "below",
    "ClaimReleased": "below",
    "FaultRecorded": "tests/integration/test_topics.py",
    "AdoptionTried": "tests/integration/test_adoption.py",
    "WriterSettled": "tests/simulation: it comes whenever a claim outruns a release",
    "EpochBarred": "tests/integration/test_recovery_on_s3.py",
    "ReceiverFenced": "tests/integration/test_adoption.py",
    "ReceiversForgotten": "tests/driver/journal/test_receiver_limits.py: thousands of receivers come first",
    "GapRecorded": "tests/integration/test_topics.py",
    "IncarnationBegun": "tests/integration/test_topics.py",
    "LossAccepted": "tests/integration/test_reading_tiers.py",
    "BatchSkipped": "tests/integration/test_operator_actions.py",
    "PauseChanged": "tests/integration/test_operator_actions.py",
    "ReplayBegun": "tests/integration/test_replay.py",
    "ReplayCompleted": "tests/integration/test_replay.py",
    "JobFailed": "tests/driver/batches/test_failing_jobs.py: one that is lost is found again by the next attempt",
    "RateLearned": "tests/driver/batches/test_backpressure.py: one that is lost is learned again",
    "OutputCompleted": "tests/integration/test_batches.py",
    "WindowChanged": "tests/integration/test_batches.py",
    "BlockMoved": "tests/recovery/test_killed.py",
    "SpansBegun": "tests/direct/stream/test_stream_killed.py",
    "SpansAllocated": "tests/direct/stream/test_stream_killed.py",
    "SpansEnded": "tests/direct/stream/test_stream_killed.py",
    "SpansSkipped": "tests/direct/checkpoint/test_killed_acceptance.py",
    "CursorNamed": "tests/direct/intake/test_through_intake.py",
    "CursorOpened": "tests/pyspark_forebay/intake/test_queries.py",
    "CursorMoved": "tests/pyspark_forebay/intake/test_queries.py",
    "CursorEnded": "tests/pyspark_forebay/intake/test_queries.py",
}


def test_every_kind_of_journal_event_has_a_test() -> None:
    assert {*FLOWING, *ELSEWHERE} == kinds()


@pytest.mark.parametrize("place", ["before-write", "before-sync", "after-sync"])
def test_a_driver_killed_around_each_kind_of_event_loses_and_repeats_nothing(
    place: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """One driver after the other is killed at the first event of the next kind (INV-7)."""
    marks = [f"journal.{place}:{kind}" for kind in FLOWING]
    with records_flowing(tmp_path, kafka_broker, topic_name()) as (cluster, flow):
        cluster.start_all(failpoints=",".join(f"{mark}=kill" for mark in marks))
        for mark in marks:
            cluster.await_hit(mark)
        finish(cluster, flow)
        assert cluster.starts("driver") > 1


@pytest.mark.parametrize("place", ["before-sync", "after-sync"])
def test_a_driver_killed_while_partitions_are_added_or_released_loses_and_repeats_nothing(
    place: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    first = topic_name()
    second = f"{first}-second"
    marks = [f"journal.{place}:{kind}" for kind in ("PartitionsAdded", "ClaimReleased")]
    kafka: dict[str, object] = {"topics": [], "pattern": f"^{first}.*"}
    with records_flowing(tmp_path, kafka_broker, first, receivers=2, kafka=kafka) as (cluster, flow):
        cluster.start_all(failpoints=",".join(f"{mark}=kill" for mark in marks))
        cluster.await_records(100)
        cluster.wait(lambda: {*cluster.owners().values()} >= {"r1", "r2"}, "each receiver to have what it can release")
        kafka_broker.create_topic(second)
        with Flow(kafka_broker.options, second) as other:
            cluster.await_hit(marks[0])
            assert cluster.terminate("r2") == 0
            cluster.await_hit(marks[1])
            target = other.records + RECORDS_AFTER
            cluster.wait(lambda: other.records >= target, "more records")
            flow.stop()
            other.stop()
            cluster.await_completed({**flow.truth.ends(), **other.truth.ends()})
            flow.truth.extend(other.truth)
            cluster.check(flow.truth)


# ---- errors of the disk ----


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_write_of_the_wal_poisons_the_segment_and_the_block_is_written_again(
    error: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """The receiver goes on in a new segment, from memory; nothing ends."""
    wal: dict[str, object] = {"segment_size": "128MB", "retention": "1h"}
    with records_flowing(tmp_path, kafka_broker, topic_name(), wal=wal) as (cluster, flow):
        cluster.start_all(failpoints=f"wal.before-sync=error:{error}@3")
        cluster.await_hit("wal.before-sync")
        finish(cluster, flow)
        assert all(cluster.starts(name) == 1 for name in cluster.names)
        segments = cluster.wal_storage.list("stream/blocks/r1")
        assert len(segments) == 2, segments


def test_a_failed_write_of_the_journal_ends_the_driver_and_loses_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Its state is ahead of the journal: only a new opening may go on (INV-7)."""
    with records_flowing(tmp_path, kafka_broker, topic_name()) as (cluster, flow):
        cluster.start_all(failpoints="journal.before-sync:BlockAdded=error:EIO")
        assert cluster.await_end("driver") == 1
        assert cluster.was_hit("journal.before-sync:BlockAdded")
        cluster.restart("driver")
        finish(cluster, flow)
