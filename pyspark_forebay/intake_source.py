"""What batch and streaming queries over an intake share: which partitions, where they begin, which tasks read them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

import msgspec
from pyspark.sql.datasource import InputPartition

from forebay.errors import RangeNotHeldError, UnknownTopicError, UsageError
from forebay.kafka.access import KafkaAccess
from forebay.kafka.admin import KafkaAdmin
from forebay.kafka.planning import split_ranges
from forebay.messages import IntakeAnswer
from forebay.values import TopicPartition
from pyspark_forebay.intake import Intake, Place, Places, partitions_of
from pyspark_forebay.intake_plan import IntakeTask, Partitions, packed, read_plan, reading, spans_between
from pyspark_forebay.intake_reading import kafka_options
from pyspark_forebay.offsets import EARLIEST, LATEST
from pyspark_forebay.options import Limit, SourceOptions
from pyspark_forebay.planning import unmatched
from pyspark_forebay.reading import FAIL_ON_DATA_LOSS
from wal.reading import ReadPlan

_log = logging.getLogger("forebay.source")


class IntakeSource:
    """``intake``: what the driver is asked with. Planner's side; nothing of it goes to tasks."""

    def __init__(self, options: SourceOptions, intake: Intake) -> None:
        self._options = options
        self._intake = intake
        self._told: set[str] = set()

    def look(self) -> tuple[IntakeAnswer, Partitions]:
        """The intake as it is, and the partitions of it that the query reads. Raises UnknownTopicError, UnreachableError."""
        answer = self._intake.look()
        return answer, {tp: one for tp, one in partitions_of(answer).items() if self.reads(tp)}

    def reads(self, tp: TopicPartition) -> bool:
        """Whether it is among what the options subscribe to."""
        wanted = self._options.subscription
        if wanted.pattern is not None:
            return re.fullmatch(wanted.pattern, tp.topic) is not None
        if wanted.partitions:
            return tp in wanted.partitions
        return not wanted.topics or tp.topic in wanted.topics

    def check_topics(self, partitions: Partitions) -> None:
        """Raises UnknownTopicError for what is named and not taken in."""
        wanted = self._options.subscription
        missing = {*wanted.topics} - {tp.topic for tp in partitions}
        gone = sorted(missing) or sorted(str(tp) for tp in wanted.partitions - partitions.keys())
        if gone:
            raise UnknownTopicError(f"the stream takes in no {', '.join(gone)}")

    def latest(self, partitions: Partitions) -> dict[TopicPartition, Place]:
        return {tp: (one.lives[-1].life, one.position) for tp, one in partitions.items()}

    def earliest(self, answer: IntakeAnswer, partitions: Partitions) -> dict[TopicPartition, Place]:
        """The first place that the WAL, or Kafka, still has. Kafka is asked only where it may have more."""
        found = self._intake.earliest(partitions)
        asked = [tp for tp, place in found.items() if place[0] == partitions[tp].lives[-1].life and place[1] > 0]
        kafka = kafka_options(self._options, answer.kafka)
        if not asked or not kafka:
            return found
        with KafkaAdmin(kafka, client_id="forebay-source") as admin:
            ids = admin.topic_ids({tp.topic for tp in asked})
            same = [tp for tp in asked if ids[tp.topic] == partitions[tp].lives[-1].topic_id]
            held = admin.places(dict.fromkeys(same, "earliest"))
        for tp, offset in held.items():
            newest = partitions[tp].lives[-1]
            begin = max(offset, newest.start) if newest.life > 1 else offset  # below lies what belongs to an older life
            found[tp] = min(found[tp], (newest.life, begin))
        return found

    def resolve(
        self, limit: Limit, answer: IntakeAnswer, partitions: Partitions, name: str
    ) -> dict[TopicPartition, Place]:
        """``limit`` as a place of each partition. Offsets that a person wrote are of the newest life. Raises UsageError."""
        latest = self.latest(partitions)
        if limit.policy == "latest":
            return latest
        if limit.policy == "earliest":
            return self.earliest(answer, partitions)
        offsets = limit.offsets or {}
        unmatched(set(partitions), set(offsets), f"{name}Offsets")
        earliest = self.earliest(answer, {tp: partitions[tp] for tp, at in offsets.items() if at == EARLIEST})
        found = {
            tp: latest[tp] if at == LATEST else earliest[tp] if at == EARLIEST else (latest[tp][0], at)
            for tp, at in offsets.items()
        }
        for tp, place in found.items():
            if place > latest[tp]:
                raise UsageError(
                    f"option {name}Offsets: {place[1]} of {tp} lies beyond what the stream has taken in, up to {latest[tp][1]}"
                )
        return found

    def tasks(self, answer: IntakeAnswer, partitions: Partitions, begin: Places, end: Places) -> list[InputPartition]:
        """Raises RangeNotHeldError for what is lost, with ``failOnDataLoss``; UsageError, UnreachableError."""
        options = self._options
        spans = spans_between(begin, end, partitions)
        kafka = kafka_options(options, answer.kafka)
        found = reading(spans, self._intake.blocks(spans), partitions, bool(kafka))
        self._tell(f"{gap}: the stream goes on behind it, and so does the query" for gap in found.gaps)
        for loss in found.losses:
            if options.fail_on_data_loss:
                raise RangeNotHeldError(f"{loss}. {FAIL_ON_DATA_LOSS}")
            _log.warning("%s. failOnDataLoss is false: going on with what is left", loss)
        plan = self._plan(answer, partitions, kafka)
        blocks = packed(found.parts, len(end), options.min_partitions, options.max_records_per_partition)
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
            self._tell(["option includeHeaders: the stream takes no headers in (kafka.headers), so there are none"])
        return msgspec.structs.replace(
            read_plan(answer, options.intake.access, options.include_headers),
            kafka=access,
            topic_ids={
                f"{tp.topic}/{tp.partition}/{life.life}": life.topic_id
                for tp, one in (partitions.items() if access is not None else ())
                for life in one.lives
            },
        )

    def _tell(self, words: Iterable[str]) -> None:
        """Once each."""
        for sentence in words:
            if sentence not in self._told:
                self._told.add(sentence)
                _log.warning("%s", sentence)
