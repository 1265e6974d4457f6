"""An operator pauses, skips and restarts while the real processes are killed: each answered request holds, and each record is in
exactly one batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.process.restarts import RESTART_EXIT_CODE
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka

PLACES = ("before-write", "before-sync", "after-sync")
MARKS = [f"journal.{place}:{kind}" for kind in ("PauseChanged", "BatchSkipped") for place in PLACES]


def test_answered_pauses_and_skips_hold_over_kills_and_a_restarted_receiver_loses_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-2, INV-3, INV-5, INV-7. The driver is killed around each event; the records of the skipped batch return by a replay."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1, start=False,
            wal={"retention": "1h"}, driver={"job_max_failures": 1},
        ) as cluster,
    ):  # fmt: skip

        def asked(*arguments: str) -> str:
            """Run a command until a driver has answered it; drivers are killed meanwhile, and started again."""
            done = cluster.wait(
                lambda: one if (one := cluster.command(*arguments)).returncode == 0 else None, arguments[0]
            )
            return done.stderr

        cluster.start_all(failpoints=",".join(f"{mark}=kill" for mark in MARKS))
        cluster.await_records(100)

        # pauses, with a driver killed before and after one is durable
        for command in ("pause", "resume", "pause"):
            asked(command, "--cause", "kills")
        assert all(map(cluster.was_hit, MARKS[:3]))
        answer = cluster.wait(lambda: s if (s := cluster.status()) is not None and s.state == "running" else None, "it")
        assert answer.pause_cause.endswith(": kills")
        completed, taken_in = answer.batches_completed, flow.records
        cluster.wait(lambda: flow.records > taken_in + 600, "more records")

        # a receiver is restarted meanwhile: intake continues, no batch begins
        asked("restart-receiver", "r1", "--cause", "test")
        assert cluster.await_end("r1") == RESTART_EXIT_CODE
        cluster.restart("r1")
        cluster.wait(
            lambda: cluster.owners() and set(cluster.owners().values()) == {"r1"}, "r1 to own the partitions again"
        )
        paused = cluster.status()
        assert paused is not None and paused.batches_completed == completed
        (tmp_path / "fail").touch()
        assert "begin again" in asked("resume")

        # failing batches are skipped, with a driver killed before and after that is durable
        def skip_one() -> bool:
            status = cluster.status()
            failed = next((b for b in status.batches if b.state == "failed"), None) if status is not None else None
            if failed is not None:
                cluster.command("batch", "skip", str(failed.batch_id), "--cause", "corrupt", "--yes")
            return all(map(cluster.was_hit, MARKS[3:]))

        cluster.wait(skip_one, "a kill at each step of a skip")
        (tmp_path / "fail").unlink()
        target = flow.records + 200
        cluster.wait(lambda: flow.records >= target, "more records")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        report = cluster.check_audit()
        assert report.losses and all(loss.cause.endswith(": corrupt") for loss in report.losses)

        # the repaired job gets what was skipped
        first = min(loss.batch_id for loss in report.losses)
        done = cluster.command("recover", "--to-batch", str(first), "--yes")
        assert done.returncode == 0, done.stderr
        cluster.wait(
            lambda: (s := cluster.status()) is not None and s.replay is None and s.state == "running", "the replay"
        )
        cluster.check(flow.truth)
