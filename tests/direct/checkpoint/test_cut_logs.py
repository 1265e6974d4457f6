"""Direct streams on a log that was cut back and has grown beyond their positions, in a real Kafka (INV-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from direct.checkpoint.checkpoint import Checkpoint
from direct.stream.strategies import Subscribe
from driver.batches.job.batch import Batch
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.range_reader import Reading, forget_consumers, read_range
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import JobError, RangeNotHeldError
from forebay.model.values import TopicPartition
from tests.support.kafka.log_cut import log_to_cut, log_with_marker_of_newer_leader
from tests.support.kafka.polling import PATIENCE_SECONDS, Commit
from tests.support.processes.direct_runs import Runs
from tests.support.state.again import produce
from tests.support.state.columns import column_values

pytestmark = pytest.mark.kafka


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    forget_consumers()


class Rows:
    """A job that reads its batch: the values at each offset, in the order of reading."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.read: list[tuple[int, bytes]] = []

    def __call__(self, work: Batch) -> None:
        access = KafkaAccess(dict(self.runs.options), "g", PATIENCE_SECONDS)
        read: list[tuple[int, bytes]] = []
        for span in work.spans:  # type: ignore[attr-defined]
            for rows in read_range(access, span, Reading()):
                read += zip(column_values(rows, "offset"), column_values(rows, "key"), strict=True)
        self.read += read  # an attempt that fails leaves nothing
        self.runs.job(work)


def test_stream_ends_or_records_the_loss_if_its_log_was_cut_back_and_has_grown_beyond_its_position(
    killed_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """``done`` has completed [0, 100), ``failing`` has it in a batch that must run again, and Kafka cuts the log back to 80."""
    broker, tp = killed_broker, TopicPartition(topic_name(), 0)
    older = log_to_cut(broker, tp, tmp_path / "older")
    done, failing = Runs(broker.options, tmp_path / "done"), Runs(broker.options, tmp_path / "failing")
    stream = done.start(Subscribe([tp.topic]))
    done.await_records(100)
    done.stop(stream)

    def fails(work: Batch) -> None:
        raise ValueError("no")

    stream = failing.start(Subscribe([tp.topic]), fails, max_failures=1)
    with pytest.raises(JobError):
        stream.await_termination(PATIENCE_SECONDS)
    assert failing.checkpoint.exists()

    older.cut_back()
    produce(broker.options, tp, 120, key=b"later")

    cut = rf"{tp}: the stream is at offset 100, and Kafka's log ends at 200: it was cut back to 80.*accept-loss"
    stream = done.make(Subscribe([tp.topic]))
    with pytest.raises(RangeNotHeldError, match=cut):
        stream.foreach_batch(done.job).start()
    checkpoint = Checkpoint(done.checkpoint.as_uri(), "s", broker.options)
    assert [(loss.kind, loss.label, loss.goes_on_at) for loss in checkpoint.losses()] == [("cut-back", str(tp), 80)]
    checkpoint.accept_losses([str(tp)], "ann")
    assert checkpoint.losses() == []
    later = Rows(done)
    stream = done.start(Subscribe([tp.topic]), later)
    done.await_records(220)
    done.stop(stream)
    assert later.read == [(offset, b"later") for offset in range(80, 200)]
    found = checkpoint.audit()
    assert found.clean
    assert [(one.number, one.start, one.until) for one in found.incarnations] == [(1, 0, 100), (2, 80, 200)]
    assert checkpoint.state().partitions[str(tp)].leader_epoch > 0

    checkpoint = Checkpoint(failing.checkpoint.as_uri(), "s", broker.options)
    assert [(loss.kind, loss.label) for loss in checkpoint.losses()] == [
        ("batch", f"{tp}[80, 100)"),
        ("cut-back", str(tp)),
    ]
    rows = Rows(failing)
    stream = failing.start(Subscribe([tp.topic]), rows, on_vanished="record", max_failures=1)
    failing.await_records(200)
    failing.stop(stream)
    assert rows.read == [(offset, b"kept" if offset < 80 else b"later") for offset in range(200)]
    found = checkpoint.audit()
    assert found.clean
    assert [loss.label for loss in found.losses] == [f"{tp}[80, 100)"]


def test_stream_that_begins_at_a_committed_offset_notices_that_the_log_was_cut_back_below_it(
    killed_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """The commit has the leader epoch of the committed range."""
    broker, tp = killed_broker, TopicPartition(topic_name(), 0)
    older = log_to_cut(broker, tp, tmp_path / "older")
    params = {"group.id": tp.topic}
    runs = Runs(broker.options, tmp_path / "before")

    def commits(work: Batch) -> None:
        runs.commits.add(work.spans)  # type: ignore[attr-defined]
        runs.job(work)

    stream = runs.start(Subscribe([tp.topic]), commits, params)
    with KafkaAdmin(broker.options) as admin:
        runs.await_records(100)
        runs.stop(stream)
        (commit,) = admin.committed(tp.topic, [tp]).values()
        assert (commit.offset, commit.leader_epoch >= 0) == (100, True)

        same = Runs(broker.options, tmp_path / "same")
        stream = same.start(Subscribe([tp.topic]), params=params)
        assert stream.offsets == {tp: 100}
        same.stop(stream)
    older.cut_back()
    produce(broker.options, tp, 120, key=b"later")
    strict = Runs(broker.options, tmp_path / "strict").make(Subscribe([tp.topic]), params)
    message = rf"{tp}: group {tp.topic} committed offset 100, and Kafka's log was cut back to 80 since.*on_vanished"
    with pytest.raises(RangeNotHeldError, match=message):
        strict.foreach_batch(runs.job).start()
    later = Runs(broker.options, tmp_path / "later")
    rows = Rows(later)
    stream = later.start(Subscribe([tp.topic]), rows, params, on_vanished="record")
    later.await_records(120)
    later.stop(stream)
    assert rows.read == [(offset, b"later") for offset in range(80, 200)]


def test_stream_begins_at_a_commit_behind_the_marker_of_a_newer_leader(
    killed_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """As a receiver commits it: the last record before the offset is of the older leader, whose records end before the marker."""
    broker, tp = killed_broker, TopicPartition(topic_name(), 0)
    log_with_marker_of_newer_leader(broker, tp)
    with KafkaAdmin(broker.options) as admin:
        assert admin.publish(tp.topic, {tp: Commit(6, 0)}) == {}
        assert admin.cuts({tp: LogPoint(6, 0)}) == {tp: 5}  # by leader epochs alone
    runs = Runs(broker.options, tmp_path / "stream")
    stream = runs.start(Subscribe([tp.topic]), params={"group.id": tp.topic})
    assert stream.offsets == {tp: 6}
    runs.stop(stream)
