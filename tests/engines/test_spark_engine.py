"""What Spark's tasks read is what was taken in, and what they can't read is said by name (INV-3, INV-5)."""

from __future__ import annotations

import base64
import contextlib
import gc
import os
import pickle
import threading
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from py4j.protocol import Py4JError
from pyspark import InheritableThread

from driver.batches.job.batch import Batch
from driver.batches.job.description import offsets_text
from driver.batches.job.errors import describe
from driver.batches.job.work import BatchWork
from driver.batches.local_engine import read_plan
from driver.batches.tasks.reading import KafkaRecord
from driver.spark import engine as spark_engine
from driver.spark.engine import SparkEngine, _running_tasks
from driver.spark.small import FRAMES_LEFT_TO_TASKS, SmallBatches
from forebay.model.errors import EngineLostError, JobError, UnreadableBlockError
from forebay.model.units import Duration
from pyspark_forebay.schema import spark_schema
from tests.support.state.rows import ODD_ROWS, Row, block, filler
from tests.support.state.stored import Stored
from tests.support.stores.hdfs import HdfsServer
from wal.blocks import local_path
from wal.blocks.encryption import KeyRing
from wal.reading import BlockReference

pytestmark = [
    pytest.mark.spark,
    # py4j and Spark's own start-up leave files and sockets to the collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

Ranges = dict[tuple[str, int], list[Row] | tuple[Row, ...]]
#: two tasks of two and one blocks; one range without records
BLOCKS: list[Ranges] = [
    {("a", 0): ODD_ROWS, ("a", 1): filler(5), ("b", 0): []},
    {("a", 0): filler(3, start=20)},
    {("b", 2): filler(4), ("a", 1): filler(2, start=5)},
]


def expected(headers: bool) -> list[KafkaRecord]:
    return [
        KafkaRecord(*row[:2], topic, partition, *row[2:5], row.headers if headers else None)
        for ranges in BLOCKS
        for (topic, partition), records in ranges.items()
        for row in records
    ]


def store(stored: Stored, headers: bool = False) -> BatchWork:
    references: list[BlockReference] = []
    for sequence, ranges in enumerate(BLOCKS, start=1):
        sane = {tp: [row._replace(timestamp=min(row.timestamp, 2**40)) for row in rows] for tp, rows in ranges.items()}
        references.append(stored.add(*block(sane, sequence=sequence, headers=headers)))
    return BatchWork(
        batch_id=1 << 40 | 7,
        number=7,
        time_ms=1_700_000_000_500,
        rerun=False,
        tasks=((references[0], references[1]), (references[2],)),
        headers=headers,
    )


@pytest.fixture
def engine(spark: Any, stored: Stored) -> SparkEngine:
    engine = SparkEngine(stored.settings(), dict, spark)
    engine.start()
    return engine


@pytest.mark.parametrize(("headers", "small_batch"), [(False, "0B"), (True, "0B"), (False, "1MB"), (True, "1MB")])
def test_rdd_arrow_dataframe_and_read_give_the_same_rows(
    spark: Any, stored: Stored, headers: bool, small_batch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    engine = SparkEngine(stored.settings(small_batch=small_batch), dict, spark)
    engine.start()
    work = store(stored, headers)
    seen: dict[str, Any] = {}

    def job(batch: Batch) -> None:
        seen["facts"] = (batch.id, batch.time, batch.ranges, batch.rerun, batch.records)
        seen["rdd"] = batch.rdd.collect()
        seen["arrow"] = batch.arrow.map(lambda rows: rows.schema.names).collect()
        seen["read"] = [rows.num_rows for rows in batch.read()]
        seen["sizes"] = batch.arrow.map(lambda rows: rows.num_rows).collect()
        seen["tasks"] = batch.rdd.glom().map(len).collect()
        seen["schema"] = batch.df.schema
        seen["names"] = batch.df.columns
        seen["df"] = batch.df.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
        seen["df tasks"] = [list(rows) for rows in batch.df.select("offset").rdd.glom().collect()]
        seen["plan"] = batch.df._jdf.queryExecution().toString()

    counts = engine.run(work, job)
    wanted = [row._replace(timestamp=min(row.timestamp, 2**40)) for row in expected(headers)]
    assert seen["facts"] == (
        1 << 40 | 7, datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=timezone.utc), work.ranges, False, len(wanted)
    )  # fmt: skip
    assert seen["rdd"] == wanted
    assert seen["sizes"] == seen["tasks"] == [14, 6], "a task joins the rows of small ranges"
    assert seen["read"] == [11, 3, 4, 2], "as decoded: small blocks of the same topics together"
    assert [len(rows) for rows in seen["df tasks"]] == seen["tasks"]
    assert ("MapInArrow" in seen["plan"]) == (small_batch == "0B")
    assert seen["schema"] == spark_schema(headers)
    assert seen["names"] == seen["arrow"][0]
    names = [name for name in KafkaRecord._fields if name not in ("timestamp", "headers")]
    for row, record in zip(seen["df"], wanted, strict=True):
        assert [row[name] for name in names] == [getattr(record, name) for name in names]
        assert row["ms"] == record.timestamp
        if headers:
            pairs = row["headers"]
            assert (pairs if pairs is None else [(h["key"], h["value"]) for h in pairs]) == record.headers
    assert set(counts.ranges) == {"local"}
    assert not counts.failures


def test_a_worker_does_not_walk_its_modules_after_each_task(engine: SparkEngine, stored: Stored) -> None:
    frozen: list[tuple[int, int]] = []

    def job(batch: Batch) -> None:
        frozen.extend(batch.arrow.mapPartitions(lambda rows: [(len(list(rows)), gc.get_freeze_count())]).collect())

    engine.run(store(stored), job)
    assert [read for read, _ in frozen] == [1, 1], "record batches of each task"
    assert all(count > 10_000 for _, count in frozen)


def test_a_missing_local_copy_is_read_from_the_wal_and_counted(engine: SparkEngine, stored: Stored) -> None:
    work = store(stored)
    first = work.tasks[0][0]
    local_path(stored.blocks_directory, first.stream, first.id).unlink()
    sizes: list[int] = []
    counts = engine.run(work, lambda batch: sizes.append(batch.df.count()))
    assert sizes == [20]
    assert counts.ranges == {"wal": 3, "local": 3}


def test_the_driver_reads_small_batches_alone_and_only_from_near_by(
    spark: Any, stored: Stored, engine: SparkEngine
) -> None:
    work, plan = store(stored), read_plan(stored.settings(), replace(store(stored), tasks=()), {})
    counted: list[Any] = []
    size = sum(reference.decoded_bytes for task in work.tasks for reference in task)
    for limit, is_small in ((size, True), (size - 1, False)):
        assert (SmallBatches(limit).frame(spark, work.tasks, plan, counted.append) is not None) == is_small
    assert [counts.ranges for counts in counted] == [{"local": 6}]
    before = spark.conf.get("spark.sql.execution.arrow.localRelationThreshold")
    far = msgspec.structs.replace(plan, wal_url="s3://bucket/wal")
    small = SmallBatches(1_000_000)
    first = work.tasks[0][0]
    local_path(stored.blocks_directory, first.stream, first.id).unlink()
    assert small.frame(spark, work.tasks, far, counted.append) is None, "a remote store is for the tasks"
    assert len(counted) == 1, "what the driver read without use does not count"
    left = [small.frame(spark, work.tasks, plan, counted.append) for _ in range(FRAMES_LEFT_TO_TASKS)]
    assert left == [None] * FRAMES_LEFT_TO_TASKS
    frame = small.frame(spark, work.tasks, plan, counted.append)
    assert frame is not None and frame.count() == 20
    assert counted[1].ranges == {"wal": 3, "local": 3}
    assert spark.conf.get("spark.sql.execution.arrow.localRelationThreshold") == before


def test_a_block_that_grows_when_it_is_read_is_left_to_tasks(spark: Any, stored: Stored, engine: SparkEngine) -> None:
    """INV-6: the limit holds for what is in the driver's memory."""
    rows = [row._replace(value=b"x" * 10_000) for row in filler(50)]
    reference = stored.add(*block({("a", 0): rows}, sequence=1, compression="zstd"))
    limit = 2 * reference.handle.length
    assert limit < 500_000
    work = BatchWork(1, 1, 0, False, ((reference,),))
    plan = read_plan(stored.settings(), work, {})
    assert SmallBatches(limit).frame(spark, work.tasks, plan, lambda counts: None) is None
    assert SmallBatches(600_000).frame(spark, work.tasks, plan, lambda counts: None) is not None


@pytest.mark.hdfs
def test_forked_workers_read_blocks_from_hdfs_one_batch_after_the_other(
    spark: Any, tmp_path: Path, hdfs_server: HdfsServer
) -> None:
    """Each of Spark's Python workers is a fork, and opens a client of its own, once."""
    stored = Stored(tmp_path, f"{hdfs_server.url}/{tmp_path.name}")
    engine = SparkEngine(stored.settings(), dict, spark)
    engine.start()
    work = store(stored)
    for reference in (reference for task in work.tasks for reference in task):
        local_path(stored.blocks_directory, reference.stream, reference.id).unlink()
    for _ in range(3):
        sizes: list[int] = []
        counts = engine.run(work, cast(Any, lambda batch, sizes=sizes: sizes.append(batch.df.count())))
        assert sizes == [20]
        assert set(counts.ranges) == {"wal"}


def test_an_unreadable_block_surfaces_with_its_ranges(engine: SparkEngine, stored: Stored) -> None:
    """INV-5: never an empty partition, never an anonymous failure of Java."""
    work = store(stored)
    lost = work.tasks[1][0]
    local_path(stored.blocks_directory, lost.stream, lost.id).unlink()
    Path(stored.root, "wal", lost.handle.path).unlink()
    for use in (lambda b: b.df.count(), lambda b: b.rdd.count(), lambda b: b.arrow.count(), lambda b: list(b.read())):
        with pytest.raises(UnreadableBlockError) as caught:
            engine.run(work, cast(Any, use))
        message = str(caught.value)
        assert lost.id in message
        assert "b/2[0, 4)" in message
        assert "a/1[5, 7)" in message
        assert "\n" not in message
        assert "forebay-unreadable" not in message


def test_accepted_losses_are_omitted(engine: SparkEngine, stored: Stored) -> None:
    work = store(stored)
    lost = work.tasks[1][0]
    local_path(stored.blocks_directory, lost.stream, lost.id).unlink()
    (stored.root / "wal" / lost.handle.path).unlink()
    accepted = frozenset({"b/2[0, 4)", "a/1[5, 7)", "a/1[0, 5)"})
    keep = replace(work, rerun=True, tasks=((work.tasks[0][0],), work.tasks[1]), lost=accepted)
    seen: dict[str, Any] = {}

    def job(batch: Batch) -> None:
        seen["rows"] = batch.rdd.map(lambda r: (r.topic, r.partition, r.offset)).collect()
        seen["ranges"] = [r.label for r in batch.ranges]

    engine.run(keep, job)
    assert seen["rows"] == [("a", 0, row.offset) for row in ODD_ROWS]
    assert seen["ranges"] == ["a/0[3, 13)", "b/0[0, 1)"]


def test_errors_of_the_job_are_raised_unchanged(engine: SparkEngine, stored: Stored) -> None:
    class MineError(Exception):
        pass

    def job(_: Batch) -> None:
        raise MineError("no")

    with pytest.raises(MineError, match="no"):
        engine.run(store(stored), job)


def test_a_retry_begins_only_when_the_old_tasks_have_ended(engine: SparkEngine, stored: Stored, tmp_path: Path) -> None:
    """A late task of an old attempt never writes over what the retry wrote. Threads of the job may outlive it."""
    work = store(stored)
    actions: list[threading.Thread] = []

    def linger(rows: Any) -> Any:
        """A task that takes long to notice that it was cancelled: as one that is in the middle of writing."""
        name = f"task-{next(iter(rows)).column('topic')[0]}"
        (tmp_path / f"{name}.started").touch()
        for _ in range(1500):
            if (tmp_path / "let-go").exists():
                break
            time.sleep(0.02)
        (tmp_path / f"{name}.ended").touch()
        return iter([1])

    def marks(suffix: str) -> int:
        return len(list(tmp_path.glob(f"*.{suffix}")))

    def failing(batch: Batch) -> None:
        # an action of a thread of the job's own, which the job leaves behind
        action = InheritableThread(target=lambda: _quietly(lambda: batch.arrow.mapPartitions(linger).count()))
        action.start()
        actions.append(action)
        _until(lambda: marks("started") == 2)
        raise ValueError("the job gives up while its tasks still run")

    with pytest.raises(ValueError, match="gives up"):
        engine.run(work, failing)
    (group,) = engine._groups.values()
    assert _running_tasks(engine.session.sparkContext, group) == 2
    settings = stored.settings()
    driver = msgspec.structs.replace(settings.driver, old_tasks_timeout=Duration(0.1))
    impatient = SparkEngine(msgspec.structs.replace(settings, driver=driver), dict, engine.session)
    impatient._groups.update(engine._groups)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spark_engine, "_running_tasks", lambda context, group: 2)  # Spark kills a worker before long
        with pytest.raises(JobError, match=r"2 tasks .* 0\.1 s .*driver\.old_tasks_timeout"):
            impatient.run(work, lambda _: pytest.fail("the retry did not wait"))
        impatient.stop()  # as IngestContext.stop() does, before start() makes another engine
        assert not impatient._groups
        another = SparkEngine(msgspec.structs.replace(settings, driver=driver), dict, engine.session)
        with pytest.raises(JobError, match=r"driver\.old_tasks_timeout"):
            another.run(work, lambda _: pytest.fail("the next engine did not wait"))
        another._stopping.set()
        with pytest.raises(EngineLostError):
            another.run(work, lambda _: pytest.fail("the job ran beside the old tasks"))
        assert spark_engine._LEFT_BEHIND
    seen: list[int] = []
    letting_go = threading.Timer(1.0, (tmp_path / "let-go").touch)  # while the retry waits for them
    letting_go.start()
    engine.run(work, lambda _: seen.append(_running_tasks(engine.session.sparkContext, group)))
    assert seen == [0]
    actions[0].join()
    letting_go.join()


