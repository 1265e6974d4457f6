"""Direct streams, ranges, receivers and sinks while leaders change: three real brokers; two of them end and return."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from direct.checkpoint.checkpoint import Checkpoint
from direct.stream.strategies import Assign, Subscribe
from driver.batches.job.batch import Batch
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.consumer import KafkaSource
from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import JobError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.process import failpoints
from forebay.process.clock import SystemClock
from receiver.main import compose
from tests.conftest import require_kafka
from tests.receiver.fakes import FakeTracker, marked
from tests.receiver.test_service import Running, settings_of, taken_in
from tests.support.kafka.committing_process import GROUPS
from tests.support.kafka.flow import Flow, Truth, numbered, produce, read_topic
from tests.support.kafka.polling import PATIENCE_SECONDS, partitions_of
from tests.support.kafka.three_brokers import ThreeBrokers, three_brokers
from tests.support.processes.direct_runs import RowsRead, Runs
from tests.support.run.wheel import ROOT
from tests.support.spark.sinks import ROWS, Sink, sink_of, write
from tests.support.state import again
from tests.support.state.columns import column_values
from wal.storage.local import LocalStorage

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

#: how long a partition may be without a leader before a test's requests fail
SHORT_SECONDS = 4.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    require_kafka()
    with three_brokers(tmp_path_factory.mktemp("leaders")) as brokers:
        yield brokers


@contextlib.contextmanager
def receiving(brokers: ThreeBrokers, topic: str, tmp_path: Path, tracker: FakeTracker) -> Iterator[None]:
    """A receiver of ``topic``, which is drained at the end."""
    settings = settings_of(tmp_path, tracker.url)
    kafka = msgspec.structs.replace(settings.kafka, topics=(topic,), options=brokers.options)
    settings = msgspec.structs.replace(settings, kafka=kafka)
    source = KafkaSource.of(settings, client_id="r-1")
    storage = marked(LocalStorage(str(tmp_path / "wal")))
    receiver = Running(compose(settings, "r-1", source=source, storage=storage, clock=SystemClock(), host="h"))
    try:
        yield
    finally:
        receiver.service.drain()
        assert receiver.ended(PATIENCE_SECONDS) == 0


@contextlib.contextmanager
def reading_again(access: KafkaAccess, span: OffsetRange) -> Iterator[list[list[int]]]:
    """The same range over and over, by new consumers: its offsets, each time."""
    found: list[list[int]] = []
    failed: list[Exception] = []
    ending = threading.Event()

    def read() -> None:
        try:
            while not ending.wait(0.1):
                batches = list(read_range(access, span, Reading(keep=False)))
                found.append([offset for rows in batches for offset in column_values(rows, "offset")])
        except Exception as error:
            failed.append(error)

    reader = threading.Thread(target=read, name="reading-again")
    reader.start()
    try:
        yield found
    finally:
        ending.set()
        reader.join()
    assert not failed, failed


@contextlib.contextmanager
def committing(brokers: ThreeBrokers, topic: str, group: str) -> Iterator[None]:
    """A process that sets groups' offsets, and must live: a client that is taken by surprise takes all of it down."""
    command = [
        sys.executable,
        "-m",
        "tests.support.kafka.committing_process",
        brokers.options["bootstrap.servers"],
        topic,
    ]
    process = subprocess.Popen(
        [*command, group], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, output.count(group)) == (0, GROUPS), errors[-3000:]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "ends", [("kill9", "stop"), pytest.param(("kill9", "stop") * 4, marks=pytest.mark.long)], ids=len
)
def test_nothing_is_lost_or_read_twice_while_leaders_change(
    ends: Sequence[str], brokers: ThreeBrokers, tmp_path: Path, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-2: leaders end and return while a direct stream commits, a range is read repeatedly, a receiver takes
    in, a process sets offsets of groups, and two sinks write, one of them in transactions."""
    zero, one = partitions_of(topic_name(), 2)
    sink_topics = [topic_name() for _ in range(2)]
    group = topic_name()
    for number in (2, 3):
        brokers.start(number)
    for name in (zero.topic, *sink_topics):
        brokers.create_topic(name, [[2, 3, 1], [3, 2, 1]])
    runs = Runs(brokers.options, tmp_path / "checkpoint")
    job = RowsRead(runs, Reading())
    plain, whole = (
        Sink(brokers.options, name, transactional=number > 0) for number, name in enumerate(sink_topics)
    )  # fmt: skip

    def read_and_commit(work: Batch) -> None:
        job(work)
        runs.commits.add(work.spans)  # type: ignore[attr-defined]

    def goes_on(flow: Flow, tracker: FakeTracker) -> None:
        """Until all have done what began after this."""
        wanted = flow.records + 100
        runs.await_records(wanted)
        tracker.wait_for(lambda: sum(tracker.positions.values()) >= wanted, PATIENCE_SECONDS)
        for sink in (plain, whole):
            sink.await_more()

    with (
        FakeTracker() as tracker,
        receiving(brokers, zero.topic, tmp_path, tracker),
        Flow(brokers.options, zero.topic, partitions=[0, 1], rate=300) as flow,
    ):
        stream = runs.start(Subscribe([zero.topic]), read_and_commit, {"group.id": group})
        runs.await_records(200)
        with (
            reading_again(job.access, OffsetRange(zero.topic, 0, 0, 50)) as again,
            committing(brokers, zero.topic, f"{group}-outside"),
            plain,
            whole,
        ):
            for end in ends:
                for number in (2, 3):
                    brokers.start(number)
                    for tp in (zero, one):
                        brokers.await_in_sync(tp, number)
                number = brokers.leader(zero)
                getattr(brokers, end)(number)
                for tp in (zero, one):
                    brokers.await_leader(tp, other_than=number)
                goes_on(flow, tracker)
        flow.stop()
        with KafkaAdmin(brokers.options) as admin:
            ends_at = admin.ends([zero, one])  # a producer's acknowledgements may leave out what it sent twice
        assert sum(ends_at.values()) >= len(flow.truth)
        runs.await_records(sum(ends_at.values()))
        runs.stop(stream)
        tracker.wait_for(lambda: sum(tracker.positions.values()) >= sum(ends_at.values()), PATIENCE_SECONDS)
    for tp in (zero, one):
        assert runs.once(tp) == (0, ends_at[tp])
        assert [offset for number, offset in job.read if number == tp.partition] == list(range(ends_at[tp]))
        assert [offset for offset, _ in taken_in(tmp_path, tracker)[tp]] == list(range(ends_at[tp]))
    with KafkaAdmin(brokers.options) as admin:
        assert {tp: at.offset for tp, at in admin.committed(group, ends_at).items()} == ends_at
    expected, found = plain.rows()
    assert found >= expected and found.keys() == expected.keys(), "at least once"
    expected, found = whole.rows()
    assert found == expected, "once"
    assert len(again) > 3
    assert all(offsets == list(range(50)) for offsets in again)


@pytest.mark.long
@pytest.mark.parametrize("point", ["sink.before-rows", "sink.mid-rows", "sink.before-commit"])
@pytest.mark.parametrize("coordinates", [True, False], ids=["coordinator", "leader-alone"])
def test_batch_is_written_in_transactions_while_a_brokers_host_does_not_answer(
    point: str, coordinates: bool, brokers: ThreeBrokers, topic_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host leads the written partitions, and maybe coordinates transactions; its connections stay open."""
    zero, one = partitions_of(topic_name(), 2)
    coordinator = TopicPartition("__transaction_state", 0)
    for number in (2, 3):
        brokers.start(number)
        brokers.await_in_sync(coordinator, number)
    number = brokers.leader(coordinator) if coordinates else 5 - brokers.leader(coordinator)
    brokers.create_topic(zero.topic, [[number, 5 - number, 1]] * 2)
    for tp in (zero, one):
        brokers.await_in_sync(tp, 5 - number)
    sink = sink_of(brokers.options, zero.topic, transactional="true", **{"kafka.transaction.timeout.ms": "30000"})
    write(sink, zero.topic, 0)
    silenced: list[int] = []

    def hit(name: str) -> None:
        if name == point and not silenced:
            brokers.silence(number)
            silenced.append(number)

    monkeypatch.setattr(failpoints, "hit", hit)
    try:
        for batch in (1, 2):
            write(sink, zero.topic, batch)
    finally:
        brokers.wake(number)
    assert silenced == [number]
    read = read_topic(brokers.options, {(zero.topic, number): 1 for number in range(2)})
    values = sorted(value.decode() for value in column_values(read.table(), "value"))
    assert values == sorted(f"{batch} {place}" for batch in range(3) for place in range(ROWS))


def test_error_without_a_leader_names_the_broker_to_start_and_the_stream_continues(
    brokers: ThreeBrokers, tmp_path: Path, topic_name: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    """INV-5, INV-6: every request, range and row fails within its timeout, with the next step in the error."""
    # own: of sinks, whose aborted transactions leave missing offsets
    tp, own = (TopicPartition(topic_name(), 0) for _ in range(2))
    brokers.start(2)
    for name in (tp.topic, own.topic):
        brokers.create_topic(name, [[2]])
    produce(brokers.options, tp.topic, numbered(50), Truth(), partitions=[0])
    runs = Runs(brokers.options, tmp_path / "checkpoint")
    job = RowsRead(runs, Reading(), SHORT_SECONDS)
    warned = threading.Event()
    expected = f"{tp} has no leader until broker 2 is back"

    class WarningHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if expected in record.getMessage():
                warned.set()

    stream = runs.start(Assign([tp]), job, timeout_seconds=SHORT_SECONDS)
    runs.await_records(50)
    planned, ended = threading.Event(), threading.Event()
    later_runs = Runs(brokers.options, tmp_path / "later")
    later_job = RowsRead(later_runs, Reading(keep=False), SHORT_SECONDS)

    def read_later(work: Batch) -> None:
        planned.set()
        assert ended.wait(PATIENCE_SECONDS)
        later_job(work)

    later_stream = later_runs.start(Assign([tp]), read_later, timeout_seconds=SHORT_SECONDS, max_failures=2)
    assert planned.wait(PATIENCE_SECONDS)
    handler = WarningHandler()
    logging.getLogger("direct.stream").addHandler(handler)
    try:
        brokers.stop(2)
        brokers.await_(tp, lambda shown: shown.leader < 0)
        ended.set()
        assert warned.wait(PATIENCE_SECONDS)
    finally:
        logging.getLogger("direct.stream").removeHandler(handler)
    with KafkaAdmin(brokers.options, timeout_seconds=SHORT_SECONDS) as admin:
        with pytest.raises(UnreachableError, match=f"offsets of {tp}: {expected}"):
            admin.ends([tp])
        with pytest.raises(UnreachableError, match=f"offsets of {tp}: {expected}"):
            admin.starting_offsets({"timestamp": 1}, [tp], "")  # never taken for "no record is as young"
    with pytest.raises(UnreachableError, match=rf"returned no data of {tp}\[0, 50\) from 0 on for .* s: {expected}"):
        list(read_range(job.access, OffsetRange(tp.topic, 0, 0, 50), Reading(keep=False)))
    with pytest.raises(JobError, match=rf"{tp}\[0, 50\).*{expected}"):
        later_stream.await_termination(PATIENCE_SECONDS)
    for more in (
        {"kafka.delivery.timeout.ms": "1000"},
        {"transactional": "true", "kafka.transaction.timeout.ms": "2000"},
    ):
        with pytest.raises(
            UnreachableError, match=f"of {own} was not accepted: .*{own} has no leader until broker 2 is back"
        ):
            write(sink_of(brokers.options, own.topic, **more), own.topic, 0)
    brokers.start(2)
    produce(brokers.options, tp.topic, numbered(50), Truth(), partitions=[0])
    later_stream = later_runs.start(Assign([tp]), later_job)
    for runs_, stream_, job_ in ((runs, stream, job), (later_runs, later_stream, later_job)):
        runs_.await_records(100)
        runs_.stop(stream_)
        assert runs_.once(tp) == (0, 100)
        assert [offset for _, offset in job_.read] == list(range(100))


def test_stream_notices_that_the_leader_before_the_last_one_leads_again(
    brokers: ThreeBrokers, tmp_path: Path, topic_name: Callable[[], str]
) -> None:
    """INV-5: two unclean elections. Broker 2 has 100 records, then 3 leads with 80 and gains 10, then 2 leads with its 100."""
    (tp,) = partitions_of(topic_name(), 1)
    for number in (2, 3):
        brokers.start(number)
    brokers.create_topic(tp.topic, [[2, 3]], **{"unclean.leader.election.enable": "true"})
    brokers.await_in_sync(tp, 3)
    again.produce(brokers.options, tp, 80, key=b"kept")
    brokers.kill9(3)
    brokers.await_(tp, lambda shown: shown.isrs == [2])
    again.produce(brokers.options, tp, 20, key=b"of 2")
    runs = Runs(brokers.options, tmp_path / "checkpoint")
    keys: dict[int, bytes] = {}
    access = KafkaAccess(brokers.options, "g", PATIENCE_SECONDS)

    def read(work: Batch) -> None:
        for span in work.spans:  # type: ignore[attr-defined]
            for rows in read_range(access, span, Reading(keep=False)):
                keys.update(zip(column_values(rows, "offset"), column_values(rows, "key"), strict=True))
        runs.job(work)

    stream = runs.start(Subscribe([tp.topic]), read, timeout_seconds=SHORT_SECONDS, on_vanished="record")
    runs.await_records(100)
    lead_instead(brokers, tp, 3)
    waited = threading.Event()
    while stream.offsets != {tp: 80}:
        waited.wait(0.05)
    again.produce(brokers.options, tp, 10, key=b"of 3")
    runs.await_records(110)
    lead_instead(brokers, tp, 2)
    again.produce(brokers.options, tp, 20, key=b"last")
    runs.await_records(150)
    runs.stop(stream)
    found = Checkpoint(runs.checkpoint.as_uri(), "s").audit()
    assert found.clean
    assert [(one.start, one.until) for one in found.incarnations] == [(0, 100), (80, 90), (80, 120)]
    assert [keys[offset] for offset in range(80, 120)] == [b"of 2"] * 20 + [b"last"] * 20


def lead_instead(brokers: ThreeBrokers, tp: TopicPartition, number: int) -> None:
    """Kill the leader, and start the other replica, which is not in sync: it leads with the log that it has."""
    brokers.kill9(brokers.leader(tp))
    brokers.start(number)
    brokers.await_(tp, lambda shown: shown.leader == number)
