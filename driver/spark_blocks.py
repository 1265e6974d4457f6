"""RDDs and DataFrames whose partitions say on which hosts they had best be run: those that hold a task's blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession

from driver.spark_tasks import TaskBlocks, preferred_hosts
from wal.reading import BlockReference

#: what Spark takes for names of another kind (an executor, a cached file), not for hosts
_NO_HOSTS = ("executor_", "hdfs_cache_")


def executor_hosts(context: SparkContext) -> frozenset[str]:
    """The hosts that Spark has executors on now, by the names that it knows them by."""
    java: Any = context._jsc.sc()
    places = java.getExecutorMemoryStatus().keySet().mkString(" ").split()  # the driver's own among them
    hosts = {place.rpartition(":")[0] for place in places}
    return frozenset(host for host in hosts if java.taskScheduler().hasExecutorsAliveOnHost(host))


def partitions_on(context: SparkContext, rows: Sequence[tuple[bytes, tuple[str, ...]]]) -> RDD[bytes]:
    """Each of ``rows`` is one partition, for which Spark prefers its hosts; what is mapped over it keeps that."""
    return _in_python(_scala_rdd(context, rows), context)


class TaskPartitions:
    """Each of ``tasks`` is one partition, whose only row is its :class:`TaskBlocks` as bytes. Of ``hosts`` alone are any
    preferred: for one without an executor Spark would wait in vain."""

    def __init__(
        self, session: SparkSession, tasks: Sequence[Sequence[BlockReference]], hosts: Collection[str]
    ) -> None:
        rows = []
        for number, references in enumerate(tasks):
            rows.append((TaskBlocks(number, tuple(references)).encode(), preferred_hosts(references, hosts)))
        self._session = session
        self._scala: Any = _scala_rdd(session.sparkContext, rows)

    def rdd(self) -> RDD[bytes]:
        return _in_python(self._scala, self._session.sparkContext)

    def frame(self) -> DataFrame:
        """With one binary column."""
        jvm: Any = self._session.sparkContext._jvm
        java: Any = self._session._jsparkSession
        encoder = jvm.org.apache.spark.sql.Encoders.BINARY()
        return DataFrame(java.createDataset(self._scala, encoder).toDF(), self._session)


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
            seen[hosts] = sequence([host for host in hosts if not host.startswith(_NO_HOSTS)])
        pairs.append(jvm.scala.Tuple2(data, seen[hosts]))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    java: Any = context._jsc.sc()
    return java.makeRDD(sequence(pairs), tag)


def _in_python(scala: Any, context: SparkContext) -> RDD[bytes]:
    return RDD(scala.toJavaRDD(), context, NoOpSerializer())
