"""A job over the batches of several streams: which batches it gets together, and what an end of the process, a failure, a skip, a
drain and unreadable bytes do to them.

One module, because all tests run two streams whose receivers are played by the test.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as AnswerLate
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from driver.batches.job.batch import Batch
from driver.batches.joint.jobs import JointFollower, JointJob, JointLeader
from driver.batches.joint.streams import JointStreams, Port
from driver.context import IngestContext, IngestStreams
from driver.decisions.joint_batches import Fate
from driver.joint_jobs import joining, joint_members
from driver.journal.log import reading as journal
from driver.journal.state import State
from driver.main import refuse_joins
from driver.service import DriverOptions
from driver.tracker.requests import AllocateJoint
from forebay import messages as m
from forebay.http.client import Client
from forebay.kafka.embedded.broker import MockBroker
from forebay.messages import StatusAnswer
from forebay.model.errors import JobError, RefusedError, SettingsError, UnreachableError, UsageError
from forebay.model.values import TopicPartition
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from recovery.audit import audit
from tests.support.processes import forked
from tests.support.processes.played import PlayedReceiver
from tests.support.run.ports import free_port
from tests.support.state.tracked import Tracked
from wal.storage import open_storage

Seen = list[dict[str, tuple[int, int]]]
Values = Callable[..., dict[str, Any]]
Configure = Callable[..., Settings]


@pytest.fixture
def values(tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]) -> Values:
    """Returns what the configuration of a stream says."""
    topic = topic_name()
    mock_broker.create_topic(topic)

    def of(stream: str, **driver: Any) -> dict[str, Any]:
        return {
            "stream": stream,
            "data": str(tmp_path / stream),
            "kafka": {"topics": [topic], "group": f"{topic}-{stream}", **mock_broker.options},
            "driver": {
                "url": "http://127.0.0.1:0", "engine": "local", "batch_interval": "20ms", "job_retry_delay": "1ms",
                "job_max_failures": 2, "receiver_timeout": "1s", **driver,
            },
        }  # fmt: skip

    return of


@pytest.fixture
def configure(values: Values) -> Configure:
    return lambda stream, **driver: from_values(values(stream, **driver))


class Recorded:
    """A job that keeps what it got: for each run, stream → (batch, records). ``before``: called before each run."""

    def __init__(self, before: Callable[[Mapping[str, Batch]], None] = lambda batches: None) -> None:
        self.seen: Seen = []
        self.before = before
        self._changed = threading.Condition()

    def __call__(self, batches: Mapping[str, Batch]) -> None:
        self.before(batches)
        assert len({batch.time for batch in batches.values()}) == 1
        read = {name: sum(rows.num_rows for rows in batch.read()) for name, batch in batches.items()}
        with self._changed:
            self.seen.append({name: (batch.id, read[name]) for name, batch in batches.items()})
            self._changed.notify_all()

    def until(self, **records: int) -> None:
        """Wait until the runs have had so many records of each stream."""

        def totals() -> dict[str, int]:
            return {name: sum(run[name][1] for run in self.seen) for name in records}

        with self._changed:
            assert self._changed.wait_for(lambda: totals() == records, 60), self.seen


class Receiver:
    """A receiver of one of the streams, played by the test."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.client = Client(url)
        self.await_status(lambda now: now.state == "running")
        self.played = PlayedReceiver(settings, url)
        self.topic = settings.kafka.topics[0]

    def __call__(self, records: int) -> Any:
        return self.played.take_in(TopicPartition(self.topic, 0), records)

    def status(self) -> StatusAnswer:
        return self.client.get("/v1/status", StatusAnswer)

    def await_status(self, holds: Callable[[StatusAnswer], Any]) -> StatusAnswer:
        for _ in range(1500):
            if holds(now := self.status()):
                return now
            threading.Event().wait(0.02)
        raise AssertionError(f"it never came: {now}")

    def post(self, path: str, request: m.Message) -> str:
        return self.client.post(f"/v1/operator/{path}", request, m.OperatorAnswer).message


