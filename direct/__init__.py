"""Kafka without receivers and without a WAL: RDDs over exact offsets, and streams of batches (docs/DIRECT.md).

::

    stream       direct streams
    checkpoint   the checkpoint of a stream            rdd   RDDs over exact offsets, and the reading in tasks
    intake       reading through an intake             parameters   Kafka parameters
                                                       offsets      questions to Kafka about offsets
"""

from direct.checkpoint.checkpoint import Checkpoint
from direct.intake.access import IntakeAccess
from direct.offsets import find_offsets
from direct.rdd.locations import PreferBrokers, PreferConsistent, PreferFixed
from direct.rdd.rdd import KafkaRDD, create_rdd
from direct.stream.batch import DirectBatch
from direct.stream.metrics import StreamMetrics
from direct.stream.settings import StreamSettings
from direct.stream.strategies import Assign, Subscribe, SubscribePattern
from direct.stream.stream import DirectStream, create_direct_stream
from driver.batches.tasks.reading import KafkaRecord
from driver.decisions.rate import Gains
from driver.listeners.events import PartitionLag
from forebay.kafka.client.starting import Timestamp
from forebay.kafka.consume.planning import PartitionRates
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.values import TopicPartition
from forebay.settings.schema import DeadLetterSettings

__all__ = [
    "Assign",
    "Checkpoint",
    "DeadLetterSettings",
    "DirectBatch",
    "DirectStream",
    "Gains",
    "IntakeAccess",
    "KafkaRDD",
    "KafkaRecord",
    "OffsetRange",
    "PartitionLag",
    "PartitionRates",
    "PreferBrokers",
    "PreferConsistent",
    "PreferFixed",
    "Reading",
    "StreamMetrics",
    "StreamSettings",
    "Subscribe",
    "SubscribePattern",
    "Timestamp",
    "TopicPartition",
    "create_direct_stream",
    "create_rdd",
    "find_offsets",
]
