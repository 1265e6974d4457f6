"""A direct stream that reads through an intake, on a log that was cut back: in a real Kafka, with the real intake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from direct.checkpoint.checkpoint import Checkpoint
from direct.intake.access import IntakeEndpoint
from direct.rdd.tasks import TaskReading
from direct.stream.strategies import Subscribe
from driver.batches.job.batch import Batch
from forebay.kafka.consume.range_reader import Reading, forget_consumers
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import JobError
from forebay.model.values import TopicPartition
from tests.support.kafka.log_cut import log_to_cut
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.processes.cluster import Cluster
from tests.support.processes.direct_runs import Runs
from tests.support.state.again import produce
from tests.support.state.columns import column_values

pytestmark = pytest.mark.kafka


def test_batch_reads_the_records_that_it_was_made_of_where_the_intake_took_them_in_before_the_cut(
    killed_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """INV-2, INV-5: the intake has offsets [80, 100) twice, before and after the cut. The batch loses none, and the next one has
    what follows the cut."""
    broker, tp = killed_broker, TopicPartition(topic_name(), 0)
    older = log_to_cut(broker, tp, tmp_path / "older")
    runs = Runs(broker.options, tmp_path / "checkpoint")
    read: list[tuple[int, bytes]] = []

    def fails(work: Batch) -> None:
        raise ValueError("no")

    with Cluster(
        tmp_path / "intake", broker.options, [tp.topic], receivers=1,
        kafka={"on_gap": "record"}, wal={"retention": "1h"},
    ) as cluster:  # fmt: skip
        cluster.await_completed({(tp.topic, 0): 100})
        stream = runs.start(Subscribe([tp.topic]), fails, max_failures=1, tracker=cluster.driver_url)
        with pytest.raises(JobError):
            stream.await_termination(PATIENCE_SECONDS)
        older.cut_back()
        produce(broker.options, tp, 120, key=b"later")
        cluster.await_completed({(tp.topic, 0): 200})

        access = KafkaAccess(dict(broker.options), "g", PATIENCE_SECONDS)
        how = TaskReading(access, Reading(keep=False), intake=IntakeEndpoint.of(cluster.driver_url))

        def reads(work: Batch) -> None:
            found = [
                pair
                for span in work.spans  # type: ignore[attr-defined]
                for rows in how.read(span)
                for pair in zip(column_values(rows, "offset"), column_values(rows, "key"), strict=True)
            ]
            read.extend(found)  # an attempt that fails leaves nothing
            runs.job(work)

        stream = runs.start(
            Subscribe([tp.topic]), reads, max_failures=1, on_vanished="record", tracker=cluster.driver_url
        )
        runs.await_records(220)
        runs.stop(stream)
    forget_consumers()
    before = [(offset, b"kept" if offset < 80 else b"cut off") for offset in range(100)]
    assert read == before + [(offset, b"later") for offset in range(80, 200)]
    found = Checkpoint(runs.checkpoint.as_uri(), "s", broker.options).audit()
    assert found.clean and not found.losses
