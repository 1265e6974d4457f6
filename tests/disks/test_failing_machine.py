"""Real processes whose disk fails, fills, or is slow.

Faults that pass end no process. Faults that stay end the process that has them, with the reason, and its supervisor starts it
again. Nothing is lost or repeated in either case (INV-2, INV-3).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.faulty.machine import FaultyCluster
from tests.support.faulty.shim import READ, SYNC, WRITE
from tests.support.kafka.flow import Flow

pytestmark = pytest.mark.kafka

#: a sync, and a write or read: a batch makes many of these
SLOW_MS, SLOW_PART_MS = 150, 20


@contextmanager
def stream(folder: Path, broker: KafkaBroker, topic: str, **settings: Any) -> Iterator[tuple[FaultyCluster, Flow]]:
    """Run a stream under load. At the end everything that was produced must be in exactly one batch."""
    home = folder / "stream"
    home.mkdir()
    broker.create_topic(topic)
    with (
        Flow(broker.options, topic, rate=300) as flow,
        FaultyCluster(home, broker.options, [topic], receivers=1, **settings) as cluster,
    ):
        cluster.await_records(50)
        yield cluster, flow
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)


def go_on(cluster: FaultyCluster) -> None:
    """Wait until records that were taken in from now on are completed."""
    status = cluster.wait(cluster.status, "status")
    cluster.await_records(status.records_completed + 150)


def test_faults_that_pass_end_no_process_and_lose_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    with stream(tmp_path, kafka_broker, topic_name()) as (cluster, _):
        receiver, driver = cluster.shims["r1"], cluster.shims["driver"]

        receiver.fail(SYNC, errno.EIO, part="/wal/", times=1)  # the segment is poisoned, its blocks go to the next one
        cluster.wait(lambda: receiver.hits() == 1, "a failed sync of the WAL")
        go_on(cluster)

        receiver.fail(WRITE, errno.EDQUOT, part="/wal/")
        cluster.wait(lambda: (r := cluster.receiver("r1")) and "no space" in r.detail, "r1 to wait for its quota")
        receiver.heal()
        go_on(cluster)

        driver.fail(WRITE | SYNC, errno.EDQUOT, part="/journal/stream/epoch-")
        cluster.wait(lambda: "journal waits for space" in cluster.health(), "the driver to wait for its quota")
        driver.heal()
        go_on(cluster)

        for operations, delay_ms in ((SYNC, SLOW_MS), (READ | WRITE, SLOW_PART_MS)):
            for shim in cluster.shims.values():
                shim.fail(operations, delay_ms=delay_ms)
            go_on(cluster)
            assert receiver.hits() > 0 and driver.hits() > 0
            for shim in cluster.shims.values():
                shim.heal()

        assert all(cluster.starts(name) == 1 for name in cluster.names), cluster.describe()


def test_failed_reads_of_the_wal_cost_no_record_and_an_unread_journal_is_not_opened(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-2, INV-3. A batch reads from Kafka what the WAL's disk does not return; a driver guesses nothing of its journal."""
    with stream(tmp_path, kafka_broker, topic_name(), receiver={"local_copies": False}) as (cluster, _):
        driver = cluster.shims["driver"]
        driver.fail(READ, errno.EIO, part="/wal/")
        cluster.wait(lambda: (s := cluster.status()) and s.tiers.get("kafka"), "blocks read from Kafka")
        go_on(cluster)
        assert cluster.wait(cluster.status, "status").tiers["wal: failed"] > 0
        driver.heal()

        cluster.kill9("driver")
        driver.fail(READ, errno.EIO, part="/journal/stream/epoch-")
        cluster.restart("driver")
        assert cluster.await_end("driver") == 1
        assert re.search(r"ERROR .*/journal/stream/epoch-\S+ can't be read: Input/output error", cluster.log("driver"))
        driver.heal()
        cluster.restart("driver")
        go_on(cluster)


@pytest.mark.long
def test_a_failed_journal_or_wal_ends_its_process_with_the_reason(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """A failed sync of the journal is never repeated (INV-1). A WAL that fails for ``store_timeout`` ends its receiver."""
    with stream(tmp_path, kafka_broker, topic_name(), receiver={"store_timeout": "500ms"}) as (cluster, _):
        for operation in (SYNC, WRITE):
            cluster.shims["driver"].fail(operation, errno.EIO, part="/journal/stream/epoch-", times=1)
            assert cluster.await_end("driver") == 1
            assert "Input/output error" in cluster.log("driver")
            cluster.restart("driver")
            go_on(cluster)

        cluster.shims["r1"].fail(WRITE, errno.EIO, part="/wal/")
        assert cluster.await_end("r1") == 1
        assert "(receiver.store_timeout)" in cluster.log("r1") and "Input/output error" in cluster.log("r1")
        cluster.shims["r1"].heal()
        cluster.restart("r1")
        go_on(cluster)
