"""A rewind of a stream of real processes after Kafka has dropped the records, with kills in the middle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka


def runs(cluster: Cluster) -> list[tuple[int, int, str, bool]]:
    """(replay, id, key, rerun) of each run of the job."""
    lines = [line.split() for line in (cluster.folder / "runs.txt").read_text().splitlines()]
    return [(int(replay), int(batch_id), key, rerun == "True") for replay, batch_id, key, rerun in lines]


@pytest.mark.parametrize("failpoint", ["", "journal.after-sync:ReplayBegun", "journal.before-sync:ReplayCompleted"])
def test_completed_batches_run_again_from_the_wal_though_kafka_has_dropped_them(
    failpoint: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-3: the same rows in the same order, each batch once in the replay's account whatever was killed; new records come
    afterwards; the audit stays clean and names the replay."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic, partitions=[0, 1]) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, wal={"retention": "1h"}) as cluster,
    ):
        cluster.await_records(300)
        cluster.wait(lambda: len(cluster.completed_batches()) >= 4, "four completed batches")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.wait(lambda: not cluster.state().batches, "all batches in the history")
        with KafkaAdmin(kafka_broker.options) as admin:
            admin.delete_records({TopicPartition(t, p): end for (t, p), end in flow.truth.ends().items()})
        ids = sorted(cluster.completed_batches())
        before = cluster.wait(cluster.status, "status")
        shown = cluster.command("recover", "--to-batch", "2")
        assert shown.returncode == 0, shown.stderr
        assert f"would run {len(ids) - 1} batches" in shown.stderr
        assert "nothing was changed" in shown.stderr
        if failpoint:
            cluster.kill9("driver")
            cluster.restart("driver", failpoints=f"{failpoint}=kill")

        def asked() -> bool:
            """A driver that dies of it may have made it durable or not: asked again, it is refused while it runs."""
            if cluster.state().replays:
                return True
            cluster.command("recover", "--to-batch", "2", "--because", "a repaired job", "--yes")
            return bool(cluster.state().replays)

        cluster.wait(asked, "the replay to begin")
        if failpoint:
            cluster.await_hit(failpoint)
        cluster.wait(lambda: cluster.state().replay is None, "the end of the replay")
        (replay,) = cluster.state().replays
        assert replay.cause.endswith(": a repaired job")
        assert (replay.first_id, replay.last_id, replay.batches, replay.completed) == (
            ids[1], ids[-1], len(ids) - 1, len(ids) - 1,
        )  # fmt: skip
        again = list(dict.fromkeys(run for run in runs(cluster) if run[0] == 1))
        assert again == [(1, batch_id, f"1-1-{batch_id}", True) for batch_id in ids[1:]]
        replayed = cluster.state().replayed
        assert [(run.replay, run.batch_id) for run in replayed] == [(1, batch_id) for batch_id in ids[1:]]
        assert all(run.statistics is not None and run.statistics.records == run.records for run in replayed)
        after = cluster.wait(cluster.status, "status")
        assert (after.batches_completed, after.records_completed) == (
            before.batches_completed,
            before.records_completed,
        )
        report = cluster.check(flow.truth)
        assert [(r.replay, r.completed) for r in report.replays] == [(1, len(ids) - 1)]


def test_new_batches_wait_for_the_replay_and_a_lost_block_of_it_for_a_person(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-5: a block that no tier can read stops the replay like any batch; its loss is the replay's own."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic, partitions=[0]) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1, receiver={"local_copies": False},
            wal={"segment_size": "1B", "retention": "1h"},
        ) as cluster,
    ):  # fmt: skip
        cluster.await_records(200)
        state = cluster.wait(lambda: s if (s := cluster.state()) and s.released else None, "batches in the history")
        ids = sorted(cluster.completed_batches())
        block = next(b for b in state.blocks.values() if b.id in state.released and b.meta.records)
        (lost,) = block.meta.ranges
        Path(cluster.wal_storage.url.removeprefix("file://"), block.handle.path).unlink()
        with KafkaAdmin(kafka_broker.options) as admin:
            admin.delete_records({lost.tp: lost.until_offset})
        result = cluster.command("recover", "--to-batch", str(ids[0]), "--yes")
        assert result.returncode == 0, result.stderr
        stuck = cluster.wait(
            lambda: (
                next((b for b in s.batches if b.state == "unreadable" and b.replay), None)
                if (s := cluster.status())
                else None
            ),
            "the unreadable batch of the replay in status",
        )
        assert lost.label in stuck.detail
        refused = cluster.command("recover", "--to-batch", str(ids[0]), "--yes")
        assert refused.returncode == 1
        assert "replay 1 is under way" in refused.stderr
        accepted = cluster.command("recover", "--accept-loss", str(stuck.batch_id), lost.label, "--yes")
        assert accepted.returncode == 0, accepted.stderr
        cluster.wait(lambda: (s := cluster.status()) and s.replay is None, "the end of the replay")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        report = cluster.check_audit()
        assert [loss.label for replay in report.replays for loss in replay.losses] == [lost.label]
        assert not any(incarnation.accepted_losses for incarnation in report.incarnations)
        order = [run[:2] for run in runs(cluster)]
        last_replayed = max(index for index, (replay, _) in enumerate(order) if replay)
        first_after = min(batch_id for replay, batch_id in order[last_replayed + 1 :])
        assert not any(batch_id >= first_after for replay, batch_id in order[:last_replayed] if not replay)
