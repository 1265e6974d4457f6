"""Records that were taken in, as ranges and as a block that can be read from Kafka again."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as WirePartition

from driver.batches.job.work import BatchWork
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.block_ranges import Wanted
from forebay.kafka.consume.messages import record_batch
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.options.access import KafkaAccess
from forebay.model.digest import digest
from forebay.model.payload import encode_block
from forebay.model.records import RangeRows
from forebay.model.values import BlockMeta, BlockRange, TopicPartition, block_id
from forebay.settings.schema import Settings
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.state.stored import Stored
from wal.reading import TIERS, ReadPlan, incarnation_key


def produce(
    options: Mapping[str, str], tp: TopicPartition, count: int, *, key: bytes = b"k%d", timestamp: int | None = None
) -> None:
    """``count`` records with values of their own; ``key`` may hold one number; ``timestamp`` 0: now."""
    producer = Producer({**options, "linger.ms": 5})
    for number in range(count):
        producer.produce(
            tp.topic,
            b"value %d" % number,
            key % number if b"%d" in key else key,
            tp.partition,
            headers=[("n", b"%d" % number)],
            timestamp=1_700_000_000_000 + number if timestamp is None else timestamp,
        )
    assert producer.flush(PATIENCE_SECONDS) == 0


def produce_every_kind(
    options: Mapping[str, str], topic: str, partitions: int, *, seed: int, transactions: bool
) -> None:
    """Produce null and empty keys and values, 0 to 1 MB, headers, with each compression, some in aborted transactions."""
    random_ = random.Random(seed)
    for round_, codec in enumerate(("none", "gzip", "lz4", "snappy", "zstd")):
        more = {"transactional.id": f"{topic}-{round_}"} if transactions else {}
        producer = Producer(
            {**options, "compression.type": codec, "linger.ms": 5, "message.max.bytes": 2_000_000, **more}
        )
        if transactions:
            producer.init_transactions(30)
        for _ in range(4):
            if transactions:
                producer.begin_transaction()
            for _ in range(random_.randrange(1, 120)):
                size = random_.choice([0, 1, 20, 200, 5_000] + [1_000_000] * (random_.random() < 0.01))
                headers: list[tuple[str, str | bytes | None]] = [
                    (f"h{n}" * random_.randrange(3), random_.choice([None, b"", os.urandom(9)]))
                    for n in range(random_.randrange(4))
                ]
                producer.produce(
                    topic, random_.choice([None, b"", os.urandom(size)]), random_.choice([None, b"", os.urandom(8)]),
                    random_.randrange(partitions), timestamp=random_.choice([0, 1_700_000_000_000 + size]),
                    headers=headers or None,
                )  # fmt: skip
            if transactions:
                producer.flush(30)
                (producer.abort_transaction if random_.random() < 0.4 else producer.commit_transaction)(30)
        assert producer.flush(30) == 0


def taken_in(
    options: Mapping[str, str],
    tp: TopicPartition,
    *,
    headers: bool = False,
    from_offset: int = 0,
    bytes_known: bool = True,
) -> tuple[Wanted, pa.RecordBatch]:
    """Everything that the partition holds of committed records from ``from_offset`` to its end: as a range, and as rows."""
    consumer = Consumer({
        **options, "group.id": "again", "enable.auto.commit": "false", "enable.partition.eof": "true",
        "auto.offset.reset": "error", "isolation.level": "read_committed",
    })  # fmt: skip
    consumer.assign([WirePartition(tp.topic, tp.partition, from_offset)])
    messages, end = [], -1
    deadline = time.monotonic() + PATIENCE_SECONDS
    while end < 0:
        assert time.monotonic() < deadline
        for message in consumer.consume(1000, 0.1):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                end = message.offset() or 0
    consumer.close()
    rows = record_batch(messages, headers)
    with KafkaAdmin(options) as admin:
        topic_id = admin.topic_ids([tp.topic])[tp.topic]
    size = sum(len(m.key() or b"") + len(m.value() or b"") for m in messages)
    range_ = BlockRange(
        topic=tp.topic, partition=tp.partition, incarnation=1, from_offset=from_offset, until_offset=end, records=len(messages),
        leader_epoch=0, digest=digest([rows]), token=1, bytes=size if bytes_known else 0,
    )  # fmt: skip
    return Wanted(range_, topic_id), rows


def block_of(
    taken: Sequence[tuple[Wanted, pa.RecordBatch]], headers: bool = False, sequence: int = 1
) -> tuple[BlockMeta, pa.Buffer]:
    """A block of what was taken in."""
    epoch = 1 << 40 | 1
    meta = BlockMeta(
        id=block_id("r1", epoch, sequence), stream="s", receiver_id="r1", epoch=epoch, sequence=sequence,
        ranges=tuple(wanted.range for wanted, _ in taken), records=sum(wanted.range.records for wanted, _ in taken),
        created_ms=0, host="h1", headers=headers,
    )  # fmt: skip
    return meta, encode_block([RangeRows(wanted.range.tp, [rows]) for wanted, rows in taken], headers)


class Taken:
    """Two partitions of a real topic as one block, stored as a receiver stores it."""

    def __init__(self, stored: Stored, broker: KafkaBroker, topic: str, headers: bool = False) -> None:
        self.stored = stored
        self.options = broker.options
        self.partitions = [TopicPartition(topic, 0), TopicPartition(topic, 2)]
        self.taken = []
        broker.create_topic(topic, 3)
        for number, tp in enumerate(self.partitions):
            produce(self.options, tp, 30 + 20 * number)
            self.taken.append(taken_in(self.options, tp, headers=headers))
        self.reference = stored.add(*block_of(self.taken, headers))

    @property
    def topic_ids(self) -> dict[str, str]:
        return {incarnation_key(wanted.range): wanted.topic_id for wanted, _ in self.taken}

    def plan(self, **fields: object) -> ReadPlan:
        kafka = KafkaAccess(self.options, "forebay.s")
        return self.stored.plan(*TIERS, **{"kafka": kafka, "topic_ids": self.topic_ids, **fields})

    def lose_every_copy(self) -> None:
        for path in [*self.stored.blocks_directory.rglob("*.block"), *(self.stored.root / "wal").rglob("*.seg")]:
            path.unlink()

    def settings(self, read_blocks: bool = True) -> Settings:
        kept = self.stored.settings()
        kafka = msgspec.structs.replace(kept.kafka, options=dict(self.options), read_blocks=read_blocks)
        return msgspec.structs.replace(kept, kafka=kafka)

    def work(self) -> BatchWork:
        return BatchWork(1 << 40 | 1, 1, 0, False, ((self.reference,),), topic_ids=self.topic_ids)
