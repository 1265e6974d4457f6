"""Queries of a Kafka source, and Spark's results: the same for Spark's source and for this project's, to compare them.

Needs only pyspark. ``python -m tests.support.spark.queries FORMAT CONF`` answers one query per line of its input, as JSON, in
its own session.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.spark import planners

#: how a row is given, so that JSON can hold it
_COLUMNS = (
    "hex(key) key", "hex(value) value", "topic", "partition", "offset", "unix_micros(timestamp) timestamp", "timestampType",
)  # fmt: skip
_HEADERS = "transform(headers, h -> struct(h.key, hex(h.value) value)) headers"
_TALLY = "count(1) records", "sum(length(key) + length(value)) bytes"
#: seconds that a query may take, and one that follows changes
_PATIENCE_SECONDS, _LONG_PATIENCE_SECONDS = 120, 240


def answer(spark: Any, source: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """``question["kind"]``:

    * ``batch``: ``options`` → ``schema``, ``rows``, and the number of ``tasks`` that read any;
    * ``stream``: ``options``, ``checkpoint``, ``trigger`` ("available", "once" or "all": whatever there is by many triggers)
      → ``batches`` (id → rows), ``offsets`` (id → Spark's own JSON), ``progress`` (of each trigger that read something, its
      sources: offsets and metrics). With a ``shape`` of ``_SHAPES``, ``batches`` has the rows of all batches together, and
      ``watermark`` the last one;
    * ``tally``: ``options`` → ``seconds`` that it takes to count records, keys and bytes, and what they are;
    * ``drain``: ``options``, ``checkpoint``, ``trigger`` ("all", "second" or, by default, "available") → ``triggers``,
      milliseconds and records of each that a stream takes to read all;
    * ``trickle``: ``options``, ``checkpoint``, ``count`` → the same of so many triggers that read something, while records come;
    * ``latency``: ``options``, ``checkpoint``, ``records``, ``job_seconds`` → ``calls`` of a job by the fastest trigger, until it
      has seen so many records: the time of each call (ms), and for each append time in its batch the number of records. The
      job waits for ``job_seconds`` at its end.
    * ``follow``: ``options``, ``checkpoint``, ``goal`` → ``seen``: the sorted offsets of each "topic/partition", when the file
      ``goal`` exists and each partition in it has so many;
    * ``stop``: ``options``, ``checkpoint``, ``gone`` → ``seconds`` that the query takes to stop, once the file ``gone`` exists
      and it asks for offsets.

    ``question["source"]`` stands for ``source``: "idle" for ``tests.support.spark.idle_source``. Whatever Spark refuses is in
    ``refused``: its message.
    """
    kinds = {
        "batch": _batch,
        "stream": _stream,
        "tally": _tally,
        "drain": _drain,
        "trickle": _trickle,
        "latency": _latency,
        "follow": _follow,
        "stop": _stop,
    }
    try:
        return kinds[question["kind"]](spark, question.get("source", source), question)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def _batch(spark: Any, source: str, question: Mapping[str, Any]) -> dict[str, Any]:
    frame = spark.read.format(source).options(**question["options"]).load()
    rows = _rows(frame, "spark_partition_id() task")
    return {"schema": frame.schema.simpleString(), "tasks": len({row.pop("task") for row in rows}), "rows": rows}


def _rows(frame: Any, *more: str) -> list[dict[str, Any]]:
    columns = [*_COLUMNS, *more, *([_HEADERS] if "headers" in frame.columns else [])]
    found = [row.asDict(True) for row in frame.selectExpr(*columns).collect()]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def _stream(spark: Any, source: str, question: Mapping[str, Any]) -> dict[str, Any]:
    batches: dict[str, Any] = {}
    shape = _SHAPES.get(question.get("shape", ""))

    def keep(frame: Any, number: int) -> None:
        if shape is None:
            batches[str(number)] = _rows(frame)
        else:
            batches["all"] = sorted([*batches.get("all", ()), *(list(row) for row in frame.collect())])

    checkpoint = Path(question["checkpoint"])
    found: dict[str, Any] = {"batches": batches}
    try:
        frame = spark.readStream.format(source).options(**question["options"]).load()
        shaped = frame if shape is None else shape(frame)
        writer = shaped.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
        query = planners.started(lambda: _run(writer, question["trigger"]))
        progress = [_progress(own, source) for own in query.recentProgress]
        found["progress"] = [_places(own) for own in progress if own["numInputRows"]]
        if shape is not None:
            found["watermark"] = progress[-1].get("eventTime", {}).get("watermark")
    except Exception as error:
        found["refused"] = f"{type(error).__name__}: {error}"
    found["offsets"] = {
        entry.name: json.loads(entry.read_text().splitlines()[-1])
        for entry in sorted((checkpoint / "offsets").glob("*"))
        if entry.name.isdigit()
    }
    return found


def _windows(frame: Any) -> Any:
    """Records of each window that the watermark has closed; records come a millisecond apart."""
    by_time = frame.withWatermark("timestamp", "2 milliseconds").selectExpr(
        "window(timestamp, '4 milliseconds') w", "partition"
    )
    return by_time.groupBy("w", "partition").count().selectExpr("unix_millis(w.start)", "partition", "count")


def _pairs(frame: Any) -> Any:
    """The stream joined with itself."""
    left, right = frame.selectExpr("partition", "offset"), frame.selectExpr("partition other", "offset same")
    return left.join(right, left["offset"] == right["same"]).select("offset", "partition", "other")


_SHAPES = {"windows": _windows, "pairs": _pairs}


def _progress(progress: Any, source: str) -> dict[str, Any]:
    """As Spark's Kafka source reports it."""
    if source != "forebay":
        found: dict[str, Any] = json.loads(progress.json)
        return found
    from pyspark_forebay.progress import kafka_progress

    return kafka_progress(progress)


