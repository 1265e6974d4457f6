"""``forebay status`` beside real processes: 0 while all is well, 1 with cause and next step as soon as something is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka


def verdict(cluster: Cluster) -> tuple[int, dict[str, str]]:
    """Exit code, and the problems by kind."""
    result = cluster.command("status", "--json")
    found: Any = json.loads(result.stdout)["problems"] if result.stdout else ()
    return result.returncode, {problem["kind"]: problem["cause"] + " " + problem["command"] for problem in found}


def test_failing_job_and_silent_processes_are_problems_until_they_are_over(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1, driver={"receiver_timeout": "4s", "job_max_failures": 2}
        ) as cluster,
        Flow(kafka_broker.options, topic) as flow,
    ):  # fmt: skip
        cluster.await_records(100)
        cluster.wait(lambda: verdict(cluster) == (0, {}), "a stream without problems")
        (tmp_path / "fail").touch()
        cluster.wait(lambda: (s := cluster.status()) and s.state == "failed", "the job to fail")
        code, problems = verdict(cluster)
        assert code == 1
        assert "RuntimeError: failing on request" in problems["job"]
        assert f"{tmp_path}/jobs.py:" in problems["job"]
        assert "forebay batch retry" in problems["job"]
        assert "failed: batch " in cluster.health()
        # the next driver shows it too
        cluster.kill9("driver")
        cluster.restart("driver")
        cluster.wait(lambda: "job" in verdict(cluster)[1], "the next driver to show the error")
        cluster.wait(lambda: (s := cluster.status()) and s.state == "failed", "the job to fail again")
        (tmp_path / "fail").unlink()
        assert cluster.command("batch", "retry").returncode == 0
        cluster.wait(lambda: (s := cluster.status()) and s.state == "running", "the job to succeed")
        assert cluster.log("driver").count("Traceback") <= 2, "one for each driver"
        # a driver expects the agents that have sent it a heartbeat
        cluster.wait(lambda: (s := cluster.status()) and s.agents and s.receivers, "this driver to hear both")
        for name in ("r1", "agent"):
            cluster.pause(name)
        cluster.wait(lambda: len(verdict(cluster)[1]) == 3, "the silent receiver and agent to be problems")
        code, problems = verdict(cluster)
        assert (code, problems.keys()) == (1, {"partitions-without-receiver", "receiver-gone", "agent-gone"})
        for name in ("r1", "agent"):
            cluster.wake(name)
        cluster.wait(lambda: verdict(cluster) == (0, {}), "a stream without problems again")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
    result = cluster.command("status")
    assert result.returncode == 3
    assert "no driver of stream" in result.stderr
    assert "start it with `forebay up`" in result.stderr
