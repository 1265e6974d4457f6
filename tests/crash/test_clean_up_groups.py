"""The driver is killed between two deletions of one group of clean-up, which deletes WAL segments in parallel (INV-8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driver.background.cleaner import REQUESTS_AT_ONCE
from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import AHEAD, Cluster
from tests.support.stores.contract import STORES, Store

pytestmark = pytest.mark.kafka

#: segments of completed batches when the driver starts with a retention of 0 s: more than one group
SEGMENTS = 3 * REQUESTS_AT_ONCE


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.long)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with STORES[request.param](tmp_path / "store") as store:
        store.begin()
        yield store


@pytest.mark.parametrize("deleted", [1, REQUESTS_AT_ONCE // 2])
def test_driver_killed_between_two_deletions_of_a_group_deletes_the_rest_and_nothing_that_is_needed(
    deleted: int, tmp_path: Path, store: Store, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """One thread of the group is held before its deletion, and the driver is killed after ``deleted`` other deletions.

    The blocks of the held batch and of those behind it exist only in the WAL, so that a wrong deletion would be noticed.
    """
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic, rate=300) as flow,
        Cluster(
            tmp_path / "cluster", kafka_broker.options, [topic], receivers=1, storage=store.options,
            kafka={"read_blocks": False}, receiver={"local_copies": False}, driver=AHEAD,
            wal={"url": f"{store.url}/wal", "segment_size": "1B", "retention": "1h"},
        ) as cluster,
    ):  # fmt: skip
        cluster.wait(lambda: len(cluster.wal_storage.list("stream/blocks")) > SEGMENTS, "many segments")
        cluster.await_records(flow.records)
        cluster.killed_behind_a_held_job(flow, "driver")
        needed = {block.handle.path for block in cluster.needed()}
        before = set(cluster.wal_storage.list("stream/blocks"))
        assert needed and len(before - needed) >= SEGMENTS

        cluster.write_settings(wal={"retention": "0s"})
        cluster.restart("driver", failpoints=f"cleanup.after-intent=hold@2,cleanup.after-delete=kill@{deleted}")
        cluster.wait(lambda: cluster.process("driver").poll() is not None, "the kill", may_end=["driver"])
        assert cluster.was_hit("cleanup.after-delete")
        intended = {path for cleanup in cluster.state().cleanups.values() for path in cleanup.segments}
        left = set(cluster.wal_storage.list("stream/blocks"))
        assert len(intended) >= REQUESTS_AT_ONCE, "the journal has no deletion as done"
        assert len(intended - left) >= deleted, "deleted before the kill"
        assert intended & left, "not deleted before the kill"
        assert left >= needed and not intended & needed

        (cluster.folder / "hold").unlink()
        cluster.restart("driver", failpoints="")
        cluster.await_completed(flow.truth.ends())
        cluster.wait(lambda: not cluster.state().cleanups, "each deletion to be journalled as done")
        kept = 1 if cluster.wal_storage.appendable else 0  # the segment to which r1 may append
        cluster.wait(
            lambda: len(before.intersection(cluster.wal_storage.list("stream/blocks"))) <= kept, "all segments deleted"
        )
        cluster.check(flow.truth)
