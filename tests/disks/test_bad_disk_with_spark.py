"""Spark tasks whose local copies the disk can't read, or which lose pages while a task uses them, and tasks without descriptors.

A batch is completed from the next tier, by the same attempt or by the next one. Nothing is lost (INV-3, INV-5).
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.batches.tasks.reading import LARGE_BYTES
from driver.spark.engine import SparkEngine
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import UnreadableBlockError
from tests.support.faulty.bad_disk import half_readable
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from wal.blocks import local_path
from wal.blocks.local_copies import MAPPED_BYTES_MIN

pytestmark = [
    pytest.mark.spark,
    # py4j and Spark's own start-up leave files and sockets to the collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ROWS = MAPPED_BYTES_MIN // 20


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def store(stored: Stored, rows: int) -> BatchWork:
    """Store two blocks, for a task each."""
    references = [stored.add(*block({("a", n): filler(rows)}, sequence=n + 1)) for n in range(2)]
    assert all((reference.handle.length >= MAPPED_BYTES_MIN) == (rows == ROWS) for reference in references)
    return BatchWork(1 << 40 | 1, 1, 0, False, tuple((reference,) for reference in references))


def started(stored: Stored, spark: Any, blocks_directory: Path | None = None) -> SparkEngine:
    """Return an engine whose tasks read every batch, from copies in ``blocks_directory``."""
    settings = stored.settings(small_batch="0B")
    if blocks_directory is not None:
        settings = msgspec.structs.replace(
            settings, agent=msgspec.structs.replace(settings.agent, blocks=str(blocks_directory))
        )
    engine = SparkEngine(settings, dict, spark)
    engine.start()
    return engine


def workers(batch: Batch) -> list[tuple[int, int]]:
    """Return the process of each task, and the number of rows that it has read."""
    return list(batch.arrow.mapPartitions(lambda rows: [(os.getpid(), sum(part.num_rows for part in rows))]).collect())


@pytest.mark.parametrize("rows", [2, ROWS], ids=["small", "mapped"])
def test_task_whose_local_copy_the_disk_cannot_read_reads_the_wal_and_its_worker_lives(
    rows: int, spark: Any, stored: Stored
) -> None:
    """In local mode Spark runs no task again, so the run would fail if a worker died."""
    work = store(stored, rows)
    copies = local_path(stored.blocks_directory, "s", work.tasks[0][0].id).parent
    mount = stored.root / "mounted" / "s"
    mount.mkdir(parents=True)
    seen: list[tuple[int, int]] = []

    def job(batch: Batch) -> None:
        seen.extend(workers(batch))
        assert batch.df.count() == 2 * rows

    with half_readable(copies, mount):
        counts = started(stored, spark, mount.parent).run(work, job)
    assert [count for _, count in seen] == [rows, rows]
    assert counts.ranges == {"wal": 4} and counts.failures == {"local: failed": 4}
    for pid, _ in seen:
        os.kill(pid, 0)  # raises if it is not there


def test_task_without_descriptors_names_the_reason_and_the_next_attempt_reads_the_batch(
    spark: Any, stored: Stored
) -> None:
    """The block is not taken for lost (INV-5): its bytes are there, and can be read when descriptors are free."""
    work = store(stored, 2)
    engine = started(stored, spark)

    def without_descriptors(rows: Iterable[pa.RecordBatch]) -> list[int]:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))  # what is open stays open
        try:
            return [part.num_rows for part in rows]  # reads the blocks
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    with pytest.raises(UnreadableBlockError) as caught:
        engine.run(work, lambda batch: batch.arrow.mapPartitions(without_descriptors).count())
    message = str(caught.value)
    for tier in ("local", "wal"):
        assert re.search(rf"{tier}: [^;]*Too many open files", message), message
    seen: list[tuple[int, int]] = []
    counts = engine.run(work, lambda batch: seen.extend(workers(batch)))
    assert [count for _, count in seen] == [2, 2]
    assert counts.ranges == {"local": 2}


#: a job whose first task truncates the copy that it has mapped, and then uses the rows: the kernel ends its worker (SIGBUS)
LOSING_JOB = """
import os
import re
from pathlib import Path

import pyarrow as pa

import jobs

HERE = Path(__file__).resolve().parent
COPY = re.compile(r"(/\\S+\\.block)$", re.MULTILINE)


def mapped():
    return sorted(set(COPY.findall(Path("/proc/self/maps").read_text())))


def take(batches):
    for rows in batches:
        copies = mapped()
        if copies and (HERE / "lose").exists():
            (HERE / "lost").write_text(str(os.getpid()))
            (HERE / "lose").unlink()
            for copy in copies:
                os.truncate(copy, os.path.getsize(copy) // 2)
        yield jobs.chosen(rows)


def job(batch):
    jobs.keep(batch, pa.Table.from_batches(batch.arrow.mapPartitions(take).collect(), jobs.SCHEMA))
"""


@pytest.mark.kafka
@pytest.mark.parametrize(
    "master", ["local[2]", pytest.param("local[2, 4]", marks=pytest.mark.long)], ids=["batch-again", "task-again"]
)
def test_batch_whose_mapped_copy_loses_its_pages_is_completed_from_the_wal(
    master: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """The worker ends by SIGBUS. Spark runs the task again in another worker, or, in plain local mode, the driver the batch."""
    topic = topic_name()
    kafka_broker.create_topic(topic, 1)
    with (
        # large record batches: a task copies small ones when it joins them, and then uses no page of the file
        Flow(kafka_broker.options, topic, rate=100, partitions=[0], padding=LARGE_BYTES // 25) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1, engine="spark", job="losing:job", start=False,
            wal={"compression": "none"}, receiver={"block_interval": "500ms"},
            # what comes in while Spark starts is more than its heap could hold at the same time
            driver={"batch_interval": "500ms", "max_batch_bytes": "20MB"}, spark={"spark.master": master},
        ) as cluster,
    ):  # fmt: skip
        (tmp_path / "losing.py").write_text(LOSING_JOB)
        cluster.start_all()
        cluster.await_records(100)
        (tmp_path / "lose").touch()
        cluster.wait(lambda: (tmp_path / "lost").exists(), "a task to lose pages of a mapped copy")
        worker = (tmp_path / "lost").read_text()
        cluster.await_records(cluster.wait(cluster.status, "status").records_completed + 300)
        # a killed worker is there until Spark's daemon has waited for it; one that used no lost page stays
        cluster.wait(lambda: not Path("/proc", worker).exists(), "the end of the worker that used a lost page")
        assert "Python worker exited unexpectedly (crashed)" in cluster.log("driver")
        reruns = [line for line in (tmp_path / "runs.txt").read_text().splitlines() if line.endswith("True")]
        assert len(reruns) == (master == "local[2]"), reruns
        tiers = cluster.wait(cluster.status, "status").tiers
        assert tiers.get("wal", 0) > 0 and tiers.get("local: damaged", 0) > 0, tiers
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        assert all(cluster.starts(name) == 1 for name in cluster.names), cluster.describe()
