"""Adoption, recovery and rebuild of the journal in turn, by one stream of real processes, on a real S3 server.

The long run does the same on a real HDFS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driver.journal.state import REPAIR_WRITER
from forebay.kafka.embedded.broker import KafkaBroker
from tests.integration.test_adoption import adopted, drop, leave_an_orphan
from tests.integration.test_rebuild import finish
from tests.support.kafka.flow import Flow, Truth
from tests.support.processes.cluster import AHEAD, Cluster
from tests.support.stores.contract import STORES, Store
from wal.segments.barrier import barrier_made_ms
from wal.segments.frame import Frame
from wal.segments.layout import block_folder
from wal.segments.scan import scan_segment

pytestmark = pytest.mark.kafka


@pytest.fixture(params=["s3", pytest.param("hdfs", marks=[pytest.mark.hdfs, pytest.mark.long])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with STORES[request.param](tmp_path / "store") as store:
        store.begin()
        yield store


def test_a_stream_is_adopted_recovered_and_rebuilt_on_a_remote_store(
    tmp_path: Path, store: Store, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-2, INV-3, INV-5: every record is in exactly one batch except those that the rebuild names."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with Cluster(
        tmp_path / "cluster",
        kafka_broker.options,
        [topic],
        receivers=1,
        start=False,
        kafka={"session.timeout.ms": "1500"},
        receiver={"block_interval": "200ms"},  # each block is an object, with several requests through the proxy
        wal={"url": f"{store.url}/wal", "segment_size": "1B"},  # an object for each block
        driver={"journal": f"{store.url}/journal", **AHEAD},
        storage=store.options,
    ) as cluster:
        truth = adopt_what_kafka_dropped(cluster, topic, kafka_broker)
        with Flow(kafka_broker.options, topic, rate=300) as flow:
            flow.truth.extend(truth)
            recover_what_was_damaged(cluster, flow)
        with Flow(kafka_broker.options, topic, rate=300) as more:
            more.truth.extend(flow.truth)
            rebuild_the_journal(cluster, more)
        cluster.drain()
        again = cluster.command("recover", "--apply")
        assert again.returncode == 0, again.stdout + again.stderr


def adopt_what_kafka_dropped(cluster: Cluster, topic: str, broker: KafkaBroker) -> Truth:
    """The receiver is killed between sync and report, and everything is down while retention passes its records. The driver is
    killed around the barrier that it makes behind what the receiver wrote."""
    truth = leave_an_orphan(cluster, topic, broker, action="kill")
    cluster.await_end("r1")
    cluster.kill9("driver")
    drop(broker, topic, truth.ends())
    epoch = cluster.state().receivers["r1"].epoch
    marks = ("adoption.before-bar", "journal.before-sync:EpochBarred")
    cluster.restart("driver", failpoints=",".join(f"{mark}=kill" for mark in marks))
    cluster.start("r1")
    cluster.await_completed(truth.ends())
    for mark in marks:
        cluster.await_hit(mark)
    assert adopted(cluster)
    *_, last = cluster.wal_storage.list(block_folder("stream", "r1", epoch))
    first = next(scan_segment(cluster.wal_storage, last))
    assert isinstance(first, Frame) and barrier_made_ms(first, last) is not None
    report = cluster.check(truth)
    assert not any(incarnation.gaps for incarnation in report.incarnations)
    return truth


def recover_what_was_damaged(cluster: Cluster, flow: Flow) -> None:
    """A stopped stream still needs an object with a flipped byte and a deleted object: a local copy and Kafka have them.
    The batches then read what was written anew, since nothing else has it."""
    before = cluster.wait(cluster.status, "status")
    cluster.await_records(before.records_completed + 100)
    cluster.allocate_behind_a_held_job()
    cluster.wait(lambda: len(cluster.needed()) >= 2, "two blocks that batches need")
    flow.stop()
    for name in ("driver", "agent", "r1"):
        cluster.kill9(name)
    wal = cluster.wal_storage
    damaged, gone = cluster.needed()[:2]
    assert damaged.handle.path != gone.handle.path
    copies = cluster.folder / "blocks" / "stream"
    data = bytearray(wal.read(damaged.handle.path))
    data[damaged.handle.offset + damaged.handle.length - 3] ^= 1
    wal.replace(damaged.handle.path, data)
    wal.delete(gone.handle.path)
    (copies / f"{gone.id}.block").unlink()

    verify = cluster.command("wal", "verify", "--json")
    assert verify.returncode == 1, verify.stderr
    found = {place["path"]: (place["block_id"], place["decision"]) for place in json.loads(verify.stdout)["findings"]}
    assert found == {
        damaged.handle.path: (damaged.id, "damaged-quarantine"),
        gone.handle.path: (gone.id, "missing"),
    }
    plan = cluster.command("recover", "--json")
    assert plan.returncode == 1, plan.stderr
    assert wal.read(damaged.handle.path) == data
    applied = cluster.command("recover", "--apply", "--json")
    for said, done in ((plan, False), (applied, True)):
        sources = {r["block_id"]: (r["source"], r["exact"], r["done"]) for r in json.loads(said.stdout)["recoveries"]}
        assert sources == {damaged.id: ("local copy", True, done), gone.id: ("Kafka", False, done)}
    assert all("may still" in line for line in applied.stderr.splitlines()), applied.stderr
    blocks = cluster.state().blocks
    assert all(block_folder("stream", REPAIR_WRITER) in blocks[block.id].handle.path for block in (damaged, gone))
    assert bytes(data) in [wal.read(path) for path in wal.list("stream/aside")]
    assert not wal.exists(damaged.handle.path)

    for path in copies.glob("*.block"):
        path.unlink()
    (cluster.folder / "hold").unlink()
    cluster.write_settings(kafka={"read_blocks": False})
    for name in ("driver", "agent", "r1"):
        cluster.restart(name)
    cluster.await_completed(flow.truth.ends())
    cluster.check(flow.truth)


def rebuild_the_journal(cluster: Cluster, flow: Flow) -> None:
    """Delete every object below the journal's prefix under a running stream, with its history."""
    done = cluster.wait(cluster.status, "status")
    cluster.await_records(done.records_completed + 200)
    for name in ("r1", "driver", "agent"):
        cluster.kill9(name)
    before = {(p.topic, p.partition): p.position for p in cluster.state().partitions.values()}
    journal = cluster.journal_storage
    for path in journal.list(""):
        journal.delete(path)
    assert not journal.list("")

    refused = cluster.command("driver")
    assert refused.returncode == 1, refused.stderr
    assert "journal was lost" in refused.stderr
    assert "forebay journal rebuild" in refused.stderr
    assert not journal.list("")
    dry = cluster.command("journal", "rebuild", "--json")
    assert dry.returncode == 0, dry.stderr
    assert not journal.list("")
    made = cluster.command("journal", "rebuild", "--yes", "--json")
    assert made.returncode == 0, made.stderr
    assert {**json.loads(dry.stdout), "done": True} == json.loads(made.stdout)
    finish(cluster, flow, before)
