"""A batch's tasks as an RDD or DataFrame, one partition each, with the hosts that hold their blocks as preferred locations."""

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
    """The hosts that Spark has executors on now, by the names that it knows them by; the driver's among them."""
    java: Any = context._jsc.sc()
    return frozenset(
        place.rpartition(":")[0] for place in java.getExecutorMemoryStatus().keySet().mkString(" ").split()
    )


class TaskPartitions:
    """Each of ``tasks`` is one partition, whose only row is its :class:`TaskBlocks` as bytes.

    Made in the JVM, because what Python makes has no preferred locations; what is mapped over it keeps them. Of ``hosts``
    alone: for one without an executor Spark would wait in vain.
    """

    def __init__(
        self, session: SparkSession, tasks: Sequence[Sequence[BlockReference]], hosts: Collection[str]
    ) -> None:
        self._session = session
        self._scala: Any = _scala_rdd(session.sparkContext, tasks, hosts)

    def rdd(self) -> RDD[bytes]:
        return RDD(self._scala.toJavaRDD(), self._session.sparkContext, NoOpSerializer())

    def frame(self) -> DataFrame:
        """With one binary column."""
        encoders = self._session.sparkContext._jvm.org.apache.spark.sql.Encoders  # type: ignore[union-attr, unused-ignore]
        java: Any = self._session._jsparkSession
        return DataFrame(java.createDataset(self._scala, encoders.BINARY()).toDF(), self._session)


def _scala_rdd(context: SparkContext, tasks: Sequence[Sequence[BlockReference]], known: Collection[str]) -> Any:
    jvm: Any = context._jvm

    def sequence(items: Sequence[Any]) -> Any:
        found = jvm.java.util.ArrayList()
        for item in items:
            found.add(item)
        return jvm.PythonUtils.toSeq(found)

    hosts_seen: dict[tuple[str, ...], Any] = {}
    rows = []
    for number, references in enumerate(tasks):
        preferred = preferred_hosts(references)
        hosts = tuple(host for host in preferred if host in known and not host.startswith(_NO_HOSTS))
        if hosts not in hosts_seen:
            hosts_seen[hosts] = sequence(hosts)
        rows.append(jvm.scala.Tuple2(TaskBlocks(number, tuple(references)).encode(), hosts_seen[hosts]))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    java: Any = context._jsc.sc()
    return java.makeRDD(sequence(rows), tag)
