"""A streaming query, its planner and its workers killed at random: each record once in Parquet files."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.broker import KafkaBroker
from forebay.values import TopicPartition
from tests.support.again import produce
from tests.support.kafka import PATIENCE_SECONDS

KILLS = 8
ROUND = 1_000
_ROOT = Path(__file__).parents[2]
_ENVIRONMENT = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(_ROOT)}


def start(broker: KafkaBroker, topic: str, folder: Path, *end: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.streaming_process", broker.options["bootstrap.servers"], topic]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [*command, str(folder), *end], cwd=_ROOT, env=_ENVIRONMENT, stdout=log, stderr=log, start_new_session=True
        )


def batches(folder: Path) -> int:
    return sum(path.name.isdigit() for path in (folder / "checkpoint" / "offsets").glob("*"))


def python_processes(session: int) -> list[int]:
    """Of Spark's in this session: planners, daemons and workers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
            if os.getsid(int(entry.name)) == session and b"pyspark." in words and b"tests.support" not in words:
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended
    return sorted(found)


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_each_record_is_once_in_parquet_whatever_was_killed(
    kafka_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    seed = int(os.environ.get("FOREBAY_SEED", "") or time.time_ns() % 2**31)
    chance = random.Random(seed)
    kills = int(os.environ.get("FOREBAY_KILLS", "") or KILLS)
    topic = topic_name()
    kafka_broker.create_topic(topic, 2)
    partitions = [TopicPartition(topic, number) for number in range(2)]
    killed: dict[str, int] = {}
    for _ in range(kills):
        for tp in partitions:
            produce(kafka_broker.options, tp, ROUND)
        process = start(kafka_broker, topic, tmp_path)
        try:
            wait_for_batch(process, tmp_path)
            time.sleep(chance.random())  # anywhere within a trigger or two
            workers = python_processes(process.pid)
            if workers and chance.random() < 0.5:
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed["worker or planner"] = killed.get("worker or planner", 0) + 1
                wait_for_batch(process, tmp_path)
            else:
                killed["query"] = killed.get("query", 0) + 1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    last = start(kafka_broker, topic, tmp_path, "found")
    try:
        assert last.wait(PATIENCE_SECONDS * 5) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        if last.poll() is None:
            os.killpg(last.pid, signal.SIGKILL)
    found = json.loads((tmp_path / "found").read_text())
    print(f"{2 * kills * ROUND} records, {killed} killed, {batches(tmp_path)} batches, seed {seed}")
    for tp in partitions:
        assert sorted(found[str(tp.partition)]) == list(range(kills * ROUND)), f"seed {seed}"


def wait_for_batch(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until one more batch is planned, or the query has ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS * 3
    before = batches(folder)
    while batches(folder) == before and process.poll() is None:
        assert time.monotonic() < deadline, (folder / "log").read_text()[-3000:]
        time.sleep(0.05)
