"""Chooses the partitions, limits and tasks of a query over an intake. Batch and streaming queries use it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from forebay.kafka.consume.planning import split_ranges
from forebay.kafka.options.access import KafkaAccess
from forebay.messages import IncarnationSpan, IntakeAnswer, TimedSpan
from forebay.model.arrow_columns import Column
from forebay.model.errors import LostBlockError, RangeNotHeldError, UnknownTopicError, UsageError
from forebay.model.values import Block, TopicPartition
from pyspark_forebay.intake.client import Intake, Place, Places, partitions_of
from pyspark_forebay.intake.planning import (
    IntakeTask,
    Partitions,
    first_at,
    pack_tasks,
    plan_intake_batch,
    read_plan,
    spans_between,
)
from pyspark_forebay.intake.reading import merged_kafka_options
from pyspark_forebay.offsets import EARLIEST, LATEST
from pyspark_forebay.options.limits import Limit, check_all_named, no_record_since
from pyspark_forebay.options.source import FAIL_ON_DATA_LOSS, SourceOptions
from wal.reading import BlockReference, ReadPlan, read_block

_log = logging.getLogger("forebay.source")


class IntakeSource:
    """Finds partitions, limits and tasks of a query over an intake. It stays in the planner's process."""

    def __init__(self, options: SourceOptions, intake: Intake) -> None:
        self._options = options
        self._intake = intake
        self._warned: set[str] = set()

    def describe(self) -> tuple[IntakeAnswer, Partitions]:
        """Return the intake's present state, and those of its partitions that the query reads. Raises UnreachableError."""
        answer = self._intake.describe()
        return answer, {tp: one for tp, one in partitions_of(answer).items() if self.reads(tp)}

    def reads(self, tp: TopicPartition) -> bool:
        """Return whether the options subscribe to ``tp``."""
        wanted = self._options.subscription
        if wanted.pattern is not None:
            return re.search(wanted.pattern, tp.topic) is not None
        if wanted.partitions:
            return tp in wanted.partitions
        return not wanted.topics or tp.topic in wanted.topics

    def check_topics(self, partitions: Partitions) -> None:
        """Raise UnknownTopicError for a topic or partition that an option names and the stream does not take in."""
        wanted = self._options.subscription
        topics = sorted({*wanted.topics} - {tp.topic for tp in partitions})
        missing = topics or sorted(str(tp) for tp in wanted.partitions - partitions.keys())
        if missing:
            raise UnknownTopicError(f"the stream does not take in {', '.join(missing)}")

    def latest(self, partitions: Partitions) -> dict[TopicPartition, Place]:
        """Return the present end of each partition."""
        return {tp: (one.incarnations[-1].number, one.position) for tp, one in partitions.items()}

    def earliest(self, answer: IntakeAnswer, partitions: Partitions) -> dict[TopicPartition, Place]:
        """Return the first place of each partition that the WAL or Kafka still has."""
        found = self._intake.earliest(partitions)
        older = self._in_kafka(answer, partitions, found, dict.fromkeys(found, "earliest"))
        return {tp: min(place, older.get(tp, place)) for tp, place in found.items()}

    def _in_kafka(
        self,
        answer: IntakeAnswer,
        partitions: Partitions,
        held: Places,
        wanted: Mapping[TopicPartition, Literal["earliest"] | int],
    ) -> dict[TopicPartition, Place]:
        """Ask Kafka for the first place of partitions that are ``wanted``. Partitions without an answer are omitted.

        ``wanted``: "earliest" for Kafka's first offset, or milliseconds for the first record at or after this time.
        ``held``: the places from which the WAL holds all records. Kafka is asked about a partition only if it may have
        records from before ``held``, and if the topic still has the id of the newest incarnation.
        """
        asked = [
            tp for tp, place in held.items() if place[0] == partitions[tp].incarnations[-1].number and place[1] > 0
        ]
        kafka = merged_kafka_options(self._options, answer.kafka)
        if not asked or not kafka:
            return {}
        from forebay.kafka.client.admin import KafkaAdmin  # most queries read blocks alone

        with KafkaAdmin(kafka, client_id="forebay-source") as admin:
            ids = admin.topic_ids({tp.topic for tp in asked})
            same = [tp for tp in asked if ids[tp.topic] == partitions[tp].incarnations[-1].topic_id]
            offsets = admin.places({tp: wanted[tp] for tp in same})
        found: dict[TopicPartition, Place] = {}
        for tp, offset in offsets.items():
            newest = partitions[tp].incarnations[-1]
            if offset >= 0:  # offsets below the start belong to an older incarnation
                found[tp] = (newest.number, max(offset, newest.start) if newest.number > 1 else offset)
        return found

    def _at_times(
        self, answer: IntakeAnswer, partitions: Partitions, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Place]:
        """Return the place of the first record at or after each time, of those that Kafka or the WAL still has.

        Partitions without such a record are omitted.
        """
        held = self._intake.earliest(partitions)
        while True:
            found: dict[TopicPartition, Place] = {}
            lost: LostBlockError | None = None
            try:
                found = self._at_times_beside(answer, partitions, times, held)
            except LostBlockError as error:
                lost = error
            still = self._intake.earliest(partitions)
            if still == held:
                if lost is not None:
                    raise lost
                return found
            # clean-up deleted records from the WAL after the search of Kafka had skipped them, or after the driver had named them
            held = still

    def _at_times_beside(
        self, answer: IntakeAnswer, partitions: Partitions, times: Mapping[TopicPartition, int], held: Places
    ) -> dict[TopicPartition, Place]:
        """Search Kafka up to ``held``, and the WAL from there on."""
        older = self._in_kafka(answer, partitions, held, times)
        found = {tp: place for tp, place in older.items() if place < held[tp]}
        latest = self.latest(partitions)
        left = {
            tp: spans_between({tp: place}, {tp: latest[tp]}, partitions)
            for tp, place in held.items()
            if tp not in found
        }
        while left := {tp: spans for tp, spans in left.items() if spans}:
            answers = self._intake.times([TimedSpan(span=own[0], time_ms=times[tp]) for tp, own in left.items()])
            if [one.reached for one in answers if one.block is None] == [own[0].from_offset for own in left.values()]:
                raise UsageError(
                    "the driver's answer about times makes no progress; use the same release of Forebay for driver and query"
                )
            blocks = {one.block.id: one.block for one in answers if one.block is not None}
            rows = {name: self._times_in(answer, partitions, block, left) for name, block in blocks.items()}
            for (tp, spans), one in zip(list(left.items()), answers, strict=True):
                span, reached = spans[0], one.reached
                if one.block is not None:
                    held_rows = rows[one.block.id].get(tp)
                    offset = None if held_rows is None else first_at(*held_rows, span, times[tp])
                    if offset is not None:
                        found[tp], left[tp] = (span.incarnation, offset), []
                        continue
                    reached = next(
                        r.until_offset
                        for r in one.block.meta.ranges
                        if r.tp == tp and r.incarnation == span.incarnation
                    )
                rest = msgspec.structs.replace(span, from_offset=reached)
                left[tp] = [rest, *spans[1:]] if reached < span.until_offset else spans[1:]
        return found

    def _times_in(
        self,
        answer: IntakeAnswer,
        partitions: Partitions,
        block: Block,
        wanted: Mapping[TopicPartition, Sequence[IncarnationSpan]],
    ) -> dict[TopicPartition, tuple[Column, Column]]:
        """Return offsets and times (ms) of the block's records. ``wanted``: the first span of each partition is searched."""
        first = {(tp, spans[0].incarnation) for tp, spans in wanted.items()}
        unwanted = frozenset(r.label for r in block.meta.ranges if (r.tp, r.incarnation) not in first)
        plan = self._plan(answer, partitions, merged_kafka_options(self._options, answer.kafka))
        try:
            batches = read_block(BlockReference.of(block), msgspec.structs.replace(plan, lost=unwanted)).batches
        except LostBlockError as error:
            if self._options.fail_on_data_loss:
                raise LostBlockError(f"{error}. {FAIL_ON_DATA_LOSS}") from None
            _log.warning("%s. failOnDataLoss is false: searching the next blocks", error)
            return {}
        found: dict[TopicPartition, list[pa.RecordBatch]] = {}
        for batch in batches:
            if batch.num_rows:
                tp = TopicPartition(str(batch.column("topic")[0]), int(batch.column("partition")[0].as_py()))
                found.setdefault(tp, []).append(batch.select(["offset", "timestamp"]))
        tables = {tp: pa.Table.from_batches(own) for tp, own in found.items()}
        return {
            tp: (own.column(0).to_numpy(), own.column(1).cast(pa.int64()).to_numpy() // 1000)
            for tp, own in tables.items()
        }

    def resolve(
        self, limit: Limit, answer: IntakeAnswer, partitions: Partitions, name: str
    ) -> dict[TopicPartition, Place]:
        """Return ``limit`` as a place of each partition. Offsets in options are offsets of the newest incarnation.

        Raises UsageError; LostBlockError and UnreadableBlockError if a block must be searched for a time.
        """
        latest = self.latest(partitions)
        if limit.policy == "latest":
            return latest
        if limit.policy == "earliest":
            return self.earliest(answer, partitions)
        if limit.offsets is None:
            if limit.timestamps is not None:
                check_all_named(set(partitions), set(limit.timestamps), f"{name}OffsetsByTimestamp")
            times = limit.timestamps or dict.fromkeys(partitions, limit.timestamp or 0)
            at_times = self._at_times(answer, partitions, times)
            none = sorted(partitions.keys() - at_times.keys())
            if none and name == "starting" and not self._options.latest_without_match:
                raise no_record_since(none[0], times[none[0]])
            return {**latest, **at_times}
        offsets = limit.offsets
        check_all_named(set(partitions), set(offsets), f"{name}Offsets")
        earliest = self.earliest(answer, {tp: partitions[tp] for tp, at in offsets.items() if at == EARLIEST})
        found = {
            tp: latest[tp] if at == LATEST else earliest[tp] if at == EARLIEST else (latest[tp][0], at)
            for tp, at in offsets.items()
        }
        for tp, place in found.items():
            if place > latest[tp]:
                raise UsageError(
                    f"option {name}Offsets: offset {place[1]} of {tp} is too high: "
                    f"the stream has taken in offsets up to {latest[tp][1]}"
                )
        return found

    def tasks(self, answer: IntakeAnswer, partitions: Partitions, begin: Places, end: Places) -> list[InputPartition]:
        """Return the tasks that read from ``begin`` to ``end``.

        Raises RangeNotHeldError for lost records if ``failOnDataLoss``; UsageError, UnreachableError.
        """
        options = self._options
        spans = spans_between(begin, end, partitions)
        kafka = merged_kafka_options(options, answer.kafka)
        found = plan_intake_batch(spans, self._intake.blocks(spans), partitions, bool(kafka))
        self._warn(f"{gap}; the stream continues after it, and so does the query" for gap in found.gaps)
        for loss in found.losses:
            if options.fail_on_data_loss:
                raise RangeNotHeldError(f"{loss}. {FAIL_ON_DATA_LOSS}")
            _log.warning("%s. failOnDataLoss is false: continuing with the remaining records", loss)
        plan = self._plan(answer, partitions, kafka)
        blocks = pack_tasks(found.parts, len(end), options.min_partitions, options.max_records_per_partition)
        of_kafka = split_ranges(found.spans, options.min_partitions, options.max_records_per_partition)
        made = [IntakeTask(plan, parts) for parts in blocks]
        made += [IntakeTask(plan, span=span, kafka=kafka) for span in of_kafka]
        return [InputPartition(task) for task in made]

    def _plan(self, answer: IntakeAnswer, partitions: Partitions, kafka: dict[str, str]) -> ReadPlan:
        options = self._options
        assert options.intake is not None
        access = KafkaAccess(kafka, options.group) if kafka else None
        wanted = options.include_headers if options.decoding is None else options.decoding.headers
        if wanted and not answer.headers:
            self._warn(
                ["option includeHeaders: the stream does not take in headers (kafka.headers), so there are none"]
            )
        return msgspec.structs.replace(
            read_plan(answer, options.intake.access, options.include_headers),
            kafka=access,
            topic_ids={
                f"{tp.topic}/{tp.partition}/{incarnation.number}": incarnation.topic_id
                for tp, one in (partitions.items() if access is not None else ())
                for incarnation in one.incarnations
            },
        )

    def _warn(self, warnings: Iterable[str]) -> None:
        """Log each of ``warnings`` once."""
        for warning in warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                _log.warning("%s", warning)