def test_batches_side_by_side_have_groups_of_their_own_and_all_can_be_cancelled(
    engine: SparkEngine, stored: Stored, tmp_path: Path
) -> None:
    """A batch that fails cancels its own tasks, also those that a thread it left behind begins later, and no other's."""
    references = [stored.add(*block({("a", 0): filler(2, start=2 * n)}, sequence=n + 1)) for n in range(2)]
    slow, failing = (BatchWork(1 << 40 | n, n, 0, False, ((references[n - 1],),), concurrent_jobs=2) for n in (1, 2))
    context = engine.session.sparkContext
    ended: list[str] = []
    late = threading.Event()
    left_behind: list[threading.Thread] = []

    def linger(rows: Any) -> Any:
        (tmp_path / f"offset-{next(iter(rows)).column('offset')[0]}").touch()
        time.sleep(60)
        return iter([1])

    def endless(batch: Batch) -> None:
        batch.arrow.mapPartitions(linger).count()

    def run_slow() -> None:
        try:
            engine.run(slow, endless)
        except Py4JError:
            ended.append("cancelled")

    def fail(batch: Batch) -> None:
        def act_late() -> None:
            late.wait(30)
            try:
                batch.arrow.count()
            except Py4JError:
                ended.append("late")

        for target in (lambda: _quietly(lambda: endless(batch)), act_late):
            left_behind.append(InheritableThread(target=target))
            left_behind[-1].start()
        _until((tmp_path / "offset-2").exists)
        raise ValueError("no")

    thread = threading.Thread(target=run_slow)
    thread.start()
    _until((tmp_path / "offset-0").exists)
    with pytest.raises(ValueError, match="no"):
        engine.run(failing, fail)
    group = engine._groups[0, slow.batch_id]
    seen: list[int] = []
    engine.run(failing, lambda batch: seen.append(batch.arrow.count()))
    assert seen == [1]
    assert _running_tasks(context, group) == 1, "the other batch goes on"
    late.set()
    engine.cancel()
    for one in (*left_behind, thread):
        one.join(60)
        assert not one.is_alive()
    assert sorted(ended) == ["cancelled", "late"]
    engine.stop()
    assert _running_tasks(context, group) == 0, "a given session is left without tasks of the jobs that failed in it"


