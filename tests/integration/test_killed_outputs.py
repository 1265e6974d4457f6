"""Kill -9 of the driver at random moments while batches go to every kind of output: each table has each record once.

The tables are read without the output helpers, and compared with the acknowledged records and with the history. The seed is
printed; ``FOREBAY_CRASH_SEED`` repeats its draws (not the machine's timing).
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psycopg
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow, Truth
from tests.support.kafka.polling import committed_values
from tests.support.processes.cluster import Cluster
from tests.support.servers.postgresql import PostgresServer

pytestmark = pytest.mark.kafka

#: where a driver kills itself, and at which arrival at most: around each output of a batch, and around what is journalled of it
PLACES = {
    "output.before-write": 30, "output.mid-write": 30, "output.before-commit": 30, "output.after-commit": 30,
    "driver.after-allocate": 6, "journal.before-sync:OutputCompleted": 30, "journal.after-sync:OutputCompleted": 30,
    "driver.before-complete": 6, "journal.before-sync:BatchCompleted": 6, "driver.after-complete": 6,
    "history.after-append": 2,
}  # fmt: skip
RECORDS_A_SECOND = 200
RECORDS_A_BATCH = 200  # what came while the driver was down is cut into many batches
BATCHES_MAX = 6
IN_BATCH_SECONDS = 0.3
ANYWHERE_SECONDS = 4.0  # the start of a driver is within it

#: the job's functions; each output under the driver's own name for it
JOB = """\
import json

import pyarrow as pa

from driver.outputs import DeltaOutput, KafkaOutput, ParquetOutput, SqlOutput

PLACES = json.loads({places!r})
in_sqlite = SqlOutput(PLACES["sqlite"], "records", name="sqlite")
in_postgresql = SqlOutput(PLACES["postgresql"], "records", name="postgresql")
in_topic = KafkaOutput(PLACES["broker"], PLACES["topic"], name="topic")
in_delta = DeltaOutput(PLACES["delta"])
in_parquet = ParquetOutput(PLACES["parquet"])


def rows_of(batch):
    for rows in batch.read():
        yield pa.record_batch({{
            "partition": rows["partition"].cast(pa.int32()),
            "offset": rows["offset"].cast(pa.int64()),
            "key": rows["key"].cast(pa.binary()),
            "value": rows["value"].cast(pa.binary()),
            "batch": pa.array([batch.id] * rows.num_rows, pa.int64()),
        }})


def messages_of(batch):
    for rows in rows_of(batch):
        texts = [[text.decode() for text in rows[name].to_pylist()] for name in ("key", "value")]
        numbers = [rows[name].to_pylist() for name in ("partition", "offset", "batch")]
        lines = [json.dumps([p, o, k, v, b]) for p, o, k, v, b in zip(*numbers[:2], *texts, numbers[2])]
        yield pa.record_batch({{"key": rows["key"], "value": pa.array(lines, pa.string())}})


def sqlite(batch):
    in_sqlite.write(batch, rows_of(batch))


def postgresql(batch):
    in_postgresql.write(batch, rows_of(batch))


def topic(batch):
    in_topic.write(batch, messages_of(batch))


def delta(batch):
    in_delta.write(batch, rows_of(batch))


def parquet(batch):
    in_parquet.write(batch, rows_of(batch))
