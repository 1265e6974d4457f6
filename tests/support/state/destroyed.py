"""An intake with a block that is destroyed before its batch has read it, so that its records exist nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forebay.kafka.client.admin import KafkaAdmin
from forebay.model.values import BlockRange, TopicPartition
from tests.support.processes.cluster import AHEAD, Cluster
from tests.support.state.again import produce

#: sections of forebay.toml: a segment for each block, and no copy beside it
SETTINGS: dict[str, Any] = {
    "wal": {"segment_size": "1B", "cleanup_interval": "200ms"},
    "receiver": {"local_copies": False},
    "driver": {"cursor_lease": "2s", **AHEAD},
}


def hold_a_batch(cluster: Cluster, tp: TopicPartition) -> None:
    """Returns when a job of the intake is held, with one record more than there were."""
    (cluster.folder / "hold").touch()
    produce(cluster.options, tp, 1)
    cluster.hold_a_job()


def destroy(cluster: Cluster, tp: TopicPartition) -> tuple[int, BlockRange]:
    """Behind a job that is held ten records more come into a batch, and ten into other blocks; of the first ones a range is then
    lost in Kafka and in the WAL. The batch, which can't be read, and the range."""
    produce(cluster.options, tp, 10)
    queued = cluster.wait(
        lambda: [b.batch_id for b in status.batches if b.state == "queued"] if (status := cluster.status()) else None,
        "a batch in the queue",
    )
    end = cluster.state().partitions[str(tp)].position + 10
    produce(cluster.options, tp, 10)
    cluster.wait(lambda: (p := cluster.partition(tp.topic, tp.partition)) and p.position == end, "all to be taken in")
    state = cluster.state()
    block = state.blocks[state.batches[queued[0]].block_ids[0]]
    (lost,) = block.meta.ranges
    Path(cluster.wal_storage.url.removeprefix("file://"), block.handle.path).unlink()
    with KafkaAdmin(cluster.options) as admin:
        admin.delete_records({tp: lost.until_offset})
    (cluster.folder / "hold").unlink()
    cluster.wait(
        lambda: (s := cluster.status()) and any(b.state == "unreadable" and lost.label in b.detail for b in s.batches),
        "the unreadable batch in status",
    )
    return queued[0], lost