def _until(condition: Any) -> None:
    """Returns when ``condition`` holds: a mark left by a task in another process."""
    while not condition():
        threading.Event().wait(0.02)


def _quietly(action: Any) -> None:
    with contextlib.suppress(Py4JError):  # cancelled, as it should be
        action()


def test_sparks_pages_name_stream_batch_and_offsets_of_its_jobs(engine: SparkEngine, stored: Stored) -> None:
    work = replace(store(stored), stream="flights", output="delays", attempt=2)
    context = engine.session.sparkContext
    groups: list[str] = []

    def job(batch: Batch) -> None:
        groups.append(context.getLocalProperty("spark.jobGroup.id") or "")
        assert batch.arrow.count()

    engine.run(work, job)
    assert groups[0].startswith(f"forebay-flights-batch-{work.batch_id}-")
    java: Any = context._jsc.sc()
    java.listenerBus().waitUntilEmpty()
    (job_id,) = context.statusTracker().getJobIdsForGroup(groups[0])
    shown = java.statusStore().job(job_id)
    assert shown.description().get() == (
        f"flights: batch 7 (id {work.batch_id}), output delays, attempt 2, {work.records} records: "
        f"{offsets_text(work.ranges)}"
    )
    assert shown.jobGroup().get() == groups[0]
    assert context.getLocalProperty("spark.job.description") is None