"""
OUTPUTS = ("sqlite", "postgresql", "topic", "delta", "parquet")
COLUMNS = '"partition" int, "offset" bigint, "key" {bytes}, "value" {bytes}, "batch" bigint'
NAMES = ("partition", "offset", "key", "value", "batch")

Row = tuple[int, int, bytes, bytes, int]


def draw_seed() -> int:
    seed = int(os.environ.get("FOREBAY_CRASH_SEED") or random.SystemRandom().randrange(10**9))
    print(f"\ncrash run with FOREBAY_CRASH_SEED={seed}")
    return seed


@dataclass(frozen=True)
class Tables:
    """Five empty places for the same rows, and their contents, as any program reads them."""

    folder: Path
    broker: KafkaBroker
    topic: str
    postgresql: str  # SQLAlchemy's url

    def make(self) -> None:
        with closing(sqlite3.connect(self.folder / "data.db")) as connection, connection:
            connection.execute(f"CREATE TABLE records ({COLUMNS.format(bytes='blob')})")
        with psycopg.connect(self.postgresql.replace("+psycopg", "")) as server:
            server.execute(f"CREATE TABLE records ({COLUMNS.format(bytes='bytea')})")
        self.broker.create_topic(self.topic, partitions=2)
        places = {
            "sqlite": f"sqlite:///{self.folder}/data.db", "postgresql": self.postgresql, "topic": self.topic,
            "broker": dict(self.broker.options), "delta": f"file://{self.folder}/delta",
            "parquet": f"file://{self.folder}/parquet",
        }  # fmt: skip
        (self.folder / "tables.py").write_text(JOB.format(places=msgspec.json.encode(places).decode()))

    def rows(self, output: str) -> list[Row]:
        return sorted(getattr(self, f"_of_{output}")())

    def _of_sqlite(self) -> list[Row]:
        with closing(sqlite3.connect(self.folder / "data.db")) as connection:
            return connection.execute("SELECT * FROM records").fetchall()

    def _of_postgresql(self) -> list[Row]:
        with psycopg.connect(self.postgresql.replace("+psycopg", "")) as connection:
            return connection.execute("SELECT * FROM records").fetchall()

    def _of_topic(self) -> Iterator[Row]:
        for message in committed_values(self.broker, self.topic, 2):
            partition, offset, key, value, batch_id = msgspec.json.decode(message)
            yield partition, offset, key.encode(), value.encode(), batch_id

    def _of_delta(self) -> Iterator[Row]:
        columns = DeltaTable(str(self.folder / "delta")).to_pyarrow_table().to_pydict()
        yield from zip(*(columns[name] for name in NAMES), strict=True)

    def _of_parquet(self) -> Iterator[Row]:
        for path in (self.folder / "parquet").glob("batch=*/*.parquet"):
            columns = pq.read_table(path, partitioning=None).to_pydict()
            assert set(columns["batch"]) == {int(path.parent.name.removeprefix("batch="))}
            yield from zip(*(columns[name] for name in NAMES), strict=True)


@pytest.fixture
def tables(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str], postgresql: PostgresServer
) -> Tables:
    database = topic_name()
    with psycopg.connect(postgresql.url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{database}"'.encode())
    made = Tables(tmp_path, kafka_broker, topic_name(), postgresql.url.rpartition("/")[0] + f"/{database}")
    made.make()
    return made


def kill_through_batches(cluster: Cluster, draw: random.Random, kills: int) -> Counter[str]:
    """Starts the driver and has it killed, ``kills`` times; it is down in the end. Of five kills three are at a place in a batch,
    the first of them where the rerun finds its rows committed; one is some time after a batch began, one at any time."""
    killed: Counter[str] = Counter()
    while killed.total() < kills:
        ways = ["output.after-commit", *draw.choices(list(PLACES), k=2), "within a batch", "at any time"]
        draw.shuffle(ways)
        for way in ways[: kills - killed.total()]:
            if way in PLACES:
                cluster.start("driver", failpoints=f"{way}=kill@{draw.randint(1, PLACES[way])}", keep=False)
                assert cluster.await_end("driver") == -signal.SIGKILL, cluster.describe()
                (cluster.failpoint_folder / f"{way}.hit").unlink()
            else:
                cluster.start("driver", keep=False)
                seconds = ANYWHERE_SECONDS
                if way == "within a batch":
                    due = runs(cluster) + draw.randint(1, BATCHES_MAX)
                    cluster.wait(lambda due=due: runs(cluster) >= due, "a batch that begins")
                    seconds = IN_BATCH_SECONDS
                moment = time.monotonic() + draw.uniform(0.0, seconds)
                cluster.wait(lambda moment=moment: time.monotonic() >= moment, "the moment of the next kill")
                cluster.kill9("driver")
            killed[way] += 1
            print(f"kill {killed.total()}: {way}, {runs(cluster)} batches begun")
    return killed


def runs(cluster: Cluster) -> int:
    """How often the first of the outputs has begun: about once a batch."""
    path = cluster.folder / "runs.txt"
    return path.read_text().count("\n") if path.exists() else 0


def expected(cluster: Cluster, truth: Truth) -> list[Row]:
    """Each produced record once, with the batch that holds its offset by journal and history."""
    batch_of = {
        (range_.partition, offset): batch.batch_id
        for batch in cluster.finished_batches()
        for range_ in batch.ranges
        for offset in range(range_.from_offset, range_.until_offset)
    }
    columns = truth.table().to_pydict()
    places = zip(columns["partition"], columns["offset"], strict=True)
    return sorted(
        (partition, offset, key, value, batch_of[partition, offset])
        for (partition, offset), key, value in zip(places, columns["key"], columns["value"], strict=True)
    )


def kill_and_check(tables: Tables, topic: str, draw: random.Random, kills: int) -> None:
    tables.broker.create_topic(topic)
    job = ["jobs:local", *(f"tables:{output}" for output in OUTPUTS)]
    driver = {"job": job, "max_batch_records": RECORDS_A_BATCH, "lease_duration": "1s"}
    receiver = {"block_size": "8KB"}
    with (
        Flow(tables.broker.options, topic, rate=RECORDS_A_SECOND) as flow,
        Cluster(
            tables.folder,
            tables.broker.options,
            [topic],
            receivers=1,
            stream=topic,
            start=False,
            driver=driver,
            receiver=receiver,
        ) as cluster,
    ):
        for name in ("agent", "r1"):
            cluster.start(name)
        killed = kill_through_batches(cluster, draw, kills)
        cluster.start("driver")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        report = cluster.check(flow.truth)
        wanted = expected(cluster, flow.truth)
        skipped = cluster.log("driver").count(": skipped, ")
    for output in OUTPUTS:
        assert_same_rows(output, tables.rows(output), wanted)
    assert killed.total() == kills
    assert skipped, "no rerun found its rows committed"
    print(
        f"{len(wanted)} records, {kills} kills, {report.batches_completed} batches, {skipped} writes "
        "skipped: each record once in each of " + ", ".join(OUTPUTS)
    )


def assert_same_rows(output: str, found: list[Row], wanted: list[Row]) -> None:
    if found == wanted:
        return
    rows, due = Counter(found), Counter(wanted)
    raise AssertionError(
        f"{output}: {len(found)} rows of {len(wanted)}; missing {sorted(due - rows)[:5]}, too many {sorted(rows - due)[:5]}"
    )


def test_a_driver_killed_at_random_leaves_each_record_once_in_each_kind_of_output(
    tables: Tables, topic_name: Callable[[], str]
) -> None:
    """INV-3. Each row has the id of the batch that holds its offset, whichever runs of it were killed."""
    kill_and_check(tables, topic_name(), random.Random(draw_seed()), kills=5)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_fifty_kills_of_a_driver_leave_each_record_once_in_each_kind_of_output(
    tables: Tables, topic_name: Callable[[], str]
) -> None:
    """The long run: FOREBAY_CRASH_KILLS makes it another size."""
    kills = int(os.environ.get("FOREBAY_CRASH_KILLS", "50"))
    kill_and_check(tables, topic_name(), random.Random(draw_seed()), kills=kills)


#: the first batch that finds the file ``hold-one`` waits for its end, while others go on
SIDE_BY_SIDE = """\
import time
from pathlib import Path

