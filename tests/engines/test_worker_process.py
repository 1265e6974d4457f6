"""Between two tasks of one worker, and two queries of one planner, collections do not traverse what modules consist of."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from direct.rdd.tasks import TaskReading, read_batches
from driver.batches.tasks.decoding import decode_in_task
from driver.batches.tasks.reading import read_in_task
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.options.access import KafkaAccess
from pyspark_forebay import DefaultSource
from pyspark_forebay.intake.batch import IntakeBatchReader
from pyspark_forebay.intake.planning import IntakeTask
from pyspark_forebay.intake.stream import IntakeStreamReader
from pyspark_forebay.kafka.batch import BatchReader
from pyspark_forebay.kafka.stream import StreamReader
from wal.reading import ReadPlan

_SETTLED = """\
import gc, sys
from forebay.process.worker_process import freeze_modules

class Loop:
    def __init__(self):
        self.own = self

freeze_modules()
modules = gc.get_freeze_count()
made = Loop()
freeze_modules()
assert gc.get_freeze_count() == modules, "what a task made is collected as before"
assert any(found is made for found in gc.get_objects())
import tomllib
freeze_modules()
assert gc.get_freeze_count() > modules, "a module that a task loaded is kept as well"
assert len(gc.get_objects()) < modules / 4
"""


def test_a_worker_keeps_its_modules_out_of_collections_and_nothing_that_tasks_make() -> None:
    subprocess.run([sys.executable, "-c", _SETTLED], check=True, timeout=300)


_FORKABLE = """\
import os, sys
from forebay_start.spark_daemon import load_worker

load_worker()
assert "pyspark.worker" in sys.modules
assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose a thread, with the locks that it holds"
assert not {"numpy", "pyarrow", "pandas"} & sys.modules.keys(), "forked workers would share numpy's random numbers"
"""


def test_what_all_workers_share_is_safe_to_fork() -> None:
    subprocess.run([sys.executable, "-c", _FORKABLE], check=True, timeout=300)


_KAFKA = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
_INTAKE = {**_KAFKA, "tracker": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("reader", "task"),
    [
        (BatchReader(_KAFKA), ()),
        (StreamReader(_KAFKA), ()),
        (IntakeBatchReader(_INTAKE), None),
        (IntakeStreamReader(_INTAKE, new_id=str), IntakeTask(ReadPlan(wal_url="memory://wal"))),
    ],
    ids=["batch", "stream", "batch over an intake", "stream over an intake"],
)
def test_every_task_of_the_source_begins_so(monkeypatch: pytest.MonkeyPatch, reader: Any, task: Any) -> None:
    begun: list[int] = []
    monkeypatch.setattr(f"{type(reader).__module__}.freeze_modules", lambda: begun.append(1))
    assert list(reader.read(InputPartition(task))) == []
    assert begun == [1]


@pytest.mark.parametrize("options", [_KAFKA, _INTAKE], ids=["kafka", "intake"])
def test_planning_of_every_query_begins_so(monkeypatch: pytest.MonkeyPatch, options: dict[str, str]) -> None:
    begun: list[int] = []
    monkeypatch.setattr("pyspark_forebay.freeze_modules", lambda: begun.append(1))
    schema = DefaultSource(options).schema()
    assert begun == [1], "the process that finds the columns"
    DefaultSource(options).reader(schema)
    assert begun == [1, 1, 1], "the process that plans a batch query, before and after it imports the reader"


_COLLECTIONS = """
import gc, sys
import pyspark.sql.worker.plan_data_source_read
from pyspark_forebay import DefaultSource
collections = []
gc.callbacks.append(lambda phase, about: collections.append((phase, about)))
modules = len(sys.modules)
source = DefaultSource({options!r})
source.reader(source.schema())
assert len(sys.modules) - modules > 50, "the reader's modules were imported"
assert [about["generation"] for phase, about in collections if about["generation"] == 2] == [], collections
assert gc.get_freeze_count() > 20_000
"""


@pytest.mark.parametrize("options", [_KAFKA, _INTAKE], ids=["kafka", "intake"])
def test_planning_traverses_all_modules_in_no_collection(options: dict[str, str]) -> None:
    code = _COLLECTIONS.replace("{options!r}", repr(options))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_planning_of_every_write_begins_so(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    monkeypatch.setattr("pyspark_forebay.freeze_modules", lambda: begun.append(1))
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    DefaultSource(options).writer(StructType([StructField("value", BinaryType())]), overwrite=False)
    assert begun == [1]


def test_every_task_of_a_job_begins_so(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    for name in ("driver.batches.tasks.reading", "driver.batches.tasks.decoding", "direct.rdd.tasks"):
        monkeypatch.setattr(f"{name}.freeze_modules", lambda name=name: begun.append(name))
    plan = ReadPlan(wal_url="memory://wal")
    list(read_in_task([], plan, lambda counts: None))
    assert begun == ["driver.batches.tasks.reading"]
    monkeypatch.setattr("driver.batches.tasks.decoding.decode_task", lambda *given: iter(()))
    list(decode_in_task([], 0, plan, lambda counts: None, None, None))  # type: ignore[arg-type]
    assert begun[1:] == ["driver.batches.tasks.decoding"]
    how = TaskReading(KafkaAccess({}, "g"), Reading())
    list(read_batches(how, 0, []))
    assert len(begun) == 2, "Spark's driver reads so too, and is no worker"
    monkeypatch.setattr("direct.rdd.tasks.TaskContext.get", lambda: SimpleNamespace(attemptNumber=lambda: 0))
    list(read_batches(how, 0, []))
    assert begun[2:] == ["direct.rdd.tasks"]
