"""Kafka as the last tier: the same rows as the block had, or every tier's reason."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Consumer

from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.batches.local_engine import LocalEngine, read_plan
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume import fetching
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import UnreadableBlockError
from forebay.model.units import Duration, Size
from forebay.settings.schema import KafkaSettings
from tests.support.state.again import Taken
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from wal.reading import TIERS, incarnation_key, read_block

pytestmark = pytest.mark.usefixtures("no_reader_kept")


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@pytest.mark.kafka
@pytest.mark.parametrize("headers", [False, True])
def test_the_rows_are_those_of_the_block_and_are_counted_as_kafkas(
    stored: Stored, kafka_broker: KafkaBroker, topic_name: Callable[[], str], headers: bool
) -> None:
    taken = Taken(stored, kafka_broker, topic_name(), headers)
    plan = taken.plan(headers=True)
    before = read_block(taken.reference, plan)
    assert before.tier == "local"
    taken.lose_every_copy()
    after = read_block(taken.reference, plan)
    assert (after.tier, after.ranges) == ("kafka", 2)
    assert pa.Table.from_batches(after.batches) == pa.Table.from_batches(before.batches)
    assert dict(after.counts.items()) == {"kafka": 2, "wal: missing": 1}
    lost = taken.plan(headers=True, lost=frozenset({taken.taken[0][0].range.label}))
    assert read_block(taken.reference, lost).batches == before.batches[1:]
    assert not list(stored.blocks_directory.rglob("*.block"))


@pytest.mark.kafka
def test_block_with_half_its_records_in_kafka_is_unreadable_with_every_tiers_reason(
    stored: Stored, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-5. With the loss accepted, the remaining ranges are read."""
    taken = Taken(stored, kafka_broker, topic_name())
    taken.lose_every_copy()
    one, two = (wanted.range for wanted, _ in taken.taken)
    with KafkaAdmin(taken.options) as admin:
        admin.delete_records({one.tp: 10})
    with pytest.raises(UnreadableBlockError) as caught:
        read_block(taken.reference, taken.plan(agent_urls={"h1": "http://127.0.0.1:9"}))
    message = str(caught.value)
    for part in (
        one.label,
        two.label,
        "agent: ",
        "wal: it is not there",
        "kafka: ",
        "20 records instead of 30",
        "it holds is 10",
    ):
        assert part in message
    read = read_block(taken.reference, taken.plan(lost=frozenset({one.label})))
    assert (read.tier, sum(batch.num_rows for batch in read.batches)) == ("kafka", two.records)


@pytest.mark.kafka
def test_an_engine_reads_from_kafka_unless_that_is_switched_off(
    stored: Stored, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    taken = Taken(stored, kafka_broker, topic_name())
    taken.lose_every_copy()
    rows: list[int] = []

    def job(batch: Batch) -> None:
        rows.extend(part.num_rows for part in batch.read())

    counts = LocalEngine(taken.settings(), dict).run(taken.work(), job)
    assert (sum(rows), counts.ranges) == (80, {"kafka": 2})
    with pytest.raises(UnreadableBlockError) as caught:
        LocalEngine(taken.settings(read_blocks=False), dict).run(taken.work(), job)
    assert "kafka: " not in str(caught.value)


@pytest.mark.kafka
def test_reading_from_kafka_joins_and_creates_nothing(
    stored: Stored, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    taken = Taken(stored, kafka_broker, topic_name())
    taken.lose_every_copy()
    group = topic_name()
    with KafkaAdmin(taken.options) as admin:
        before = _own_topics(admin)
        assert read_block(taken.reference, taken.plan(kafka=KafkaAccess(taken.options, group))).tier == "kafka"
        assert admin.committed(group, taken.partitions) == {}
        assert _own_topics(admin) == before
        groups = {found.group_id for found in admin._requests.client.list_consumer_groups().result().valid}
        assert group not in groups


def _own_topics(admin: KafkaAdmin) -> dict[str, int]:
    """The topics with names by ``topic_name``: other processes make theirs at the same time."""
    return {topic: count for topic, count in admin.topics().items() if f"-{os.getpid()}-" in topic}


def test_a_tasks_bounds_are_those_of_the_settings(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: how long its client waits for a broker, and how much it holds of what it fetched."""
    kept = stored.settings()
    kafka = KafkaSettings(
        topics=("a",),
        options={"bootstrap.servers": "127.0.0.1:9"},
        read_timeout=Duration(0.3),
        read_prefetch=Size(2 << 20),
    )
    meta, payload = block({("a", 0): filler(3)})
    reference = stored.add(meta, payload, local=False)
    work = BatchWork(1 << 40 | 1, 1, 0, False, ((reference,),))
    access = read_plan(msgspec.structs.replace(kept, kafka=kafka), work, {}).kafka
    assert access == KafkaAccess({"bootstrap.servers": "127.0.0.1:9"}, kept.group, 0.3, 2 << 20)
    made: list[dict[str, object]] = []

    class Noted(Consumer):
        def __init__(self, options: dict[str, Any], **rest: Any) -> None:
            made.append(options)
            super().__init__(options, **rest)

    monkeypatch.setattr(fetching, "Consumer", Noted)
    for path in (stored.root / "wal").rglob("*.seg"):
        path.unlink()
    with pytest.raises(UnreadableBlockError, match=r"kafka: Kafka at 127\.0\.0\.1:9 did not answer"):
        read_block(reference, stored.plan(*TIERS, kafka=access, topic_ids={incarnation_key(meta.ranges[0]): "id"}))
    (options,) = made
    assert options["queued.max.messages.kbytes"] == "2048"


def test_plan_and_errors_show_no_secrets(stored: Stored) -> None:
    options = {
        "bootstrap.servers": "127.0.0.1:9", "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN",
        "sasl.username": "someone", "sasl.password": "s3cret",
    }  # fmt: skip
    meta, payload = block({("a", 0): filler(3)})
    reference = stored.add(meta, payload, local=False)
    for path in (stored.root / "wal").rglob("*.seg"):
        path.unlink()
    plan = stored.plan(
        *TIERS, kafka=KafkaAccess(options, "g", timeout_seconds=0.3), topic_ids={incarnation_key(meta.ranges[0]): "id"}
    )
    assert pickle.loads(pickle.dumps(plan)) == plan
    with pytest.raises(UnreadableBlockError) as caught:
        read_block(reference, plan)
    assert "kafka: Kafka at 127.0.0.1:9 did not answer" in str(caught.value)
    for text in (repr(plan), str(plan), str(caught.value), repr(plan.__rich_repr__())):
        assert "s3cret" not in text
