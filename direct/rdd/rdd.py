"""RDDs over exact offsets of Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.core.rdd import PipelinedRDD

from direct.intake.access import IntakeAccess, IntakeEndpoint
from direct.parameters import checked_options, warn_once
from direct.rdd.deserializers import Deserializer, deserializer
from direct.rdd.locations import Executor, LocationStrategy, PreferBrokers, PreferConsistent, places
from direct.rdd.tasks import TaskReading, encode, read_batches, read_records
from driver.batches.tasks.reading import KafkaRecord
from driver.spark.blocks import PlacedRows
from driver.spark.classic import classic
from driver.spark.executors import bring
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.planning import sizes, split_ranges
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.consume.spans import OffsetRange, part_of
from forebay.kafka.options.access import TIMEOUT_SECONDS, KafkaAccess
from forebay.model.errors import UsageError


def create_rdd(
    sc: Any,
    kafka_params: Mapping[str, object],
    offset_ranges: Sequence[OffsetRange],
    location_strategy: LocationStrategy = PreferConsistent(),  # noqa: B008 - a value
    *,
    key_deserializer: Deserializer = None,
    value_deserializer: Deserializer = None,
    headers: bool = False,
    allow_offset_gaps: bool = False,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    range_seconds_max: float | None = None,
    keep_consumers: bool = True,
    consumers_max: int = 4,
    consumer_idle_seconds: float = 300.0,
    ship_code: bool = True,
    tracker: IntakeAccess | str | None = None,
) -> KafkaRDD:
    """Return the records of ``offset_ranges`` as an RDD of :class:`direct.KafkaRecord`.

    Its tasks read Kafka when it is computed.

    ``sc``: a SparkContext or SparkSession. ``kafka_params``: parameters of Kafka's Java client or of librdkafka
    (docs/KAFKA_OPTIONS.md). Only committed records are read, unless ``isolation.level`` is ``read_uncommitted``.
    ``offset_ranges``: each a :class:`direct.OffsetRange`. There is one Spark partition for each range that is not
    empty; ``min_partitions`` and ``max_records_per_partition`` divide large ranges.

    ``key_deserializer``, ``value_deserializer``: a name (``bytes``, ``string``, ``json``, ``short``, ``integer``, ``long``,
    ``float``, ``double``), ``module:function``, or a function of bytes; null stays None. ``allow_offset_gaps``: whether offsets
    may have no record, as in compacted and transactional topics. ``timeout_seconds``: maximum time a broker may return no data
    before the read fails. ``range_seconds_max``: maximum time to read one range. Each Python worker keeps up to
    ``consumers_max`` idle consumers, each with at most 8 MB, for ``consumer_idle_seconds``, unless ``keep_consumers`` is False.

    ``ship_code``: whether to send Forebay's code to executors on other hosts; False if it is installed there.
    ``tracker``: the driver of an intake (its url, or an ``IntakeAccess``); its WAL supplies records that Kafka has
    lost.

    Raises UsageError and SettingsError; UnreachableError if ``location_strategy`` is ``PreferBrokers`` and no broker
    answers. If Kafka cannot supply a range, its task fails with an error of ``forebay.model.errors`` that names the
    range.
    """
    context: SparkContext = getattr(classic(sc), "sparkContext", sc)
    safe = checked_options(kafka_params)
    for warning in safe.changes:
        warn_once(warning)
    for range_ in offset_ranges:
        if not isinstance(range_, OffsetRange):
            raise UsageError(
                f"offset_ranges: {range_!r} is not an OffsetRange(topic, partition, from_offset, until_offset)"
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
    how = TaskReading(
        access, reading, key=key_deserializer, value=value_deserializer, intake=IntakeEndpoint.of(tracker)
    )
    parts = split_ranges(offset_ranges, min_partitions, max_records_per_partition)
    if ship_code:
        bring(context)
    return KafkaRDD(
        context,
        how,
        offset_ranges=tuple(offset_ranges),
        parts=parts,
        locations=locate(context, access, parts, location_strategy),
    )


def locate(
    context: SparkContext, access: KafkaAccess, parts: Sequence[OffsetRange], strategy: LocationStrategy
) -> list[tuple[str, ...]]:
    """Return Spark's preferred locations for each of ``parts``. Raises UnreachableError if the strategy asks brokers."""
    leaders = {}
    if isinstance(strategy, PreferBrokers):
        with KafkaAdmin(access.options, timeout_seconds=access.timeout_seconds) as admin:
            leaders = admin.leaders({part.tp for part in parts})
    return places(strategy, parts, executors(context), leaders)


def executors(context: SparkContext) -> list[Executor]:
    """Return all executors except the driver; none if the driver itself runs the tasks."""
    java: Any = context._jsc.sc()
    found = java.statusStore().executorList(True)
    listed = [found.apply(place) for place in range(found.size())]
    return [(one.hostPort().rpartition(":")[0], one.id()) for one in listed if one.id() != "driver"]


class KafkaRDD(PipelinedRDD):  # type: ignore[misc, type-arg, unused-ignore]
    """An RDD of :class:`direct.KafkaRecord`, returned by :func:`direct.create_rdd`.

    ``offset_ranges``: the ranges that were passed to ``create_rdd``. ``count``, ``countApprox``, ``isEmpty`` and the choice
    of partitions in ``take`` use only the offsets and do not read Kafka. With ``allow_offset_gaps`` they read Kafka, because
    offsets may have no record.
    """

    def __init__(
        self,
        context: SparkContext,
        how: TaskReading,
        *,
        offset_ranges: tuple[OffsetRange, ...],
        parts: Sequence[OffsetRange],
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
        """Return the same records as an RDD of ``pyarrow.RecordBatch``, which is many times faster.

        The columns are those of Spark's Kafka source, and keys and values are bytes. The partitions are the same, with
        a record batch for every few thousand records.
        """
        return self._rows(self.ctx).mapPartitionsWithIndex(partial(read_batches, self._how))

    def count(self) -> int:
        if self._known:
            return sizes(self._parts)
        return int(super().count())

    def countApprox(self, timeout: int, confidence: float = 0.95) -> int:  # noqa: N802 - Spark's name
        return self.count() if self._known else int(super().countApprox(timeout, confidence))

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
            cut = part_of(part, part.from_offset, until)
            parts.append(cut)
            locations.append(place)
            left -= cut.size
        if not parts:
            return []
        first = KafkaRDD(self.ctx, self._how, offset_ranges=self.offset_ranges, parts=parts, locations=locations)
        return list(first.collect())

    @property
    def _known(self) -> bool:
        """Whether the number of offsets is the number of records."""
        return not self._how.reading.allow_offset_gaps
