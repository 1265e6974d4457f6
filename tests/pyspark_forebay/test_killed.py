"""A streaming query whose planner and workers are killed writes each record once, to Parquet files and to a topic in
transactions."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS, committed_values
from tests.support.state.again import produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

KILLS = 8
ROUND = 1_000
_ROOT = Path(__file__).parents[2]
_ENVIRONMENT = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(_ROOT)}


@contextmanager
def running(
    broker: KafkaBroker,
    topic: str,
    folder: Path,
    more: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """The query, which is killed with all its processes at the end."""
    command = [
        sys.executable,
        "-m",
        "tests.support.spark.streaming_process",
        broker.options["bootstrap.servers"],
        topic,
    ]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, str(folder), *more], cwd=_ROOT, env={**_ENVIRONMENT, **(environment or {})}, stdout=log,
            stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def batches(folder: Path) -> int:
    return sum(path.name.isdigit() for path in (folder / "checkpoint" / "offsets").glob("*"))


def python_processes(session: int) -> list[int]:
    """Of Spark's in this session: planners, daemons and workers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes()
            if os.getsid(int(entry.name)) == session and b"pyspark." in arguments and b"tests.support" not in arguments:
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended
    return sorted(found)


def to_the_end(broker: KafkaBroker, topic: str, folder: Path, more: Sequence[str] = ()) -> None:
    with running(broker, topic, folder, [*more, "--end"]) as last:
        assert last.wait(PATIENCE_SECONDS * 8) == 0, (folder / "log").read_text()[-3000:]


def in_topic(broker: KafkaBroker, topic: str) -> dict[int, list[int]]:
    """partition → offsets, of what was read into ``topic`` and committed."""
    found: dict[int, list[int]] = {}
    for value in committed_values(broker, topic, 2):
        partition, offset = map(int, value.split())
        found.setdefault(partition, []).append(offset)
    return {partition: sorted(offsets) for partition, offsets in found.items()}


@pytest.mark.timeout(1800)
def test_task_and_query_killed_around_a_commit_write_each_record_once(
    kafka_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """Spark runs the task again whose worker was killed with its rows collected.

    Then the query is killed after Kafka has committed the batch and before Spark knows. It is started again from its
    checkpoint in a session of Spark Connect, where the same happens with the next batch, and then without Connect.
    """
    topic, into = topic_name(), topic_name()
    for name in (topic, into):
        kafka_broker.create_topic(name, 2)
    for number in range(2):
        produce(kafka_broker.options, TopicPartition(topic, number), 150)
    failpoints = {
        "FOREBAY_FAILPOINTS": "sink.task-end=kill,sink.after-commit=hold", "FOREBAY_FAILPOINT_DIR": str(tmp_path),
        "SPARK_TESTING": "1",
    }  # fmt: skip
    for completed, connect in enumerate(([], ["--connect"])):
        with running(kafka_broker, topic, tmp_path, ["--into", into, *connect], failpoints) as process:
            wait_for(lambda: (tmp_path / "sink.after-commit.hit").exists(), process, tmp_path)
        for point in ("sink.after-commit", "sink.task-end"):
            (tmp_path / f"{point}.hit").unlink()
        assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == completed
        committed = in_topic(kafka_broker, into)
        assert sum(map(len, committed.values())) == (200, 300)[completed]
    to_the_end(kafka_broker, topic, tmp_path, ["--into", into])
    assert in_topic(kafka_broker, into) == {0: list(range(150)), 1: list(range(150))}
    for number in range(2):
        assert f"batch {number} was already committed and is not written again" in (tmp_path / "log").read_text()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sink", ["parquet", "topic"])
def test_each_record_is_written_once_after_kills(
    sink: str, kafka_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    seed = int(os.environ.get("FOREBAY_SEED", "") or time.time_ns() % 2**31)
    chance = random.Random(seed)
    kills = int(os.environ.get("FOREBAY_KILLS", "") or KILLS)
    topic, into = topic_name(), topic_name()
    for name in (topic, into):
        kafka_broker.create_topic(name, 2)
    more = ["--into", into] if sink == "topic" else []
    partitions = [TopicPartition(topic, number) for number in range(2)]
    killed: dict[str, int] = {}
    for _ in range(kills):
        for tp in partitions:
            produce(kafka_broker.options, tp, ROUND)
        with running(kafka_broker, topic, tmp_path, more) as process:
            wait_for_batch(process, tmp_path)
            time.sleep(chance.random())  # anywhere within a trigger or two
            workers = python_processes(process.pid)
            if workers and chance.random() < 0.5:
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed["worker or planner"] = killed.get("worker or planner", 0) + 1
                wait_for_batch(process, tmp_path)
            else:
                killed["query"] = killed.get("query", 0) + 1
    to_the_end(kafka_broker, topic, tmp_path, more)
    if sink == "topic":
        found = in_topic(kafka_broker, into)
    else:
        held = json.loads((tmp_path / "found").read_text())
        found = {int(partition): sorted(offsets) for partition, offsets in held.items()}
    print(f"{2 * kills * ROUND} records, {killed} killed, {batches(tmp_path)} batches, seed {seed}")
    assert found == {number: list(range(kills * ROUND)) for number in range(2)}, f"seed {seed}"


def wait_for_batch(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until one more batch is planned, or the query has ended."""
    before = batches(folder)
    wait_for(lambda: batches(folder) != before or process.poll() is not None, None, folder)


def wait_for(come: Callable[[], bool], process: subprocess.Popen[bytes] | None, folder: Path) -> None:
    """``process``: must not end before."""
    deadline = time.monotonic() + PATIENCE_SECONDS * 8
    while not come():
        ended = process is not None and process.poll() is not None
        assert not ended and time.monotonic() < deadline, (folder / "log").read_text()[-3000:]
        time.sleep(0.05)
