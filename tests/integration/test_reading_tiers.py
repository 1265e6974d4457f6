"""The tier from which batches of real processes are read when tiers are taken away; and the case when none is left (INV-5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import AHEAD, Cluster
from tests.support.processes.witness import assert_same_records
from tests.support.state.columns import column_values

pytestmark = pytest.mark.kafka


def test_batches_are_read_from_the_wal_when_local_copies_and_agent_are_lost(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], driver=AHEAD) as cluster,
    ):
        cluster.await_records(100)
        cluster.allocate_behind_a_held_job()
        flow.stop()
        for name in ("agent", "driver", "r1", "r2"):
            cluster.kill9(name)
        for path in (tmp_path / "blocks").rglob("*.block"):
            path.unlink()
        (tmp_path / "hold").unlink()
        for name in ("driver", "r1", "r2"):
            cluster.restart(name)
        cluster.await_completed(flow.truth.ends())
        tiers = cluster.wait(cluster.status, "status").tiers
        assert tiers.get("wal", 0) > 0, tiers
        cluster.check(flow.truth)


def test_batches_are_read_from_kafka_when_no_copy_of_their_blocks_is_left(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Local copies and WAL segments of unfinished batches are deleted under a stopped driver: the rows are the same."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1, wal={"segment_size": "1B"}, driver=AHEAD
        ) as cluster,
    ):
        cluster.await_records(100)
        cluster.allocate_behind_a_held_job()
        queued = [b.batch_id for b in cluster.wait(cluster.status, "status").batches if b.state == "queued"]
        flow.stop()
        for name in ("agent", "driver"):
            cluster.kill9(name)
        state = cluster.state()
        for block_id in (block_id for batch_id in queued for block_id in state.batches[batch_id].block_ids):
            block = state.blocks[block_id]
            Path(cluster.wal_storage.url.removeprefix("file://"), block.handle.path).unlink()
            (tmp_path / "blocks" / "stream" / f"{block_id}.block").unlink()
        (tmp_path / "hold").unlink()
        for name in ("agent", "driver"):
            cluster.restart(name)
        cluster.await_completed(flow.truth.ends())
        tiers = cluster.wait(cluster.status, "status").tiers
        assert tiers.get("kafka", 0) > 0, tiers
        assert tiers.get("wal: missing", 0) > 0, tiers
        cluster.check(flow.truth)


@pytest.mark.parametrize("failpoint", ["", "journal.before-sync:LossAccepted", "journal.after-sync:LossAccepted"])
def test_unreadable_batch_waits_until_an_operator_accepts_the_loss(
    failpoint: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-5: the batch is not completed and not skipped; intake goes on; the loss stays in the audit."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic, partitions=[0]) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1, receiver={"local_copies": False},
            wal={"segment_size": "1B"}, driver=AHEAD,
        ) as cluster,
    ):  # fmt: skip
        cluster.await_records(100)
        cluster.allocate_behind_a_held_job()
        queued = next(b for b in cluster.wait(cluster.status, "status").batches if b.state == "queued")
        batch = cluster.state().batches[queued.batch_id]
        block = cluster.state().blocks[batch.block_ids[0]]
        (lost,) = block.meta.ranges
        Path(cluster.wal_storage.url.removeprefix("file://"), block.handle.path).unlink()
        with KafkaAdmin(kafka_broker.options) as admin:
            admin.delete_records({lost.tp: lost.until_offset})
        cluster.kill9("driver")
        (tmp_path / "hold").unlink()
        cluster.restart("driver", failpoints=f"{failpoint}=kill" if failpoint else "")
        cluster.wait(
            lambda: (
                (s := cluster.status()) and any(b.state == "unreadable" and lost.label in b.detail for b in s.batches)
            ),
            "the unreadable batch in status",
        )
        before = cluster.wait(cluster.status, "status")
        cluster.wait(
            lambda: (s := cluster.status()) and s.partitions[0].position > before.partitions[0].position,
            "intake to go on",
        )
        assert cluster.wait(cluster.status, "status").records_completed == before.records_completed
        forgotten = cluster.command("recover", "--accept-loss", str(batch.batch_id), lost.label)
        assert forgotten.returncode == 0 and "nothing was changed" in forgotten.stderr

        def accepted() -> bool:
            """A driver that dies of it may have made the acceptance durable, or not."""
            cluster.command("recover", "--accept-loss", str(batch.batch_id), lost.label, "--yes")
            status = cluster.status()
            return status is not None and status.records_completed > before.records_completed

        cluster.wait(accepted, "the batches to go on")
        if failpoint:
            cluster.await_hit(failpoint)
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        report = cluster.check_audit()
        assert [incarnation.accepted_losses for incarnation in report.incarnations if incarnation.partition == 0] == [
            (lost.label,)
        ]
        truth = flow.truth.table()
        kept = [not lost.from_offset <= offset < lost.until_offset for offset in column_values(truth, "offset")]
        assert_same_records(cluster.records_seen(), truth.filter(kept))
