"""``batch.decode`` in Spark's tasks: rows of the schema, and dead letters written by the tasks themselves, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from driver.batches.job.batch import Batch
from driver.batches.job.dead_letters import confirm_dead_letters
from driver.batches.job.work import BatchWork
from driver.batches.tasks.reading import KafkaRecord
from driver.spark.engine import SparkEngine
from forebay.model.errors import UnreadableBlockError, UsageError
from forebay.settings.schema import DeadLetterSettings
from tests.support.state.columns import schema_of
from tests.support.state.rows import Row, block
from tests.support.state.stored import Stored
from wal import dead_letters
from wal.storage import open_storage

pytestmark = [
    pytest.mark.spark,
    # py4j and Spark's own start-up leave files and sockets to the collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def work(stored: Stored) -> BatchWork:
    tasks = []
    for task in range(2):
        rows = [Row(b"k", b"bad" if n == 3 else b"%d" % n, n) for n in range(6)]
        tasks.append((stored.add(*block({("a", task): rows}, sequence=task + 1)),))
    return BatchWork(1 << 40 | 1, 1, 1_700_000_000_000, False, tuple(tasks), stream="s", epoch=5, output="jobs:process")


def test_tasks_return_decoded_rows_and_store_dead_letters_once_even_if_they_run_twice(
    stored: Stored, spark: Any, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/letters"
    plain = stored.settings()
    settings = msgspec.structs.replace(
        plain,
        dead_letters=DeadLetterSettings(url=url),
        kafka=msgspec.structs.replace(plain.kafka, read_blocks=False),  # there is no broker
    )
    engine = SparkEngine(settings, dict, spark)
    engine.start()
    batch_work = work(stored)
    seen: list[Any] = []

    def number(record: KafkaRecord) -> dict[str, Any]:
        assert record.value is not None
        return {"where": f"{record.partition}@{record.offset}", "number": int(record.value)}

    def numbers(rows: pa.RecordBatch) -> pa.RecordBatch:
        texts = pa.array(
            [f"{p}@{o}" for p, o in zip(*(rows.column(n).to_pylist() for n in ("partition", "offset")), strict=True)]
        )
        return pa.record_batch([texts, rows.column("value").cast(pa.string()).cast(pa.int64())], ["where", "number"])

    def job(batch: Batch) -> None:
        decoded = batch.decode(number, "where string, number bigint")
        seen.append(decoded.count())
        seen.append([tuple(row) for row in decoded.collect()])
        whole = batch.decode_arrow(numbers, decoded.schema)
        assert [tuple(row) for row in whole.collect()] == seen[1]
        seen.append([row for part in batch.read_decoded(numbers, NUMBERS, arrow=True) for row in part.to_pylist()])
        with pytest.raises(UsageError, match="can't be read"):
            batch.decode(number, "no such type at all (")

    engine.run(batch_work, job)
    confirm_dead_letters(batch_work)
    count, rows, here = seen
    assert count == 10
    assert rows == [(f"{task}@{n}", n) for task in range(2) for n in range(6) if n != 3]
    assert [tuple(row.values()) for row in here] == rows
    storage = open_storage(url)
    (found,) = dead_letters.counting(storage.list(dead_letters.stream_folder("s")))
    assert found.done
    assert [letters.records for letters in found.letters] == [
        1
    ] * 6  # two tasks of three calls; both actions of one: once
    kept = [row for _, table in dead_letters.tables(storage, found) for row in table.to_pylist()]
    assert sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in kept) == [
        ("a", 0, 3, b"bad"), ("a", 1, 3, b"bad"),
    ]  # fmt: skip

    # INV-5: what can't be read is no dead letter
    for path in [*stored.blocks_directory.rglob("*.block"), *(stored.root / "wal").rglob("*.seg")]:
        path.unlink()
    with pytest.raises(UnreadableBlockError, match=r"a/\d\[0, 6\)"):
        engine.run(batch_work, lambda batch: batch.decode(number, "where string, number bigint").collect())


NUMBERS = schema_of(where=pa.string(), number=pa.int64())
