"""Topics whose older segments are only in Kafka's second tier: exact ranges, and an intake from their beginning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.options.access import KafkaAccess
from forebay.model.values import TopicPartition
from tests.conftest import missing, require_kafka, running_in_ci
from tests.support.kafka.flow import Truth, numbered, produce
from tests.support.kafka.polling import PATIENCE_SECONDS, partitions_of
from tests.support.kafka.tiered_broker import TIERED, TieredBroker
from tests.support.processes.cluster import Cluster
from tests.support.state.columns import column_values

pytestmark = [pytest.mark.long, pytest.mark.variety, pytest.mark.kafka]

RECORDS, PADDING = 10_000, 1_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TieredBroker]:
    require_kafka()
    if not TIERED.present():
        if not running_in_ci():
            missing(f"there are no jars of {TIERED.title}: run python -m tests.support.kafka.tiered_broker")
        TIERED.fetch()
    with TieredBroker(tmp_path / "kafka") as broker:
        yield broker


def filled(broker: TieredBroker, **config: str) -> tuple[Truth, dict[TopicPartition, int]]:
    """Return the records of topic ``tiered``, and where the broker's own disk begins: records before it are elsewhere."""
    broker.create_tiered_topic("tiered", 2, **config)
    truth = Truth()
    produce(broker.options, "tiered", numbered(RECORDS, padding=PADDING), truth, partitions=(0, 1))
    half = RECORDS // 4
    return truth, {tp: broker.await_local_start(tp, half) for tp in partitions_of("tiered", 2)}


def test_ranges_are_exact_in_the_second_tier_and_across_its_end(broker: TieredBroker) -> None:
    """INV-3: also by a broker that was killed, and that has no segment of them on its own disk."""
    truth, local = filled(broker)
    rows = truth.table().to_pylist()
    access = KafkaAccess(dict(broker.options), "g", PATIENCE_SECONDS)
    for restarted in (False, True):
        if restarted:
            broker.kill9()
            broker.start()
        for tp, start in local.items():
            values = {row["offset"]: row["value"] for row in rows if row["partition"] == tp.partition}
            spans = [(0, 1), (0, len(values)), (start - 1, start + 1), (start // 2, start // 2 + 777), (17, start)]
            for begin, end in spans:
                batches = list(read_range(access, OffsetRange(tp.topic, tp.partition, begin, end), Reading()))
                found = [
                    pair
                    for batch in batches
                    for pair in zip(column_values(batch, "offset"), column_values(batch, "value"), strict=True)
                ]
                assert found == [(offset, values[offset]) for offset in range(begin, end)]


def test_intake_from_the_beginning_takes_each_record_of_both_tiers_once(broker: TieredBroker, tmp_path: Path) -> None:
    """INV-1, INV-2: with a receiver killed while it reads the second tier."""
    truth, _ = filled(broker)
    with Cluster(tmp_path / "stream", broker.options, ["tiered"], receiver={"max_rate": 3000}) as cluster:
        cluster.await_records(1)
        cluster.kill9("r1")
        cluster.restart("r1")
        cluster.await_completed(truth.ends())
        cluster.check(truth)
        cluster.drain()