@contextmanager
def joint(
    job: JointJob, *settings: Settings, spark: object = None
) -> Iterator[tuple[IngestStreams, Receiver, Receiver]]:
    with IngestStreams(spark, *settings, take_over=True) as streams:
        streams.foreach_joint(job)
        orders, clicks = (Receiver(found, streams[found.stream].url) for found in settings)
        yield streams, orders, clicks


def state_of(settings: Settings) -> State:
    state = journal.read(open_storage(settings.driver.journal), settings.stream).state
    assert state is not None
    return state


def test_a_stream_whose_answer_comes_too_late_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changes in either stream after the answer that was late, so nothing wakes the one that waits."""
    monkeypatch.setattr("driver.batches.joint.jobs.NOTE_SECONDS", 0.01)
    fates = [None, None, Fate(True)]

    def ask(request: object, timeout_seconds: float | None = None) -> Any:
        fate = fates.pop(0)
        if fate is None:
            raise AnswerLate
        return fate

    streams = JointStreams("orders", ["clicks"])
    port = Port(
        ask=ask, tasks=lambda: 1, wake=lambda: None, end_interval=lambda time_ms: None, stopping=lambda: False,
        held_up=lambda: "",
    )  # fmt: skip
    streams.attach("orders", port)
    follower = JointFollower(streams, "clicks")
    follower.attach(port)
    (job,) = follower.jobs(())
    running = threading.Thread(target=job.function, args=(SimpleNamespace(id=7),), daemon=True)
    running.start()
    running.join(60)
    assert not running.is_alive() and not fates


def test_a_batch_made_for_one_leader_is_not_given_to_another() -> None:
    """INV-2. An operator may change which stream leads while a joint batch is unfinished."""
    t = Tracked()
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 10)
    made = t.ask(AllocateJoint(1_000, 1, "orders")).batch_id
    assert made is not None
    assert t.ask(AllocateJoint(1_000, 1, "orders")).batch_id == made, "the leader has not named it yet"
    assert t.ask(AllocateJoint(1_000, 1, "payments")).batch_id is None
    t.complete(made)
    assert t.ask(AllocateJoint(2_000, 1, "payments")).batch_id is not None


def test_a_job_gets_the_batches_of_both_streams_also_empty_ones(configure: Configure) -> None:
    """And a drain of the stream that leads completes what the other has taken in."""
    job = Recorded()
    both = configure("orders"), configure("clicks")
    with joint(job, *both) as (streams, orders, clicks):
        orders(3)
        clicks(2)
        job.until(orders=3, clicks=2)
        clicks(4)
        job.until(orders=3, clicks=6)
        runs = len(job.seen)
        orders(5)
        clicks(1)
        streams["orders"].stop(drain=True)
        assert streams.await_termination(60)
        job.until(orders=8, clicks=7)
        assert len(job.seen) <= runs + 2
    assert any(run["orders"][1] == 0 for run in job.seen), "a stream without records has an empty batch"
    for found in both:
        state = state_of(found)
        assert not state.unfinished() and not state.waiting
        assert audit(open_storage(found.driver.journal), found.stream).clean
        assert [batch.number for batch in state.batches.values()][-1:] in ([], [len(job.seen)]), (
            "no empty joint batches"
        )


def failed(now: StatusAnswer) -> bool:
    return any(batch.state == "failed" for batch in now.batches)


def unreadable(now: StatusAnswer) -> bool:
    return any(batch.state == "unreadable" for batch in now.batches)


def test_a_failed_joint_batch_runs_again_in_the_next_process_or_is_skipped_in_all_streams(configure: Configure) -> None:
    """INV-3, INV-5. A process without the joint job refuses its batches, until they are run together again."""
    job = Recorded()

    def fail(batches: Mapping[str, Batch]) -> None:
        job(batches)
        raise ValueError("no such carrier")

    both = configure("orders"), configure("clicks")
    with joint(fail, *both) as (streams, orders, clicks):
        orders(3)
        clicks(2)
        with pytest.raises(JobError, match="no such carrier"):
            streams.await_any_termination(60)
        assert streams["clicks"].await_termination(60), "none goes on without the other"
        with pytest.raises(
            UsageError, match=r"has failed for good, .* IngestStreams.start\(\) starts all of them again"
        ):
            streams["clicks"].start()
        streams.start()
        with pytest.raises(JobError, match="no such carrier"):
            streams.await_any_termination(60)
        assert streams["clicks"].await_termination(60)
    first = job.seen[-1]
    assert sum(records for _, records in first.values()) > 0

    for settings in both:
        with IngestContext(None, settings, take_over=True) as alone:
            alone.foreach_batch(lambda batch: None)
            with pytest.raises(JobError, match="is for the joint job of stream 'orders'; run these streams together"):
                alone.await_termination(60)

    again = Recorded()
    with joint(again, *both) as (streams, orders, clicks):
        again.until(orders=3, clicks=2)
        assert again.seen[0] == first, "the same batches with the same records"
        with pytest.raises(RefusedError, match="a replay runs those of one stream"):
            clicks.post("replay", m.ReplayRequest(batch=first["clicks"][0]))


def test_a_skipped_joint_batch_is_skipped_in_all_streams(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-5: the audit of each stream lists its records as a loss."""
    monkeypatch.setattr("driver.context.DriverOptions", partial(DriverOptions, waits_when_failed=True))
    broken = threading.Event()
    broken.set()

    def check(batches: Mapping[str, Batch]) -> None:
        if broken.is_set():
            raise ValueError("corrupt order")

    job = Recorded(check)
    both = configure("orders"), configure("clicks")
    with joint(job, *both) as (_, orders, clicks):
        clicks(2)
        now = orders.await_status(failed)
        (batch,) = (batch for batch in now.batches if batch.state == "failed")
        (other,) = (batch for batch in clicks.status().batches if batch.state == "running")
        with pytest.raises(RefusedError, match="skip that stream's batch, and this one is skipped too"):
            clicks.post("skip", m.SkipBatchRequest(batch_id=other.batch_id, cause="anna: corrupt"))
        broken.clear()
        orders.post("skip", m.SkipBatchRequest(batch_id=batch.batch_id, cause="anna: corrupt"))
        clicks.await_status(lambda now: [b for b in now.batches if b.detail == "skipped by anna: corrupt"])
        clicks(4)
        job.until(orders=0, clicks=4)
    report = audit(open_storage(both[1].driver.journal), "clicks")
    assert report.clean and [(loss.batch_id, loss.cause) for loss in report.losses] == [
        (other.batch_id, "the batch was skipped by anna: corrupt")
    ]