def test_engines_of_one_session_never_share_cancelled_groups(spark: Any, stored: Stored) -> None:
    """Two streams under one session, or one engine after another, may run batches of the same number and epoch."""
    work = store(stored)

    def fail(batch: Batch) -> None:
        raise ValueError("no")

    first, second = (SparkEngine(stored.settings(), dict, spark) for _ in range(2))
    with pytest.raises(ValueError, match="no"):
        first.run(work, fail)
    seen: list[int] = []
    second.run(work, lambda batch: seen.append(batch.arrow.count()))
    assert len(seen) == 1


def test_jobs_of_a_stream_run_in_the_pool_of_its_name(engine: SparkEngine, spark: Any, stored: Stored) -> None:
    seen: list[str | None] = []
    engine.run(
        replace(store(stored), stream="s"),
        lambda _: seen.append(spark.sparkContext.getLocalProperty("spark.scheduler.pool")),
    )
    assert seen == ["s"]
    assert spark.sparkContext.getLocalProperty("spark.scheduler.pool") is None


def test_a_given_session_is_not_stopped(engine: SparkEngine, spark: Any) -> None:
    engine.stop()
    engine.start()
    assert engine.parallelism == 2
    assert spark.range(3).count() == 3
    assert os.environ["PYSPARK_PYTHON"]


