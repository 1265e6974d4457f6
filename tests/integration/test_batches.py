"""Several outputs, windows and the graceful stop, in real processes with real Kafka."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow, Truth, numbered, produce
from tests.support.processes.cluster import Cluster
from tests.support.processes.services import PATIENCE_SECONDS

pytestmark = pytest.mark.kafka

#: makes a second output of each batch: its window, which must touch without a gap
SECOND = """
import json
from pathlib import Path

LINES = Path(__file__).resolve().parent / "windows.jsonl"


def second(batch):
    over = batch.window(3)
    rows = [(p, o) for rows in over.read() for p, o in zip(rows["partition"].to_pylist(), rows["offset"].to_pylist())]
    with LINES.open("a") as lines:
        lines.write(json.dumps([batch.id, over.covered, rows]) + "\\n")
"""


def test_killed_around_outputs_and_windows_each_batch_has_both_outputs_and_the_same_window(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-3, INV-7, INV-8. An output that is durably done is not made again."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    (tmp_path / "second.py").write_text(SECOND)
    places = ("before-write:WindowChanged", "before-write:OutputCompleted", "after-sync:OutputCompleted")
    marks = [f"journal.{place}" for place in places]
    driver = {"job": ["jobs:local", "second:second"], "window_batches": 2}
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, start=False, driver=driver) as cluster,
    ):
        cluster.start_all(failpoints=",".join(f"{mark}=kill" for mark in marks))
        for mark in marks:
            cluster.await_hit(mark)
        target = flow.records + 200
        cluster.wait(lambda: flow.records >= target, "more records")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        completed = cluster.completed_batches()
        cluster.check(flow.truth)
        assert cluster.starts("driver") == 1 + len(marks)
    windows: dict[int, tuple[list[int], list[list[int]]]] = {}
    for line in (tmp_path / "windows.jsonl").read_text().splitlines():
        batch_id, covered, rows = json.loads(line)
        assert windows.setdefault(batch_id, (covered, rows)) == (covered, rows), "a rerun saw another window"
    assert windows.keys() >= set(completed)
    first = min(windows)
    for batch_id, (covered, rows) in windows.items():
        assert covered == list(range(max(first, batch_id - 2), batch_id + 1))
        for partition in {partition for partition, _ in rows}:
            offsets = [offset for one, offset in rows if one == partition]
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    runs = Counter(line.split()[1] for line in (tmp_path / "runs.txt").read_text().splitlines())
    assert sum(runs.values()) == len(runs) + 1, "made again only where it was not durably done"


def await_heartbeats(cluster: Cluster, *names: str) -> None:
    """Wait until the running driver has a heartbeat of these receivers, which may be in a delay before their next attempt.

    Without a heartbeat it could not tell them to drain, and as they hold nothing, it would not wait for them.
    """

    def done() -> bool:
        status = cluster.status()
        return status is not None and set(names) <= {r.receiver_id for r in status.receivers if r.silent_seconds >= 0}

    cluster.wait(done, f"the driver to hear {', '.join(names)}")


def stopped(cluster: Cluster, *names: str) -> dict[str, int]:
    return {name: cluster.await_end(name, may_end=names) for name in names}


def test_forebay_stop_drains_and_completes_all_records_taken_in(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """By the command, and by SIGTERM where the configuration says so."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    driver = {"stop": "drain", "stop_timeout": "180s"}
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=2, driver=driver) as cluster,
    ):
        cluster.await_records(100)
        await_heartbeats(cluster, "r1", "r2")
        done = cluster.command("stop", "--drain", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["stopped"] is True
        assert stopped(cluster, "driver", "r1", "r2") == {"driver": 0, "r1": 0, "r2": 0}
        state = cluster.state()
        assert not state.waiting and not state.unfinished()
        assert "receivers drained: r1, r2; what waits still: nothing" in cluster.log("driver")
        for name in ("driver", "r1", "r2"):
            cluster.restart(name)
        before = state.records_completed
        cluster.wait(lambda: (cluster.status() or state).records_completed > before + 100, "records after the stop")
        await_heartbeats(cluster, "r1", "r2")
        cluster.process("driver").send_signal(signal.SIGTERM)
        assert stopped(cluster, "driver", "r1", "r2") == {"driver": 0, "r1": 0, "r2": 0}
        state = cluster.state()
        assert not state.waiting and not state.unfinished()
        for name in ("driver", "r1", "r2"):
            cluster.restart(name)
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)


def test_second_signal_ends_a_drain_immediately(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic)
    truth = Truth()
    produce(kafka_broker.options, topic, numbered(200), truth)
    with Cluster(
        tmp_path, kafka_broker.options, [topic], receivers=1, start=False, driver={"stop": "drain"}
    ) as cluster:
        (tmp_path / "hold").touch()
        cluster.start_all()
        cluster.wait(lambda: set(cluster.seen.glob("*.begun")), "a job held in the middle")
        cluster.process("driver").send_signal(signal.SIGTERM)
        assert stopped(cluster, "r1") == {"r1": 0}
        cluster.process("driver").send_signal(signal.SIGTERM)
        assert stopped(cluster, "driver")["driver"] == -signal.SIGTERM
        (tmp_path / "hold").unlink()
        for name in ("driver", "r1"):
            cluster.restart(name)
        cluster.await_completed(truth.ends())
        cluster.check(truth)


def test_until_caught_up_takes_all_up_to_the_last_stable_offset_and_ends(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """A transaction that is open when it starts is not waited for."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    truth = Truth()
    produce(kafka_broker.options, topic, numbered(400), truth)
    # the broker would end one that is open for a minute
    producer = Producer({**kafka_broker.options, "transactional.id": topic, "transaction.timeout.ms": 600_000})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    for number in range(50):
        producer.produce(topic, b"open %d" % number, partition=number % 4)
    assert producer.flush(PATIENCE_SECONDS) == 0
    with Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, start=False) as cluster:
        cluster.start("driver", "--until-caught-up")
        cluster.start("agent")
        cluster.start("r1")
        assert stopped(cluster, "driver", "r1") == {"driver": 0, "r1": 0}
        assert cluster.state().records_completed == 400
        cluster.check(truth)
    producer.abort_transaction(PATIENCE_SECONDS)