def test_a_follower_that_can_not_read_its_batch_shows_it_and_the_job_waits(configure: Configure) -> None:
    """INV-5. The loss is accepted in the stream that has it; the leader's job has not failed."""
    job = Recorded()
    both = configure("orders"), configure("clicks", unreadable_retry="50ms")
    with joint(job, *both) as (_, orders, clicks):
        orders.post("pause", m.PauseRequest(paused=True, cause="anna"))
        orders(3)
        block = clicks(2)
        (Path(both[1].data or "") / "wal" / block.handle.path).unlink()
        orders.post("pause", m.PauseRequest(paused=False, cause="anna"))
        now = clicks.await_status(unreadable)
        (batch,) = (batch for batch in now.batches if batch.state == "unreadable")
        assert f"--accept-loss {batch.batch_id}" in batch.detail and not failed(orders.status())
        (label,) = (range_.label for range_ in block.meta.ranges)
        loss = m.AcceptLossRequest(batch_id=batch.batch_id, ranges=(label,), cause="anna")
        clicks.post("accept-loss", loss)
        job.until(orders=3, clicks=0)
        clicks(1)
        job.until(orders=3, clicks=1)


def test_a_joint_batch_that_waits_for_a_stream_is_paused_and_skipped_as_a_failed_one(configure: Configure) -> None:
    job = Recorded()
    both = configure("orders"), configure("clicks", unreadable_retry="1h")
    with joint(job, *both) as (_, orders, clicks):
        orders.post("pause", m.PauseRequest(paused=True, cause="anna"))
        orders(3)
        block = clicks(2)
        stored = Path(both[1].data or "") / "wal" / block.handle.path
        away = stored.rename(stored.with_suffix(".away"))
        orders.post("pause", m.PauseRequest(paused=False, cause="anna"))
        clicks.await_status(unreadable)
        orders.post("pause", m.PauseRequest(paused=True, cause="anna"))
        away.rename(stored)
        clicks.post("retry", m.RetryRequest(cause="anna"))
        clicks.await_status(lambda now: [batch for batch in now.batches if batch.state == "running"])
        assert not job.seen, "the batches are paused"
        stored.rename(away)
        orders.post("pause", m.PauseRequest(paused=False, cause="anna"))
        clicks.await_status(unreadable)
        (batch,) = (batch for batch in orders.status().batches if batch.state != "completed")
        request = m.SkipBatchRequest(batch_id=batch.batch_id, cause="anna: lost")
        orders.await_status(lambda now: accepted(orders, "skip", request))  # refused until the attempt has ended
        clicks.post("retry", m.RetryRequest(cause="anna"))
        clicks.await_status(lambda now: [b for b in now.batches if b.detail == "skipped by anna: lost"])
        clicks(1)
        job.until(orders=0, clicks=1)


