"""A job that counts records in a keyed state and notes its windows, the steps at which its driver is killed, and the checks of
the final state and windows.

The job counts the records of each partition and key. A state that missed a batch, saw a batch twice, or saw its own earlier run
has other counts than Kafka's records. The state is read without the driver, from the journal and the files.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from driver.background.state_files import ReadNeededVersions, garbage
from driver.journal.state import State
from tests.support.kafka.flow import Flow, Truth
from tests.support.processes.cluster import Cluster
from tests.support.state.states import read_past_the_driver
from wal.keyed import files
from wal.storage import Storage

#: failpoint → the arrival at which the driver kills itself
KILLS = {
    "state.before-write": 2,
    "state.mid-write": 4,
    "state.before-manifest": 2,
    "state.after-manifest": 2,
    "driver.before-complete": 2,
    "journal.before-sync:BatchCompleted": 2,
    "journal.after-sync:BatchCompleted": 2,
    "driver.after-complete": 2,
    "state.before-clean": 1,
    "state.mid-clean": 1,
}
RECORDS_BETWEEN = 60

LENGTH, SLIDE = 3_000, 1_000

JOB = """
import json

import pyarrow as pa

import jobs

SCHEMA = pa.schema([("partition", pa.int32()), ("key", pa.binary()), ("count", pa.int64()), ("sum", pa.int64())])
KEY = ["partition", "key"]


def count(batch):
    jobs.local(batch)
    note_windows(batch)
    state = batch.state("counts", SCHEMA, KEY, shards=3, versions=2)
    parts = [pa.table({"partition": rows["partition"].cast(pa.int32()), "key": rows["key"].cast(pa.binary()),
                       "offset": rows["offset"].cast(pa.int64())}) for rows in batch.read()]
    rows = pa.concat_tables(parts).group_by(KEY).aggregate([("offset", "count"), ("offset", "sum")])
    state.update(rows.rename_columns({"offset_count": "count", "offset_sum": "sum"}), add)


def note_windows(batch):
    windows = batch.windows("3s", 1)
    assert all(sum(rows.num_rows for rows in window.read()) == window.records for window in windows)
    found = json.dumps([[round(window.time.timestamp() * 1000), window.covered] for window in windows])
    path = jobs.HERE / "seen" / f"{batch.id}.windows"
    if path.exists() and path.read_text() != found:
        path.with_suffix(".other-windows").touch()
    path.write_text(found)


def add(known, rows):
    keys = rows.select(KEY).append_column("new", pa.array([True] * rows.num_rows))
    both = pa.concat_tables([known, rows.select(SCHEMA.names).cast(SCHEMA)]).group_by(KEY)
    total = both.aggregate([("count", "sum"), ("sum", "sum")])
    return total.join(keys, KEY, join_type="inner").rename_columns({"count_sum": "count", "sum_sum": "sum"})
"""


#: sections of the stream's settings that the job and its checks need
SETTINGS = {"wal": {"cleanup_interval": "200ms"}, "driver": {"window": "3s"}}
JOB_NAME = "states:count"


def write_job(folder: Path) -> None:
    """Write the module of ``JOB_NAME`` into the folder of a cluster."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "states.py").write_text(JOB)


def kill_at_each_step(cluster: Cluster, flow: Flow) -> None:
    """Start the processes, and kill the driver at one step after the other while records flow."""
    write_job(cluster.folder)
    cluster.start_all()
    cluster.await_records(RECORDS_BETWEEN)
    for at, (failpoint, arrival) in enumerate(KILLS.items(), start=2):
        cluster.kill9("driver")
        cluster.restart("driver", failpoints=f"{failpoint}=kill@{arrival}")
        cluster.await_hit(failpoint)
        cluster.wait(lambda at=at: cluster.starts("driver") >= 2 * at - 1, f"killed at {failpoint} and restarted")
        target = flow.records + RECORDS_BETWEEN
        cluster.wait(lambda target=target: flow.records >= target, "more records")


def check_counts(cluster: Cluster, truth: Truth) -> None:
    """Assert that the state counts each record of ``truth`` once, and that the files of killed runs get deleted."""
    cluster.wait(lambda: not left_over(cluster.wal_storage, cluster.state()), "the files of killed runs deleted")
    counted = read_past_the_driver(cluster.wal_storage, cluster.state(), "counts")
    assert counted.equals(expected_of(truth))


def left_over(wal: Storage, state: State) -> list[str]:
    """Return the stored files that no version needs."""
    versions = ReadNeededVersions().read(state)
    needed = set(versions.manifests)
    for path, sha256 in versions.manifests.items():
        needed.update(f.path for shard in files.read_manifest(wal, path, sha256).shards for f in shard)
    return garbage(wal.list(files.states_folder(state.stream)), needed, set(), 1 << 63)


def expected_of(truth: Truth) -> pa.Table:
    found = truth.table().group_by(["partition", "key"]).aggregate([("offset", "count"), ("offset", "sum")])
    return found.rename_columns({"offset_count": "count", "offset_sum": "sum"}).sort_by(
        [("partition", "ascending"), ("key", "ascending")]
    )


def check_windows(cluster: Cluster) -> None:
    """Assert that each batch returned the windows that the times of all batches say, in each of its runs."""
    assert not list(cluster.seen.glob("*.other-windows")), "a rerun returned other windows"
    state = cluster.state()
    times = {batch.batch_id: batch.time_ms for batch in cluster.finished_batches()}
    times |= {batch.batch_id: batch.time_ms for batch in state.batches.values()}
    assert state.archived_number > 0
    windows = 0
    for batch_id, time_ms in sorted(times.items()):
        ends = range((times.get(batch_id - 1, time_ms) // SLIDE + 1) * SLIDE, time_ms + 1, SLIDE)
        expected = [
            [end, batches]
            for end in ends
            if (batches := sorted(b for b, time in times.items() if b < batch_id and end - LENGTH <= time < end))
        ]
        assert json.loads((cluster.seen / f"{batch_id}.windows").read_text()) == expected
        windows += len(expected)
    assert windows > 5
