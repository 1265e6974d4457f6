"""RDDs and DataFrames whose partitions say on which hosts they had best be run: those that hold a task's blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession

from driver.batches.tasks import TaskBlocks, preferred_hosts
from wal.reading import BlockReference

#: what Spark takes for names of another kind (an executor, a cached file), not for hosts
_NO_HOSTS = ("executor_", "hdfs_cache_")


def executors(context: SparkContext) -> frozenset[str]:
    """Those that Spark has now, as host:port: the host by the name that it knows it by, the port another one after a restart."""
    java: Any = context._jsc.sc()
    places = java.getExecutorMemoryStatus().keySet().mkString(" ").split()  # the driver's own among them
    alive = {host for host in hosts_of(places) if java.taskScheduler().hasExecutorsAliveOnHost(host)}
    return frozenset(place for place in places if hosts_of([place]) <= alive)


def hosts_of(executors: Collection[str]) -> frozenset[str]:
    return frozenset(place.rpartition(":")[0] for place in executors)


def partitions_on(context: SparkContext, rows: Sequence[tuple[bytes, tuple[str, ...]]]) -> RDD[bytes]:
    """Each of ``rows`` is one partition, for which Spark prefers its hosts; what is mapped over it keeps that."""
    return _in_python(_scala_rdd(context, [(data, _hosts(hosts)) for data, hosts in rows]), context)


class PlacedRows:
    """Each of ``rows`` is one partition, for which Spark prefers its places: hosts, or ``executor_<host>_<id>``."""

    def __init__(self, context: SparkContext, rows: Sequence[tuple[bytes, tuple[str, ...]]]) -> None:
        self._context = context
        self._scala: Any = _scala_rdd(context, rows)

    def rdd(self) -> RDD[bytes]:
        return _in_python(self._scala, self._context)

    def frame(self, session: SparkSession) -> DataFrame:
        """With one binary column."""
        jvm: Any = self._context._jvm
        java: Any = session._jsparkSession
        encoder = jvm.org.apache.spark.sql.Encoders.BINARY()
        return DataFrame(java.createDataset(self._scala, encoder).toDF(), session)


class TaskPartitions:
    """Each of ``tasks`` is one partition, whose only row is its :class:`TaskBlocks` as bytes. Of ``hosts`` alone are any
    preferred: for one without an executor Spark would wait in vain."""

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
    """Made in the JVM, because what Python makes has no preferred locations."""
    jvm: Any = context._jvm

    def sequence(items: Sequence[Any]) -> Any:
        found = jvm.java.util.ArrayList()
        for item in items:
            found.add(item)
        return jvm.PythonUtils.toSeq(found)

    seen: dict[tuple[str, ...], Any] = {}
    pairs = []
    for data, hosts in rows:
        if hosts not in seen:
            seen[hosts] = sequence(hosts)
        pairs.append(jvm.scala.Tuple2(data, seen[hosts]))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    java: Any = context._jsc.sc()
    return java.makeRDD(sequence(pairs), tag)


def _in_python(scala: Any, context: SparkContext) -> RDD[bytes]:
    return RDD(scala.toJavaRDD(), context, NoOpSerializer())