def test_tasks_open_encrypted_blocks_with_keys_from_their_own_host(spark: Any, stored: Stored) -> None:
    """Each worker reads the file itself; what Spark ships and shows holds the path alone."""
    key = b"k" * 32
    keys = stored.root / "keys"
    keys.write_text(f"k {base64.b64encode(key).decode()}\n")
    keys.chmod(0o600)
    settings = stored.settings()
    settings = msgspec.structs.replace(settings, wal=msgspec.structs.replace(settings.wal, key_file=str(keys)))
    reference = stored.add(*KeyRing({"k": key}).seal(*block({("a", 0): filler(50)})))
    work = BatchWork(1 << 40 | 1, 1, 0, False, ((reference,),))
    plan = pickle.dumps(read_plan(settings, work, {}))
    assert key not in plan and base64.b64encode(key) not in plan
    engine = SparkEngine(settings, dict, spark)
    engine.start()
    seen: list[int] = []
    engine.run(work, lambda batch: seen.append(batch.df.count()))
    keys.write_text(f"other {base64.b64encode(bytes(32)).decode()}\n")
    assert seen == [50]
    fresh = stored.add(*KeyRing({"new": key}).seal(*block({("a", 0): filler(50)}, sequence=2)))
    with pytest.raises(UnreadableBlockError, match="encrypted with key 'new'"):
        engine.run(BatchWork(1 << 40 | 2, 2, 0, False, ((fresh,),)), lambda batch: batch.df.count())


def test_error_in_a_task_is_described_by_its_worker_and_repeats_of_it_leave_sparks_log_alone(
    spark: Any, stored: Stored
) -> None:
    """The JVM quotes Python's traceback in hundreds of lines of its own."""
    engine = SparkEngine(stored.settings(), dict, spark)
    engine.start()
    work = store(stored)

    def by_rows(batch: Batch) -> None:
        batch.rdd.map(lambda record: dict[str, str]()["carrier"]).collect()

    def by_frame(batch: Batch) -> None:
        batch.df.mapInArrow(lambda batches: (dict[str, str]()["carrier"] for _ in batches), "a int").collect()

    for job in (by_rows, by_frame):
        with pytest.raises(Exception) as found:  # noqa: PT011 - Spark's own, of several kinds
            engine.run(work, job)
        problem = describe(found.value)
        assert problem.error == "KeyError: 'carrier'"
        assert problem.place.startswith(f"{__file__}:")
        assert "carrier" in problem.place
        assert len(problem.trace.splitlines()) < 60
    levels = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager
    engine._given = None  # as if the engine had made the session
    try:
        for attempt, logged in ((1, True), (2, False), (1, True)):
            with pytest.raises(Exception, match="carrier"):
                engine.run(replace(work, attempt=attempt), by_rows)
            assert levels.getLogger("org.apache.spark.executor.Executor").isErrorEnabled() is logged
    finally:
        engine._given = spark


def test_engine_whose_spark_context_has_stopped_is_lost(monkeypatch: pytest.MonkeyPatch, engine: SparkEngine) -> None:
    """No attempt in this process can succeed: the driver is started again."""
    monkeypatch.setattr(spark_engine, "why_lost", lambda _: "Spark's JVM has ended: connection refused")
    with pytest.raises(EngineLostError, match="Spark's JVM has ended: connection refused"):
        engine.run(BatchWork(batch_id=1, number=1, time_ms=1, rerun=False, tasks=()), lambda _: None)
