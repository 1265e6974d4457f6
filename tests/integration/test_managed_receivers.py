"""Managed receivers that are killed, hang, lose their host, or move to a new one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.messages import ManagedReceiver
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka


def managed(cluster: Cluster) -> Mapping[str, ManagedReceiver]:
    status = cluster.status()
    return {r.receiver_id: r for r in status.managed} if status is not None else {}


def epochs(cluster: Cluster) -> set[int]:
    """Return the epochs of processes that have registered and sent a heartbeat: they drain on a signal."""
    status = cluster.status()
    return {r.epoch for r in status.receivers if r.state not in ("registered", "lost")} if status is not None else set()


def on_hosts(cluster: Cluster, *hosts: str) -> Mapping[str, ManagedReceiver] | None:
    """The receivers, if they are active on these hosts, in the order of the hosts' names, and each owns a partition."""
    found = managed(cluster)
    settled = all(r.state == "active" and r.pid and not r.moves_to for r in found.values())
    placed = sorted(r.host for r in found.values()) == list(hosts)
    return found if settled and placed and set(cluster.owners().values()) == set(found) else None


def test_receivers_are_restarted_or_moved_after_any_failure(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """One killed and one hung at the same time, a host that joins, one killed with what runs on it, the driver killed. Nothing
    is lost or taken in twice (INV-2, INV-3)."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], start=False, receivers=0,
            receiver={"mode": "managed", "count": 2},
            driver={"receiver_timeout": "6s", "placing_interval": "200ms"},
        ) as cluster,
    ):  # fmt: skip
        cluster.start("driver")
        cluster.start_agent("h1")
        cluster.start_agent("h2")
        first = cluster.wait(lambda: on_hosts(cluster, "h1", "h2"), "one on each host")

        before = cluster.wait(lambda: found if len(found := epochs(cluster)) == 2 else None, "both to send a heartbeat")
        (killed,) = (r for r in first.values() if r.host == "h1")
        (hung,) = (r for r in first.values() if r.host == "h2")
        os.kill(killed.pid, signal.SIGKILL)
        os.kill(hung.pid, signal.SIGSTOP)
        found = cluster.wait(lambda: on_hosts(cluster, "h1", "h1"), "both anew, and none where one hung")
        assert [(found[r.receiver_id].exit_code, found[r.receiver_id].restarts) for r in (killed, hung)] == [
            (-9, 1)
        ] * 2
        assert not {r.pid for r in first.values()} & {r.pid for r in found.values()}

        cluster.wait(lambda: len(epochs(cluster) - before) == 2, "both to send a heartbeat again")
        cluster.start_agent("h3")
        moved = cluster.wait(lambda: on_hosts(cluster, "h1", "h3"), "one to move to the host that joined")
        (stayed,) = (r for r in moved.values() if r.host == "h1")
        assert stayed.pid == found[stayed.receiver_id].pid, "the other one goes on undisturbed"
        assert next(r.exit_code for r in moved.values() if r.host == "h3") == 0, "it drained before it moved"

        cluster.kill9("driver")
        cluster.restart("driver")
        known = cluster.wait(lambda: on_hosts(cluster, "h1", "h3"), "the driver to know them again")
        assert {r.pid for r in known.values()} == {r.pid for r in moved.values()}, "nothing was started or moved"

        done = cluster.command("restart-receiver", stayed.receiver_id, "--cause", "test")
        assert done.returncode == 0 and "its agent starts it again" in done.stderr, done.stderr

        def started_again() -> ManagedReceiver | None:
            found = on_hosts(cluster, "h1", "h3") or {}
            return found[stayed.receiver_id] if found and found[stayed.receiver_id].pid != stayed.pid else None

        again = cluster.wait(started_again, "the receiver that the operator restarts, on its host")
        assert (again.host, again.exit_code, again.restarts) == ("h1", 0, 0), "it drained, and did not fail"
        stayed = again

        cluster.kill9("h1")  # and its receiver with it
        cluster.wait(lambda: not running(stayed.pid), "the end of what ran on the killed host")
        cluster.wait(
            lambda: on_hosts(cluster, "h2", "h3") or on_hosts(cluster, "h3", "h3"), "its receiver on another host"
        )
        target = flow.records + 300
        cluster.wait(lambda: flow.records >= target, "more records")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        assert "Managed receivers" in cluster.command("status").stdout
        left = managed(cluster).values()
        assert [cluster.terminate(host) for host in ("h2", "h3")] == [0, 0]
        assert not any(running(r.pid) for r in left), "they drain before their agent ends"
        assert cluster.terminate("driver") == 0


def running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
