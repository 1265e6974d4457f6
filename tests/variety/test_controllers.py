"""Three controllers (KRaft): the active one is killed, or suspended, while an intake and a direct stream read."""

from __future__ import annotations

from pathlib import Path

import pytest

from direct.stream.strategies import Subscribe
from forebay.kafka.consume.range_reader import Reading
from tests.conftest import require_kafka
from tests.support.kafka.flow import Flow
from tests.support.kafka.polling import partitions_of
from tests.support.kafka.three_brokers import three_brokers
from tests.support.processes.cluster import Cluster
from tests.support.processes.direct_runs import RowsRead, Runs

pytestmark = [pytest.mark.long, pytest.mark.variety, pytest.mark.kafka, pytest.mark.timeout(1800)]

_ORDERS = ([1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2])


def test_nothing_is_lost_or_repeated_while_the_active_controller_changes(tmp_path: Path) -> None:
    """INV-1, INV-2, INV-3: the active controller also leads partitions and coordinates groups; until another one is elected,
    nothing of it moves. It is killed twice, and suspended once."""
    require_kafka()
    partitions = partitions_of("flowing")
    with three_brokers(tmp_path / "kafka", controllers=3) as brokers:
        brokers.create_topic("flowing", _ORDERS, **{"min.insync.replicas": "2"})
        runs = Runs(brokers.options, tmp_path / "checkpoint")
        job = RowsRead(runs, Reading())
        with (
            Flow(brokers.options, "flowing", rate=400) as flow,
            Cluster(tmp_path / "stream", brokers.options, ["flowing"]) as cluster,
        ):
            stream = runs.start(Subscribe(["flowing"]), job=job, timeout_seconds=90.0)
            cluster.await_records(1)
            for end, back in (
                (brokers.kill9, brokers.start),
                (brokers.silence, brokers.wake),
                (brokers.kill9, brokers.start),
            ):
                active = brokers.await_controller()
                end(active)
                brokers.await_controller(other_than=active)
                wanted = flow.records + 500
                cluster.wait(lambda wanted=wanted: flow.records > wanted, "records by the other leaders")
                cluster.await_records(wanted)
                runs.await_records(wanted)
                back(active)
                for tp in partitions:
                    brokers.await_in_sync(tp, active)
            flow.stop()
            cluster.await_completed(flow.truth.ends())
            runs.await_records(flow.records)
            runs.stop(stream)
            cluster.check(flow.truth)
            cluster.drain()
        ends = {tp.partition: flow.truth.ends()[tp.topic, tp.partition] for tp in partitions}
        assert {tp.partition: runs.once(tp) for tp in partitions} == {number: (0, end) for number, end in ends.items()}
        assert sorted(job.read) == sorted((number, offset) for number, end in ends.items() for offset in range(end))
    print(f"{flow.records} records, the active controller ended three times")