import jobs

HERE = Path(__file__).resolve().parent


def job(batch):
    if (HERE / "hold-one").exists():
        try:
            (HERE / "held-one").open("x").write(str(batch.id))
        except FileExistsError:
            pass
        else:
            while (HERE / "hold-one").exists():
                time.sleep(0.02)
    jobs.local(batch)
"""


def test_killed_with_two_batches_in_work_only_uncompleted_ones_run_again(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-3: killed when the later of two was completed first, then when both were in their middle. The completed position
    stays before the batch that is not completed."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    (tmp_path / "side.py").write_text(SIDE_BY_SIDE)
    driver = {"job": "side:job", "concurrent_jobs": 2}
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, stream=topic, driver=driver) as cluster,
    ):
        cluster.await_records(1)
        (tmp_path / "hold-one").touch()
        held = int(cluster.wait(lambda: read(tmp_path / "held-one"), "a batch held before its job"))
        later = cluster.wait(
            lambda: min((b for b in cluster.completed_batches() if b > held), default=None), "a later one completed"
        )
        cluster.kill9("driver")
        state = cluster.state()
        assert state.batches[held].completed_ms is None and state.batches[later].completed_ms is not None
        assert state.completed_number == state.batches[held].number - 1
        ranges = [r for block_id in state.batches[held].block_ids for r in state.blocks[block_id].meta.ranges]
        assert ranges
        for r in ranges:
            partition = state.partition(r.tp)
            assert partition is not None and partition.completed <= r.from_offset
        (tmp_path / "hold-one").unlink()
        cluster.restart("driver")
        reruns = {batch.batch_id for batch in state.unfinished()}
        cluster.wait(lambda: reruns <= cluster.completed_batches(), "the reruns of what was not completed")

        (tmp_path / "hold").touch()
        both = cluster.wait(
            lambda: (found := sorted(int(path.stem) for path in cluster.seen.glob("*.held")))[1:] and found,
            "two batches held in their middle",
        )
        cluster.kill9("driver")
        assert [batch.batch_id for batch in cluster.state().unfinished()][:2] == both
        (tmp_path / "hold").unlink()
        cluster.restart("driver")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
    lines = [line.split() for line in (tmp_path / "runs.txt").read_text().splitlines()]
    flags = {batch_id: [line[3] for line in lines if int(line[1]) == batch_id] for batch_id in (held, later, *both)}
    assert flags == {held: ["True"], later: ["False"], **{batch_id: ["False", "True"] for batch_id in both}}


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