def accepted(stream: Receiver, path: str, request: m.Message) -> bool:
    try:
        stream.post(path, request)
    except RefusedError:
        return False
    return True


def test_a_stream_that_is_started_after_another_failed_for_good_ends_too() -> None:
    streams = JointStreams("orders", ["clicks"])
    orders, clicks = JointLeader(streams, "orders"), JointFollower(streams, "clicks")
    stopped: list[bool] = []
    orders.stopped_by(lambda drain, timeout_seconds: stopped.append(drain))
    clicks.fail()
    assert stopped == [False]
    orders.stopped_by(lambda drain, timeout_seconds: stopped.append(drain))
    assert stopped == [False, False], "the failure had stopped only the driver before it"
    orders.begin_again()
    orders.stopped_by(lambda drain, timeout_seconds: stopped.append(drain))
    assert stopped == [False, False]


def test_the_job_waits_for_a_stream_that_is_stopped_and_goes_on_when_it_is_started(configure: Configure) -> None:
    job = Recorded()
    both = configure("orders"), configure("clicks")
    with joint(job, *both) as (streams, orders, _):
        streams["clicks"].stop()
        orders(3)
        assert not orders.status().batches_completed
        streams["clicks"].start()
        Receiver(both[1], streams["clicks"].url)(2)
        job.until(orders=3, clicks=2)


def test_states_and_outputs_belong_to_the_leading_stream(configure: Configure) -> None:
    columns = pa.schema([("key", pa.int64()), ("count", pa.int64())])
    refused: list[str] = []

    def count(batches: Mapping[str, Batch]) -> None:
        with pytest.raises(UsageError) as error:
            batches["clicks"].state("counts", columns, "key")
        refused.append(str(error.value))
        rows = [{"key": 1, "count": batches["clicks"].records}]
        batches["orders"].state("counts", columns, "key").write(pa.Table.from_pylist(rows, columns))

    both = configure("orders"), configure("clicks")
    job = Recorded()
    with IngestStreams(None, *both, take_over=True) as streams:
        streams.foreach_joint(count, "counts").foreach_joint(job, "records")
        assert not streams.await_any_termination(0.01)
        Receiver(both[1], streams["clicks"].url)(2)
        job.until(clicks=2)
    assert all("a joint batch has only states of the stream that leads" in message for message in refused) and refused
    (kept,) = state_of(both[0]).keyed.values()
    assert kept.versions and not state_of(both[1]).keyed


