"""Keyed state in Spark's tasks: the same files, shards and rows as without Spark, written by tasks in parallel, on S3 and HDFS
too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.batches.local_engine import LocalEngine
from driver.spark.engine import SparkEngine
from forebay.model.errors import UsageError
from forebay.settings.schema import Settings
from tests.support.state.states import COUNTS, StateLine, as_dict, counts, table
from tests.support.state.stored import Stored
from tests.support.stores import s3
from tests.support.stores.contract import STORES

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def line(spark: Any, tmp_path: Path) -> StateLine:
    stored = Stored(tmp_path)
    return line_of(stored, stored.settings(), spark)


@pytest.fixture(params=["s3", pytest.param("hdfs", marks=(pytest.mark.long, pytest.mark.hdfs))])
def line_in_store(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Iterator[StateLine]:
    (tmp_path / "store").mkdir()
    with STORES[request.param](tmp_path / "store") as store:
        store.begin()
        stored = Stored(tmp_path, store.url, store.options)
        # the workers of this session were started without the store's environment
        keys = {"s3": {"key": s3.ACCESS_KEY, "secret": s3.SECRET_KEY}}
        options = {scheme: {**options, **keys[scheme]} for scheme, options in store.options.items()}
        yield line_of(stored, msgspec.structs.replace(stored.settings(), storage=options), spark)


def line_of(stored: Stored, settings: Settings, spark: Any) -> StateLine:
    engine = SparkEngine(settings, dict, spark)

    def run(stored: Stored, work: BatchWork, job: Callable[[Batch], Any]) -> None:
        engine.start()
        engine.run(work, job)

    return StateLine(stored.root, run, stored)


def test_spark_and_the_driver_write_and_read_the_same_shards(line_in_store: StateLine, spark: Any) -> None:
    """A batch may go through DataFrames or tables: both find each other's rows, and delete them."""
    line, size = line_in_store, 500

    def frame(rows: dict[str, int]) -> Any:
        return spark.createDataFrame(list(rows.items()), "key string, count int")  # int fits a state's bigint

    def first(batch: Batch) -> None:
        state = batch.state("counts", "key string, count bigint", "key", shards=4)
        assert state.df.collect() == []
        state.write(frame({f"k{n}": n for n in range(size)}))
        assert state.changed.count() == size
        assert state.df.count() == 0, "it shows the state before the batch"

    line.run(1, first)
    expected = {f"k{n}": n for n in range(size)}

    def second(batch: Batch) -> None:
        state = counts(batch)
        assert as_dict(state.read()) == as_dict(state.df.toArrow()) == expected
        state.write(table(k1=-1, new=5), delete=spark.createDataFrame([("k2",), ("k3",)], "key string"))

    line.run(2, second)
    expected |= {"k1": -1, "new": 5}
    del expected["k2"], expected["k3"]

    def by_table(batch: Batch) -> None:
        state = counts(batch)
        assert as_dict(state.df.toArrow()) == expected
        state.write(table(k4=-4), delete=pa.table({"key": ["k5"]}))

    line.run(3, by_table)
    expected["k4"] = -4
    del expected["k5"]

    def add(known: pa.Table, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        changed = rows.join(known, "key", join_type="left outer", right_suffix="_known")
        before: Any = pc.fill_null(changed.column("count"), pa.scalar(0, pa.int64()))
        total: Any = pc.add(changed.column("seen"), before)
        gone = pc.equal(total, pa.scalar(0))
        made = pa.table({"key": changed.column("key"), "count": total})
        return made.filter(pc.invert(gone)), made.filter(gone).select(["key"])

    def by_function(batch: Batch) -> None:
        state = counts(batch)
        rows = spark.createDataFrame([("k6", 10), ("k7", -7), ("again", 3)], "key string, seen bigint")
        state.update(rows, add)
        assert as_dict(state.changed.toArrow()) == {"k6": 16, "again": 3}

    line.run(4, by_function, complete=False)
    line.run(4, by_function)
    expected |= {"k6": 16, "again": 3}
    del expected["k7"]
    line.run(5, lambda batch: check(as_dict(counts(batch).df.toArrow()), expected))
    LocalEngine(line.stored.settings(), dict).run(
        line.work(6), lambda batch: check(as_dict(counts(batch).read()), expected)
    )


def check(found: dict[str, int], expected: dict[str, int]) -> None:
    assert found == expected


def test_keys_time_out_in_tasks_and_mistakes_name_themselves(line: StateLine, spark: Any) -> None:
    start = 1_700_000_000_000
    line.run(1, lambda batch: counts(batch, timeout=1).write(table(a=1, b=2)), time_ms=start)

    def second(batch: Batch) -> None:
        state = counts(batch, timeout=1)
        state.write(spark.createDataFrame([("b", 3)], "key string, count bigint"))
        assert state.df.collect() == []
        assert as_dict(state.expired.toArrow()) == as_dict(state.read_expired()) == {"a": 1, "b": 2}

    line.run(2, second, time_ms=start + 5_000)

    def twice(batch: Batch) -> None:
        counts(batch).write(spark.createDataFrame([("b", 3), ("b", 4)], "key string, count bigint"))

    with pytest.raises(Exception, match="more than once"):
        line.run(3, twice)
    with pytest.raises(UsageError, match="can't be read"):
        line.run(3, lambda batch: batch.state("x", "no schema,", "key"))
    assert COUNTS.names == ["key", "count"]


def test_rows_with_dictionaries_and_views_are_written_beside_a_frame_of_keys(line: StateLine, spark: Any) -> None:
    """Spark knows neither; the state keeps the type of their values."""
    labels = pa.dictionary(pa.int32(), pa.string())
    columns = pa.schema([("key", pa.string()), ("label", labels), ("text", pa.string_view())])

    def job(batch: Batch) -> None:
        rows = {
            "key": ["a", "b"],
            "label": pa.array(["x", "y"], labels),
            "text": pa.array(["t", None], pa.string_view()),
        }
        keys = spark.createDataFrame([("c",)], "key string")
        batch.state("s", columns, "key", shards=2).write(pa.table(rows), delete=keys)

    line.run(1, job)

    def read(batch: Batch) -> None:
        state = batch.state("s", columns, "key", shards=2)
        for rows in (state.read(), state.df.toArrow()):
            found = rows.sort_by("key").to_pydict()
            assert found == {"key": ["a", "b"], "label": ["x", "y"], "text": ["t", None]}

    line.run(2, read)