def _places(progress: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = ("startOffset", "endOffset", "latestOffset", "metrics", "numInputRows")
    return [{name: own.get(name) for name in names} for own in progress["sources"]]


def _run(writer: Any, trigger: str) -> Any:
    triggers: dict[str, dict[str, Any]] = {
        "available": {"availableNow": True},
        "once": {"once": True},
        "all": {"processingTime": "0 seconds"},
        "second": {"processingTime": "1 second"},
    }
    query = writer.trigger(**triggers[trigger]).start()
    try:
        if trigger in ("all", "second"):
            query.processAllAvailable()
        elif not query.awaitTermination(_PATIENCE_SECONDS):
            raise RuntimeError(f"the query did not end within {_PATIENCE_SECONDS} s")
    finally:
        query.stop()
    return query


def _tally(spark: Any, source: str, question: Mapping[str, Any]) -> dict[str, Any]:
    begun = time.monotonic()
    frame = spark.read.format(source).options(**question["options"]).load()
    row = frame.selectExpr(*_TALLY).first()
    return {"seconds": time.monotonic() - begun, **row.asDict()}


def _drain(spark: Any, source: str, question: Mapping[str, Any]) -> dict[str, Any]:
    query = _run(_nowhere(spark, source, question), question.get("trigger", "available"))
    return {"triggers": _triggers(query)}


def _trickle(spark: Any, source: str, question: Mapping[str, Any]) -> dict[str, Any]:
    query = _nowhere(spark, source, question).trigger(processingTime="0 seconds").start()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    try:
        while len(_triggers(query)) < question["count"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(_triggers(query))} triggers alone within {_PATIENCE_SECONDS} s")
            if query.awaitTermination(0.2):
                raise RuntimeError("the query has ended")
    finally:
        query.stop()
    return {"triggers": _triggers(query)}


def appended_times(frame: Any) -> list[int]:
    """A job with a shuffle: the time of each record of ``frame`` (ms), by an aggregation."""
    counts = frame.groupBy(frame.timestamp.alias("at")).count().selectExpr("unix_millis(at)", "count").collect()
    return [at for at, count in counts for _ in range(count)]


def _latency(spark: Any, source: str, question: Mapping[str, Any]) -> dict[str, Any]:
    calls: list[tuple[int, Counter[int]]] = []
    never = threading.Event()

    def job(frame: Any, number: int) -> None:
        called_ms = int(time.time() * 1000)
        times = Counter(appended_times(frame))
        never.wait(question["job_seconds"])
        calls.append((called_ms, times))

    frame = spark.readStream.format(source).options(**question["options"]).load()
    writer = frame.writeStream.foreachBatch(job).option("checkpointLocation", question["checkpoint"])
    query = writer.trigger(processingTime="0 seconds").start()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    try:
        while sum(times.total() for _, times in calls) < question["records"]:
            if query.awaitTermination(0.2) or time.monotonic() > deadline:
                raise RuntimeError("the query did not read all records")
    finally:
        query.stop()
    return {"calls": [(called_ms, list(times.items())) for called_ms, times in calls]}


def _follow(spark: Any, source: str, question: Mapping[str, Any]) -> dict[str, Any]:
    seen: dict[str, list[int]] = {}
    goal = Path(question["goal"])

    def keep(frame: Any, number: int) -> None:
        for topic, partition, offset in frame.select("topic", "partition", "offset").collect():
            seen.setdefault(f"{topic}/{partition}", []).append(offset)

    def done() -> bool:
        wanted = json.loads(goal.read_text()) if goal.exists() else {"": 1}
        return all(len(seen.get(partition, ())) >= count for partition, count in wanted.items())

    frame = spark.readStream.format(source).options(**question["options"]).load()
    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", question["checkpoint"])
    query = planners.started(lambda: _until(writer, done))
    return {
        "seen": {partition: sorted(offsets) for partition, offsets in seen.items()},
        "batches": len(query.recentProgress),
    }


def _stop(spark: Any, source: str, question: Mapping[str, Any]) -> dict[str, Any]:
    gone = Path(question["gone"])
    asking: list[bool] = []

    def done() -> bool:
        """Whether it asks for offsets at two looks, one after the other."""
        asking.append(gone.exists() and query.status["message"].startswith("Getting offsets"))
        return asking[-2:] == [True, True]

    query = _nowhere(spark, source, question).trigger(processingTime="0 seconds").start()
    _wait(query, done)
    begun = time.monotonic()
    query.stop()
    seconds = time.monotonic() - begun
    error = query.exception()
    return {"seconds": seconds, **({} if error is None else {"refused": str(error)})}


def _until(writer: Any, done: Callable[[], bool]) -> Any:
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        _wait(query, done)
    finally:
        query.stop()
    return query


def _wait(query: Any, done: Callable[[], bool]) -> None:
    """Until ``done``. Raises what ends the query before."""
    deadline = time.monotonic() + _LONG_PATIENCE_SECONDS
    while not done():
        if query.awaitTermination(0.2) or time.monotonic() > deadline:
            raise RuntimeError("the query did not come so far")


def _nowhere(spark: Any, source: str, question: Mapping[str, Any]) -> Any:
    frame = spark.readStream.format(source).options(**question["options"]).load()
    return frame.writeStream.format("noop").option("checkpointLocation", question["checkpoint"])


def _triggers(query: Any) -> list[tuple[int, int]]:
    every = [json.loads(own.json) for own in query.recentProgress]
    return [(own["durationMs"]["triggerExecution"], own["numInputRows"]) for own in every if own["numInputRows"]]


def main(source: str, conf: str) -> None:
    from pyspark.sql import SparkSession

    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever prints must not be taken for an answer
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        **json.loads(conf),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if source == "forebay":
        from tests.support.spark.idle_source import IdleSource

        spark.dataSource.register(IdleSource)
    for line in sys.stdin:
        try:
            given = answer(spark, source, json.loads(line))
        except BaseException:
            given = {"failed": traceback.format_exc()}
        answers.write(json.dumps(given) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