@pytest.mark.spark
def test_spark_joins_the_batches_of_two_streams(configure: Configure, spark: object) -> None:
    """As DStreams were joined: each row of a stream meets those of the other stream's batch, in Spark's tasks."""
    joined: list[tuple[int, int]] = []
    found = threading.Event()

    def match(batches: Mapping[str, Batch]) -> None:
        orders, clicks = (batches[name].df.select("partition", "offset") for name in ("orders", "clicks"))
        rows = orders.join(clicks, ["partition", "offset"]).collect()
        both = batches["orders"].records and batches["clicks"].records
        joined.extend((row["partition"], row["offset"]) for row in rows)
        if both and orders.union(clicks).count() == 5:
            found.set()

    with joint(match, *(configure(name, engine="spark") for name in ("orders", "clicks")), spark=spark) as (
        _,
        orders,
        clicks,
    ):
        orders.post("pause", m.PauseRequest(paused=True, cause="both have records"))
        orders(3)
        clicks(2)
        orders.post("pause", m.PauseRequest(paused=False, cause="both have records"))
        assert found.wait(60)
    assert sorted(joined) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("leading", "following", "message"),
    [
        ({"joins": ["payments"]}, {}, "joins 'payments', which is not in this process; its streams are orders, clicks"),
        ({"joins": ["orders"]}, {}, "'orders' would take part in two joint jobs, or twice in one"),
        ({"joins": ["clicks", "clicks"]}, {}, "'clicks' would take part in two joint jobs, or twice in one"),
        ({}, {"batch_interval": "1s"}, "'clicks' can't take part .* driver.batch_interval is 1 s, and that of 'orders' is"),
        ({"batch_interval": "0s"}, {}, 'stream \'orders\' can\'t .* driver.batch_interval = "0s" ends no interval'),
        ({"concurrent_jobs": 2}, {}, "driver.concurrent_jobs is 2: joint batches run one after the other"),
        ({}, {"max_queued_batches": 3}, "driver.max_queued_batches: a joint batch is made only when its job can begin"),
        ({}, {"engine": "spark"}, "driver.engine is 'spark', and that of 'orders' is 'local'"),
        ({}, {"job": "jobs:process"}, "driver.job: its batches are for the job of the other stream"),
    ],
)  # fmt: skip
def test_streams_that_can_not_have_a_joint_job_are_refused(
    configure: Configure, leading: dict[str, Any], following: dict[str, Any], message: str
) -> None:
    streams = [configure("orders", **leading), configure("clicks", **following)]
    with pytest.raises(SettingsError, match=message):
        joint_members(joining(streams))


def test_a_stream_that_joins_others_is_not_run_alone(configure: Configure) -> None:
    settings = configure("orders", joins=["clicks"], job="jobs:process")
    with pytest.raises(SettingsError, match="run these streams in one process, as in `forebay driver --with clicks"):
        refuse_joins(settings)
    with pytest.raises(SettingsError, match="or with IngestStreams"):
        IngestContext(None, settings).foreach_batch(lambda batch: None)


JOB = """
import json, os
from pathlib import Path

SEEN = Path(__file__).parent / "seen"

def process(batches):
    given = {name: [batch.id, [r.label for r in batch.ranges]] for name, batch in batches.items()}
    path = SEEN / f"{batches['orders'].id}.json"
    if path.exists() and json.loads(path.read_text()) != given:
        (SEEN / f"other-{path.name}").write_text(json.dumps(given))  # INV-3 is broken
    half = path.with_suffix(".half")
    half.write_text(json.dumps(given))
    os.replace(half, path)
"""


