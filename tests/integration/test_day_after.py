"""The steps of *Recover the WAL* in docs/operations/recovery.md, with real processes and a real Kafka."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import AHEAD, Cluster

pytestmark = pytest.mark.kafka


def test_a_wal_that_lost_segments_and_bytes_is_whole_again_from_copies_and_kafka(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-2, INV-3, INV-5: every record is in exactly one batch all the same."""
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
        cluster.wait(lambda: len(cluster.needed()) >= 3, "three blocks that batches need")
        flow.stop()
        for name in ("driver", "agent", "r1"):
            cluster.kill9(name)
        needed = cluster.needed()
        folder = Path(cluster.wal_storage.url.removeprefix("file://"))
        copies = tmp_path / "blocks" / "stream"
        (folder / needed[0].handle.path).unlink()  # its local copy is there
        for block in needed[1:3]:  # and of these there is none
            (copies / f"{block.id}.block").unlink(missing_ok=True)
        (folder / needed[1].handle.path).unlink()
        cluster.damage(needed[2])

        verify = cluster.command("wal", "verify")
        assert verify.returncode == 1 and needed[2].id in verify.stdout
        plan = cluster.command("recover")
        assert plan.returncode == 1
        for block, source in ((needed[0], "local copy"), (needed[1], "Kafka"), (needed[2], "Kafka")):
            assert f"block {block.id} with" in plan.stderr
            assert any(block.id in line and f"from {source}" in line for line in plan.stderr.splitlines()), plan.stderr
        repair = cluster.command("wal", "repair", "--yes")
        assert repair.returncode == 1 and "see `forebay recover`" in repair.stderr
        applied = cluster.command("recover", "--apply")
        assert needed[1].id in applied.stdout and "encoded again" in applied.stdout
        assert all("may still" in line for line in applied.stderr.splitlines()), applied.stderr

        for path in copies.glob("*.block"):
            path.unlink()  # so the batch must read what was written anew
        (tmp_path / "hold").unlink()
        for name in ("driver", "r1"):
            cluster.restart(name)
        cluster.await_completed(flow.truth.ends())
        assert cluster.command("audit").returncode == 0
        cluster.check(flow.truth)
        cluster.kill9("driver")
        again = cluster.command("recover", "--apply")
        assert again.returncode == 0, again.stdout + again.stderr
        assert cluster.command("wal", "verify").returncode == 0
