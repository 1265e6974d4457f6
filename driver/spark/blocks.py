"""RDDs and DataFrames whose partitions name preferred hosts: the hosts with copies of a task's blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession

from driver.batches.tasks.reading import TaskBlocks
from wal.reading import BlockReference

#: prefixes by which Spark recognises other places than hosts (an executor, a cached file)
_NO_HOSTS = ("executor_", "hdfs_cache_")


def executors(context: SparkContext) -> frozenset[str]:
    """Return Spark's present executors as host:port. The host has the name that Spark uses; the port changes with a restart."""
    java: Any = context._jsc.sc()
    places = java.getExecutorMemoryStatus().keySet().mkString(" ").split()  # includes the driver
    alive = {host for host in hosts_of(places) if java.taskScheduler().hasExecutorsAliveOnHost(host)}
    return frozenset(place for place in places if hosts_of([place]) <= alive)


def hosts_of(executors: Collection[str]) -> frozenset[str]:
    """Return the hosts of ``executors`` (host:port)."""
    return frozenset(place.rpartition(":")[0] for place in executors)


def preferred_hosts(references: Sequence[BlockReference], hosts: Collection[str]) -> tuple[str, ...]:
    """Return the preferred hosts of a task, sorted: the hosts in ``hosts`` that have copies of the most bytes of its blocks; ()
    if none has a copy."""
    held: dict[str, int] = {}
    for reference in references:
        for host in reference.hosts:
            if host in hosts:
                held[host] = held.get(host, 0) + reference.handle.length
    most = max(held.values(), default=0)
    return tuple(sorted(host for host, size in held.items() if size == most))


def partitions_on(context: SparkContext, rows: Sequence[tuple[bytes, tuple[str, ...]]]) -> RDD[bytes]:
    """Return an RDD with one partition for each of ``rows`` (data, preferred hosts). RDDs that are mapped from it keep the
    hosts."""
    return _in_python(_scala_rdd(context, [(data, _hosts(hosts)) for data, hosts in rows]), context)


class PlacedRows:
    """One partition for each of ``rows`` (data, preferred places). A place is a host, or ``executor_<host>_<id>``."""

    def __init__(self, context: SparkContext, rows: Sequence[tuple[bytes, tuple[str, ...]]]) -> None:
        self._context = context
        self._scala: Any = _scala_rdd(context, rows)

    def rdd(self) -> RDD[bytes]:
        return _in_python(self._scala, self._context)

    def frame(self, session: SparkSession) -> DataFrame:
        """Return a DataFrame with one binary column."""
        jvm: Any = self._context._jvm
        java: Any = session._jsparkSession
        encoder = jvm.org.apache.spark.sql.Encoders.BINARY()
        return DataFrame(java.createDataset(self._scala, encoder).toDF(), session)


class TaskPartitions:
    """One partition for each of ``tasks``; its only row is its :class:`TaskBlocks` as bytes.

    Only the hosts in ``hosts`` are preferred, because Spark would wait until its locality timeout for a host without an
    executor.
    """

    def __init__(
        self, session: SparkSession, tasks: Sequence[Sequence[BlockReference]], hosts: Collection[str]
    ) -> None:
        rows = []
        for number, references in enumerate(tasks):
            places = _hosts(preferred_hosts(references, hosts))
            rows.append((TaskBlocks(number, tuple(references)).encode(), places))
        self._session = session
        self._rows = PlacedRows(session.sparkContext, rows)

    def rdd(self) -> RDD[bytes]:
        return self._rows.rdd()

    def frame(self) -> DataFrame:
        return self._rows.frame(self._session)


def _hosts(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if not name.startswith(_NO_HOSTS))


def _scala_rdd(context: SparkContext, rows: Sequence[tuple[bytes, tuple[str, ...]]]) -> Any:
    """Return an RDD made in the JVM, because RDDs made in Python have no preferred locations."""
    jvm: Any = context._jvm
    # a class is looked up by a call to the JVM for each part of its name
    array, pair, to_seq = jvm.java.util.ArrayList, jvm.scala.Tuple2, jvm.PythonUtils.toSeq

    def sequence(items: Sequence[Any]) -> Any:
        found = array()
        for item in items:
            found.add(item)
        return to_seq(found)

    seen: dict[tuple[str, ...], Any] = {}
    pairs = []
    for data, hosts in rows:
        if hosts not in seen:
            seen[hosts] = sequence(hosts)
        pairs.append(pair(data, seen[hosts]))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    java: Any = context._jsc.sc()
    return java.makeRDD(sequence(pairs), tag)


def _in_python(scala: Any, context: SparkContext) -> RDD[bytes]:
    return RDD(scala.toJavaRDD(), context, NoOpSerializer())