class Process:
    """`forebay driver --with` over two streams, killed at failpoints."""

    def __init__(self, folder: Path, values: Values) -> None:
        self.folder = folder
        (folder / "seen").mkdir()
        (folder / "joint_job.py").write_text(JOB)
        self.settings = [
            self._configured(values(stream, url=f"http://127.0.0.1:{free_port()}", **driver))
            for stream, driver in (("orders", {"joins": ["clicks"], "job": "joint_job:process"}), ("clicks", {}))
        ]

    def _configured(self, values: dict[str, Any]) -> Settings:
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if not isinstance(value, dict)]
        for section, keys in values.items():
            if isinstance(keys, dict):
                lines += [f"[{section}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in keys.items())]
        (self.folder / f"{values['stream']}.toml").write_text("\n".join(lines))
        return from_values(values)

    def start(self, failpoint: str = "", *options: str) -> forked.Forked:
        marks = self.folder / f"marks-{failpoint}"
        marks.mkdir(exist_ok=True)
        environment = {**os.environ, "FOREBAY_FAILPOINTS": failpoint, "FOREBAY_FAILPOINT_DIR": str(marks)}
        arguments = ["--config", "orders.toml", "driver", "--take-over", "--with", "clicks.toml", *options]
        with (self.folder / "driver.log").open("ab") as log:
            return forked.server().start(
                arguments, folder=self.folder, environment=environment, out=log.fileno(), error=log.fileno()
            )

    def feed(self, process: forked.Forked) -> None:
        """Have both streams take records in, as far as the process lives."""
        for settings, records in zip(self.settings, (3, 2), strict=True):
            while process.poll() is None:
                with suppress(UnreachableError):
                    Receiver(settings, settings.driver.url)(records)
                    break
                threading.Event().wait(0.02)

    def check(self) -> None:
        """INV-2, INV-3: each record that was taken in is in exactly one joint batch, whose streams' batches ended together."""
        assert not list((self.folder / "seen").glob("other-*"))
        given = [json.loads(path.read_text()) for path in sorted((self.folder / "seen").glob("*.json"))]
        for settings in self.settings:
            state = state_of(settings)
            assert not state.unfinished() and not state.waiting
            assert audit(open_storage(settings.driver.journal), settings.stream).clean
            partition = state.partitions[f"{settings.kafka.topics[0]}/0"]
            ranges = sorted(
                tuple(map(int, label.partition("[")[2].rstrip(")").split(", ")))
                for run in given
                for label in run[settings.stream][1]
            )
            ends = [until for _, until in ranges]
            assert [0, *ends] == [*(begin for begin, _ in ranges), partition.position], ranges
            ids = [run[settings.stream][0] for run in given]
            assert len(set(ids)) == len(ids) == state.batch_count, "each batch is in one joint batch"


#: a place for each step between the making of a joint batch and its completion in both streams
KILLS = [
    "driver.in-job=kill@2",
    "driver.before-complete=kill@1",  # the job is done
    "journal.after-sync:BatchCompleted=kill@1",  # the stream that leads has completed its batch
    "driver.after-complete=kill@2",  # both have
    "journal.after-sync:BatchAllocated=kill@1",  # the stream that follows has its batch
    "journal.after-sync:BatchAllocated=kill@2",  # both have
]


def test_a_process_killed_at_any_step_of_a_joint_batch_repeats_and_loses_nothing(
    tmp_path: Path, values: Values
) -> None:
    process = Process(tmp_path, values)
    for failpoint in KILLS:
        running = process.start(failpoint)
        process.feed(running)
        assert running.wait(60) == -signal.SIGKILL, failpoint
    assert process.start("", "--until-caught-up").wait(60) == 0, "all streams drain when all are caught up"
    process.check()
