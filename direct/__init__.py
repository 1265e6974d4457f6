"""Kafka without receivers and without a WAL: RDDs over exact offsets, and streams of them (docs/DIRECT.md)."""

from direct.batch import DirectBatch
from direct.checkpoint import Checkpoint
from direct.intake import IntakeAccess
from direct.locations import PreferBrokers, PreferConsistent, PreferFixed
from direct.rdd import KafkaRDD, create_rdd
from direct.strategies import Assign, Subscribe, SubscribePattern
from direct.stream import DirectStream, StreamSettings, create_direct_stream
from driver.batches.tasks import KafkaRecord
from forebay.kafka.client.starting import Timestamp
from forebay.kafka.consume.planning import PartitionRates
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.consume.spans import Span as OffsetRange
from forebay.model.values import TopicPartition
from forebay.settings.schema import DeadLetterSettings

__all__ = [
    "Assign",
    "Checkpoint",
    "DeadLetterSettings",
    "DirectBatch",
    "DirectStream",
    "IntakeAccess",
    "KafkaRDD",
    "KafkaRecord",
    "OffsetRange",
    "PartitionRates",
    "PreferBrokers",
    "PreferConsistent",
    "PreferFixed",
    "Reading",
    "StreamSettings",
    "Subscribe",
    "SubscribePattern",
    "Timestamp",
    "TopicPartition",
    "create_direct_stream",
    "create_rdd",
]
