"""The writes of real processes, replayed up to each of them, as a power loss there would leave them.

A driver, an agent and receivers run with a library that logs each write, sync and change of a name, and what they send to others.
The replay rebuilds the disk as it was after each entry of that log, without what was not synced, or with parts of it. The product
then opens it. Every accepted block and every batch that a job saw must be there (INV-1, INV-3, INV-5).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.faulty.machine import FaultyCluster
from tests.support.faulty.power_loss import Promises, Replay
from tests.support.faulty.write_log import LOSSES, Record
from tests.support.kafka.flow import Flow

pytestmark = pytest.mark.kafka

SHORT_MOMENTS = 20
WITHOUT_WAL: Final[dict[str, Any]] = {"wal": {"url": "none"}}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, kafka_broker: KafkaBroker) -> tuple[Record, ...]:
    """The log of a stream that takes in, completes and deletes for some seconds."""
    topic = f"power-loss-replay-{os.getpid()}-1"
    kafka_broker.create_topic(topic)
    return record(tmp_path_factory.mktemp("machine"), kafka_broker, topic, batches=12)


def record(
    folder: Path, broker: KafkaBroker, topic: str, *, batches: int, kills: int = 0, receivers: int = 1, **settings: Any
) -> tuple[Record, ...]:
    """Run a stream until ``batches`` are completed, with ``kills`` of driver and receiver meanwhile, and return its log."""
    home = folder / "stream"
    home.mkdir()
    with (
        Flow(broker.options, topic) as flow,
        FaultyCluster(home, broker.options, [topic], logged=True, receivers=receivers, **settings) as cluster,
    ):
        for kill in range(kills):
            await_batches(cluster, (kill + 1) * batches // (kills + 1))
            for name in ("driver", "r1", "agent")[: 1 + kill % 3]:
                cluster.kill9(name)
                cluster.restart(name)
        await_batches(cluster, batches)
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        return tuple(cluster.write_log())


def await_batches(cluster: FaultyCluster, count: int) -> None:
    cluster.wait(lambda: (s := cluster.status()) and s.batches_completed >= count, f"{count} batches completed")


def is_eventful(promises: Promises, records: tuple[Record, ...]) -> bool:
    """Whether the log has each kind of step that a power loss can hit, and each kind of promise."""
    deleted = any(r.kind == "U" and r.path.startswith(("wal/stream/blocks/", "blocks/stream/")) for r in records)
    promised = promises.accepted <= promises.ranges.keys() and promises.committed and promises.begun and promises.seen
    return bool(deleted and promised and len(promises.accepted) > 10)


def test_every_promise_holds_after_a_power_loss_at_a_sample_of_moments(
    tmp_path: Path, written: tuple[Record, ...]
) -> None:
    replay = Replay("stream", tmp_path / "disk").run(written, sample=SHORT_MOMENTS)
    assert not replay.findings, replay.findings[:5]
    assert is_eventful(replay.promises, written)


@pytest.mark.parametrize("ignored", ["wal/stream/blocks/", "journal/stream/epoch-", "journal/stream/epochs"], ids=str)
def test_replay_notices_a_sync_that_does_nothing(tmp_path: Path, written: tuple[Record, ...], ignored: str) -> None:
    """The check of the check: a disk that performs no sync of these files and folders breaks promises."""
    replay = Replay("stream", tmp_path / "disk", ignored=(ignored,)).run(written, losses=LOSSES[1:2], sample=12)
    assert replay.findings


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("settings", [{}, WITHOUT_WAL], ids=["wal", "without a wal"])
def test_every_promise_holds_after_a_power_loss_at_every_moment(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str], settings: dict[str, Any]
) -> None:
    """Also while drivers, receivers and agents are killed and start again. FOREBAY_REPLAY_MOMENTS: how many instead of all."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    records = record(tmp_path, kafka_broker, topic, batches=40, kills=3, receivers=2, **settings)
    sample = int(os.environ.get("FOREBAY_REPLAY_MOMENTS", "0"))
    replay = Replay("stream", tmp_path / "disk", wal="wal" not in settings).run(records, sample=sample)
    assert not replay.findings, replay.findings[:5]
    assert is_eventful(replay.promises, records)
    print(f"{len(records)} records, {replay.moments} moments, {replay.disks} disks opened")
