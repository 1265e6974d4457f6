"""The journal is deleted under a stream of real processes, and rebuilt from the WAL: nothing is lost, repeats are named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.identifiers import count_of, timeline_of
from forebay.process import failpoints
from tests.support.kafka.flow import Flow
from tests.support.processes import witness
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka

REBUILD = [name for name in failpoints.NAMES if name.startswith("rebuild.")]


@contextmanager
def records_flowing(folder: Path, broker: KafkaBroker, topic: str, **settings: Any) -> Iterator[tuple[Cluster, Flow]]:
    broker.create_topic(topic)
    kafka = {"session.timeout.ms": "1500"}
    with (
        Flow(broker.options, topic) as flow,
        Cluster(folder, broker.options, [topic], receivers=1, kafka=kafka, **settings) as cluster,
    ):
        cluster.await_records(200)
        yield cluster, flow


def lose_journal(cluster: Cluster, but: tuple[str, ...] = ()) -> dict[tuple[str, int], int]:
    """Kills all (``but`` some, which sleep) and deletes the journal's folder; returns the positions that it had."""
    for name in but:
        cluster.pause(name)
    for name in ("r1", "driver", "agent"):
        if name not in but:
            cluster.kill9(name)
    state = cluster.state()
    shutil.rmtree(cluster.folder / "journal")
    return {(p.topic, p.partition): p.position for p in state.partitions.values()}


def finish(cluster: Cluster, flow: Flow, before: dict[tuple[str, int], int]) -> None:
    """Starts what does not run; all that was produced must be completed, each offset once but in batches that were named."""
    at = {(p.topic, p.partition): p.position for p in cluster.state().partitions.values()}
    assert all(at[tp] >= position for tp, position in before.items()), (at, before)
    for name in ("driver", "agent", "r1"):
        if cluster._services[name].process is None:
            cluster.start(name)
    target = flow.records + 200
    cluster.wait(lambda: flow.records >= target, "more records")
    flow.stop()
    cluster.await_completed(flow.truth.ends())
    report = cluster.check_audit()
    (rebuild,) = report.rebuilds[-1:]
    known = cluster.state().rebuilds[-1].known_number
    old = {
        int(path.name.partition(".")[0])
        for path in cluster.seen.iterdir()
        if path.suffix == ".begun" and timeline_of(int(path.name.partition(".")[0])) == 1
    }
    # the history was lost with the journal: of the old timeline, the batches that the rebuild calls completed count
    counted = {batch for batch in old if count_of(batch) <= known} | cluster.completed_batches()
    named = {batch.batch_id for batch in rebuild.repeated}
    assert all(batch in named or 0 in named for batch in old if count_of(batch) > known)
    witness.assert_same_records(witness.seen_by(cluster.seen, sorted(counted)), flow.truth.table())
    cluster.check_commits()


def test_deleted_journal_is_rebuilt_and_the_stream_continues(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-2, INV-3: the driver refuses, the plan changes nothing, the rebuild makes what it said."""
    with records_flowing(tmp_path, kafka_broker, topic_name()) as (cluster, flow):
        before = lose_journal(cluster)
        refused = cluster.command("driver")
        assert refused.returncode == 1, refused.stderr
        assert "journal was lost" in refused.stderr
        assert "forebay journal rebuild" in refused.stderr
        assert cluster.command("journal", "inspect").returncode == 1
        dry = cluster.command("journal", "rebuild", "--json")
        assert dry.returncode == 0, dry.stderr
        assert "nothing was changed" in dry.stderr
        assert cluster.command("driver").returncode == 1
        done = cluster.command("journal", "rebuild", "--yes", "--json")
        assert done.returncode == 0, done.stderr
        planned, made = json.loads(dry.stdout), json.loads(done.stdout)
        assert (planned.pop("done"), made.pop("done")) == (False, True)
        assert planned == made
        again = cluster.command("journal", "rebuild", "--yes")
        assert again.returncode == 1
        assert "is whole" in again.stderr
        assert cluster.command("journal", "inspect").returncode == 0
        finish(cluster, flow, before)


def test_a_rebuild_killed_anywhere_is_refused_by_the_driver_and_can_be_run_again(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Never an empty journal (INV-5): killed at one place after the other, each time with its own timeline. The last place
    is behind its snapshot: the driver leads what it left."""
    with records_flowing(tmp_path, kafka_broker, topic_name()) as (cluster, flow):
        before = lose_journal(cluster)
        for failpoint in REBUILD:
            kill = {"FOREBAY_FAILPOINTS": f"{failpoint}=kill"}
            killed = cluster.command("journal", "rebuild", "--yes", environment=kill)
            assert killed.returncode == -9, (failpoint, killed.stderr)
            if failpoint == REBUILD[-1]:
                break
            refused = cluster.command("driver")
            assert refused.returncode == 1, (failpoint, refused.stderr)
            assert "forebay journal rebuild" in refused.stderr
        assert cluster.state().timeline == 1 + len(REBUILD)
        finish(cluster, flow, before)


def test_a_driver_that_slept_while_its_journal_was_lost_and_rebuilt_is_fenced(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-4."""
    with records_flowing(tmp_path, kafka_broker, topic_name()) as (cluster, flow):
        before = lose_journal(cluster, but=("driver",))
        done = cluster.command("journal", "rebuild", "--yes")
        assert done.returncode == 0, done.stderr
        cluster.wake("driver")
        assert cluster.await_end("driver") == 4
        assert "rebuilt" in cluster.log("driver")
        cluster._services["driver"].process = None
        finish(cluster, flow, before)
