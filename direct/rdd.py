"""RDDs over exact offsets of Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.core.rdd import PipelinedRDD

from direct.deserializers import Deserializer, deserializer
from direct.intake import IntakeAccess, Through
from direct.locations import Executor, LocationStrategy, PreferBrokers, PreferConsistent, places
from direct.parameters import checked_options, tell
from direct.tasks import TaskReading, encode, read_batches, read_records
from driver.batches.tasks import KafkaRecord
from driver.spark.blocks import PlacedRows
from driver.spark.executors import bring
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.planning import sizes, split_ranges
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.consume.spans import Span
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import UsageError


def create_rdd(
    sc: Any,
    kafka_params: Mapping[str, object],
    offset_ranges: Sequence[Span],
    location_strategy: LocationStrategy = PreferConsistent(),  # noqa: B008 - a value
    *,
    key_deserializer: Deserializer = None,
    value_deserializer: Deserializer = None,
    headers: bool = False,
    allow_offset_gaps: bool = False,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
    timeout_seconds: float = 20.0,
    range_seconds_max: float | None = None,
    keep_consumers: bool = True,
    consumers_max: int = 4,
    consumer_idle_seconds: float = 300.0,
    ship_code: bool = True,
    tracker: IntakeAccess | str | None = None,
) -> KafkaRDD:
    """The records of ``offset_ranges`` (``direct.OffsetRange``) as an RDD of :class:`KafkaRecord`, read when it is used.

    ``sc``: a SparkContext or SparkSession. ``kafka_params``: as for Kafka's Java client or librdkafka (docs/KAFKA_OPTIONS.md).
    Only committed records count, unless ``isolation.level`` is ``read_uncommitted``. There is one Spark partition for each
    range that is not empty, or more by ``min_partitions`` and ``max_records_per_partition``: large ranges are cut.

    ``key_deserializer``, ``value_deserializer``: a name of ``direct.deserializers.BY_NAME``, ``module:function`` or a function
    of bytes; null stays None. ``allow_offset_gaps``: whether offsets may hold no record, as in compacted topics or transactions.
    ``timeout_seconds``: how long a broker may give nothing. ``range_seconds_max``: how long one range may take. Each Python
    worker keeps up to ``consumers_max`` idle consumers, each with 8 MB at most, for ``consumer_idle_seconds``, unless
    ``keep_consumers`` is False.

    ``ship_code``: whether executors elsewhere are brought Forebay's own code; if not, it is installed there.
    ``tracker``: the driver of an intake (its url, or an ``IntakeAccess``) whose WAL gives what Kafka has lost by then.

    Raises UsageError and SettingsError; for strategies that ask brokers, UnreachableError. In a task a range that Kafka can't
    give is an error of its own (``forebay.model.errors``) with both ends.
    """
    context: SparkContext = getattr(sc, "sparkContext", sc)
    safe = checked_options(kafka_params)
    for sentence in safe.changes:
        tell(sentence)
    for range_ in offset_ranges:
        if not isinstance(range_, Span):
            raise UsageError(
                f"offset_ranges: {range_!r} is no OffsetRange(topic, partition, from_offset, until_offset)"
            )
    for what, given in (("key_deserializer", key_deserializer), ("value_deserializer", value_deserializer)):
        deserializer(what, given)
    access = KafkaAccess(safe.options, safe.task_group, timeout_seconds)
    reading = Reading(
        headers=headers,
        allow_offset_gaps=allow_offset_gaps,
        range_seconds_max=range_seconds_max,
        keep=keep_consumers,
        kept_max=consumers_max,
        idle_seconds_max=consumer_idle_seconds,
    )
    how = TaskReading(access, reading, key_deserializer, value_deserializer, Through.of(tracker))
    parts = split_ranges(offset_ranges, min_partitions, max_records_per_partition)
    if ship_code:
        bring(context)
    return KafkaRDD(context, how, tuple(offset_ranges), parts, locate(context, access, parts, location_strategy))


def locate(
    context: SparkContext, access: KafkaAccess, parts: Sequence[Span], strategy: LocationStrategy
) -> list[tuple[str, ...]]:
    leaders = {}
    if isinstance(strategy, PreferBrokers):
        with KafkaAdmin(access.options, timeout_seconds=access.timeout_seconds) as admin:
            leaders = admin.leaders({part.tp for part in parts})
    return places(strategy, parts, executors(context), leaders)


def executors(context: SparkContext) -> list[Executor]:
    """All but the driver; none where the driver itself runs the tasks."""
    java: Any = context._jsc.sc()
    found = java.statusStore().executorList(True)
    listed = [found.apply(place) for place in range(found.size())]
    return [(one.hostPort().rpartition(":")[0], one.id()) for one in listed if one.id() != "driver"]


class KafkaRDD(PipelinedRDD):  # type: ignore[misc, type-arg, unused-ignore]
    """An RDD of :class:`KafkaRecord`, made by :func:`create_rdd`.

    ``offset_ranges``: as they were asked for. What the number of records alone decides is answered from the offsets, without
    reading: ``count``, ``isEmpty`` and which partitions ``take`` reads. That is right only where each offset holds a record, so
    with ``allow_offset_gaps`` Kafka is read.
    """

    def __init__(
        self,
        context: SparkContext,
        how: TaskReading,
        offset_ranges: tuple[Span, ...],
        parts: Sequence[Span],
        locations: Sequence[tuple[str, ...]],
    ) -> None:
        self.offset_ranges = offset_ranges
        self._how = how
        self._parts = tuple(parts)
        self._locations = tuple(locations)
        super().__init__(self._rows(context), partial(read_records, how))

    def _rows(self, context: SparkContext) -> RDD[bytes]:
        rows = [(encode(part), place) for part, place in zip(self._parts, self._locations, strict=True)]
        return PlacedRows(context, rows).rdd()

    def arrow(self) -> RDD[Any]:
        """The same records as an RDD of ``pyarrow.RecordBatch`` with the columns of Spark's Kafka source, many times faster;
        keys and values are bytes. The same partitions, a record batch for each few thousand records."""
        return self._rows(self.ctx).mapPartitionsWithIndex(partial(read_batches, self._how))

    def count(self) -> int:
        if self._known:
            return sizes(self._parts)
        return int(super().count())

    def isEmpty(self) -> bool:  # noqa: N802 - Spark's name
        if self._known or not self._parts:
            return not self._parts
        return bool(super().isEmpty())

    def take(self, num: int) -> list[KafkaRecord]:
        if not self._known:
            return list(super().take(num))
        left, parts, locations = num, [], []
        for part, place in zip(self._parts, self._locations, strict=True):
            if left <= 0:
                break
            until = min(part.until_offset, part.from_offset + left)
            cut = Span(part.topic, part.partition, part.from_offset, until, part.topic_id)
            parts.append(cut)
            locations.append(place)
            left -= cut.size
        return list(KafkaRDD(self.ctx, self._how, self.offset_ranges, parts, locations).collect()) if parts else []

    @property
    def _known(self) -> bool:
        """Whether offsets tell how many records there are."""
        return not self._how.reading.allow_offset_gaps
