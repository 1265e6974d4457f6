"""Direct streams and RDDs that read records which Kafka has lost and an intake has kept (``tracker``)."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from direct.checkpoint.checkpoint import Checkpoint
from direct.checkpoint.losses import (
    OFFSET_MAX,
    Held,
    ends_through,
    lacked_by_kafka,
    losses_at_positions,
    losses_of_batch,
)
from direct.intake.access import IntakeAccess, IntakeEndpoint
from direct.intake.coverage import kept_of
from direct.rdd.tasks import TaskReading
from direct.stream.cursor import place_of, places_of, ranges_to_keep
from direct.stream.strategies import Assign, Subscribe
from driver.batches.job.batch import Batch
from driver.decisions.intake import incarnation_spans
from driver.journal.events import CursorNamed, SpansAllocated, SpansBegun
from driver.journal.state import BrokenInvariant, State
from driver.journal.transitions import apply
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.options.access import KafkaAccess
from forebay.messages import IncarnationSpan, IncarnationView, IntakePartition, SpanRequest, TrackedCursor
from forebay.model.errors import OutOfRangeError, RangeNotHeldError, UnknownTopicError, UsageError
from forebay.model.identifiers import numbered
from forebay.model.values import TopicPartition
from pyspark_forebay.intake.planning import Cover
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.processes.cluster import Cluster
from tests.support.processes.direct_runs import Runs
from tests.support.state import destroyed
from tests.support.state.again import produce
from tests.support.state.columns import column_values

TP = TopicPartition("t", 0)


# ---- decisions -------------------------------------------------------------------------------------------------------


def partition(position: int, *incarnations: tuple[int, int, int | None, str]) -> IntakePartition:
    views = tuple(
        IncarnationView(number=incarnation, start=start, end=end, topic_id=topic_id)
        for incarnation, start, end, topic_id in incarnations
    )
    return IntakePartition(topic="t", partition=0, position=position, incarnations=views)


ONE = partition(100, (1, 20, None, "a"))
#: cut back to 50, and created again after 80
THREE = partition(30, (1, 20, 90, "a"), (2, 50, 80, "a"), (3, 0, None, "b"))


@pytest.mark.parametrize(
    ("begin", "until", "topic_id", "known", "found"),
    [
        (30, 60, "a", ONE, [(1, 30, 60)]),
        (0, 60, "a", ONE, [(1, 20, 60)]),
        (90, 200, "a", ONE, [(1, 90, 100)]),
        (0, 10, "a", ONE, []),
        (30, 60, "other", ONE, []),
        (30, 60, "", ONE, [(1, 30, 60)]),
        (30, 60, "a", THREE, [(1, 30, 50), (2, 50, 60)]),  # what was above 50 in the first incarnation was cut away
        (60, 85, "a", THREE, [(2, 60, 80)]),
        (10, 60, "b", THREE, [(3, 10, 30)]),
        (10, 60, "", THREE, [(3, 10, 30)]),
    ],
)
def test_offset_means_the_newest_incarnation_of_its_topic_that_has_it(
    begin: int, until: int, topic_id: str, known: IntakePartition, found: list[tuple[int, int, int]]
) -> None:
    request = SpanRequest(topic="t", partition=0, from_offset=begin, until_offset=until, topic_id=topic_id)
    spans = incarnation_spans(request, known)
    assert [(one.incarnation, one.from_offset, one.until_offset) for one in spans] == found


@pytest.mark.parametrize(
    ("until", "leader_epoch", "known", "found"),
    [
        (85, 5, True, [(1, 30, 85)]),
        (120, 5, True, [(1, 30, 90)]),
        (120, 7, True, [(1, 30, 50), (2, 50, 120)]),
        (120, 8, True, [(1, 30, 50), (2, 50, 120)]),
        (120, 6, True, [(1, 30, 50)]),  # of a leader in between: what it had from the cut on is not known
        (120, -1, True, [(1, 30, 50), (2, 50, 120)]),
        (120, 5, False, [(1, 30, 50), (2, 50, 120)]),
    ],
)
def test_offset_chosen_before_a_later_leader_cut_the_log_back_means_what_was_there_before(
    until: int, leader_epoch: int, known: bool, found: list[tuple[int, int, int]]
) -> None:
    """INV-2. ``known``: the journal has the leader epochs of the incarnations."""
    first, last, second = (3, 5, 7) if known else (-1, -1, -1)
    views = (
        IncarnationView(number=1, start=20, end=90, topic_id="a", first_epoch=first, last_epoch=last),
        IncarnationView(number=2, start=50, topic_id="a", first_epoch=second),
    )
    cut = IntakePartition(topic="t", partition=0, position=200, incarnations=views)
    request = SpanRequest(
        topic="t", partition=0, from_offset=30, until_offset=until, topic_id="a", leader_epoch=leader_epoch
    )
    assert [(one.incarnation, one.from_offset, one.until_offset) for one in incarnation_spans(request, cut)] == found


def test_first_incarnation_of_a_topic_belongs_to_every_earlier_leader() -> None:
    """The intake began later than the reader: nothing says that the log was cut back."""
    views = (
        IncarnationView(number=1, start=20, end=90, topic_id="a", first_epoch=9, last_epoch=9),
        IncarnationView(number=2, start=0, topic_id="b", first_epoch=4),
    )
    again = IntakePartition(topic="t", partition=0, position=200, incarnations=views)
    for topic_id, incarnation, begin in (("a", 1, 20), ("b", 2, 0)):
        request = SpanRequest(topic="t", partition=0, from_offset=0, until_offset=40, topic_id=topic_id, leader_epoch=2)
        (one,) = incarnation_spans(request, again)
        assert (one.incarnation, one.from_offset) == (incarnation, begin)


def test_kept_ranges_omit_what_no_block_holds() -> None:
    pieces = [IncarnationSpan(topic="t", partition=0, incarnation=1, from_offset=20, until_offset=60)]
    gap = IncarnationSpan(topic="t", partition=0, incarnation=1, from_offset=30, until_offset=35)
    assert list(map(str, kept_of(OffsetRange("t", 0, 10, 99, "a"), pieces, Cover((), (gap,))))) == [
        "t/0[20, 30)",
        "t/0[35, 60)",
    ]


@pytest.mark.parametrize(
    ("held", "kept", "losses", "end"),
    [
        (Held("a", 50, 90), [(5, 60)], [], None),  # and Kafka goes on
        (Held("a", 50, 90), [(10, 30)], [], 30),
        (Held("a", 50, 90), [(10, 30), (40, 50)], [], 30),
        (Held("a", 50, 90), [(20, 50)], ["gap t/0[10, 20)"], 10),
        (Held("a", 50, 90), [(0, 10)], ["gap t/0[10, 50)"], 10),
        (None, [(10, 70)], [], 70),
        (None, [(20, 70)], ["gap t/0[10, 20)"], 10),
        (None, [], ["gone t/0"], 10),
        (Held("b", 0, 5), [(10, 70)], [], 70),
        (Held("b", 0, 5), [(5, 10)], ["created-again t/0"], 10),
        (Held("a", 0, 8), [(10, 70)], ["cut-back t/0"], None),
    ],
)
def test_kept_ranges_are_read_before_a_loss_and_only_up_to_the_next_gap(
    held: Held | None, kept: list[tuple[int, int]], losses: list[str], end: int | None
) -> None:
    """INV-2, INV-5."""
    there, ids = ({} if held is None else {TP: held}), {TP: "a"}
    lacks = lacked_by_kafka({TP: 10}, ids, losses_at_positions({TP: 10}, ids, there))
    through = dict.fromkeys(lacks, kept)
    found = losses_at_positions({TP: 10}, ids, there, through)
    assert [f"{loss.kind} {loss.label}" for loss in found] == losses
    assert ends_through({TP: 10}, lacks, through) == ({} if end is None else {TP: end})


def test_lost_partition_does_not_end_the_stream_while_another_has_kept_records() -> None:
    other, ids = TopicPartition("t", 1), {TP: "a", TopicPartition("t", 1): "a"}
    assert losses_at_positions({TP: 10, other: 10}, ids, {}, {TP: [(10, 30)]}) == []
    assert [loss.label for loss in losses_at_positions({TP: 30, other: 10}, ids, {}, {TP: [(10, 30)]})] == [
        "t/0",
        "t/1",
    ]


def test_batch_lacks_only_what_neither_kafka_nor_the_intake_has() -> None:
    span = OffsetRange("t", 0, 10, 40, "a")
    found = losses_of_batch(
        7, [(span, 1)], {TP: Held("a", 30, 90)}, lambda lost: [OffsetRange("t", 0, 10, 15)] if lost else []
    )
    assert [loss.label for loss in found] == ["t/0[10, 15)"]


@pytest.mark.parametrize(
    ("offset", "topic_id", "known", "place"),
    [
        (30, "a", ONE, (1, 30)),
        (0, "a", ONE, (1, 0)),
        (500, "a", ONE, (1, 500)),
        (30, "a", THREE, (1, 30)),
        (60, "a", THREE, (2, 60)),
        (3, "b", THREE, (3, 3)),
        (3, "", THREE, (3, 3)),
        (3, "c", THREE, None),
    ],
)
def test_cursor_is_where_the_stream_has_yet_to_read(
    offset: int, topic_id: str, known: IntakePartition, place: tuple[int, int] | None
) -> None:
    assert place_of(OffsetRange("t", 0, offset, OFFSET_MAX, topic_id), known) == place


def test_cursor_keeps_windows_and_unfinished_batches() -> None:
    """INV-8."""
    state = State(stream="s", timeline=1)
    apply(state, SpansBegun({"t/0": 10}, {"t": "a"}, 1, "given"))
    assert places_of(ranges_to_keep(state), {TP: ONE}) == {TP: (1, 10)}
    apply(state, SpansAllocated(numbered(1, 1), 1, 3, (OffsetRange("t", 0, 10, 30, "a"),)))
    assert places_of(ranges_to_keep(state), {TP: ONE}) == {TP: (1, 10)}
    state.completed_number, state.window_batches = 1, 1
    assert places_of(ranges_to_keep(state), {TP: ONE}) == {TP: (1, 10)}
    state.window_batches = 0
    assert places_of(ranges_to_keep(state), {TP: ONE}) == {TP: (1, 30)}
    assert places_of(ranges_to_keep(state), {}) == {}


def test_checkpoint_keeps_one_cursor_name() -> None:
    state = State(stream="s", timeline=1)
    apply(state, CursorNamed("direct-s-1", 1))
    with pytest.raises(BrokenInvariant):
        apply(state, CursorNamed("direct-s-2", 2))
    assert state.cursor == "direct-s-1"


def test_invalid_tracker_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError, match="tracker: write where the stream's driver is") as refused:
        IntakeEndpoint.of(IntakeAccess("http://user:secret-word@d:1"))
    assert "secret-word" not in str(refused.value)
    assert IntakeEndpoint.of("") is None


def test_tasks_get_the_token_and_nothing_shows_it(tmp_path: Path) -> None:
    """The hosts of tasks may not have the token file."""
    file = tmp_path / "tokens"
    file.write_text("query secret-word-of-no-user\n")
    file.chmod(0o600)
    through = IntakeEndpoint.of(IntakeAccess("http://d:1", token_file=str(file), timeout_seconds=7.0))
    assert through is not None and through.patience_seconds == 7.0
    file.unlink()
    carried = pickle.loads(pickle.dumps(through))
    assert "secret-word" in carried.access.headers()["authorization"]
    assert "secret-word" not in repr(carried) + str(carried)


# ---- with an intake --------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path, kafka_broker: KafkaBroker, tps: list[TopicPartition]) -> Iterator[Cluster]:
    """An intake of the topic, which deletes what nothing needs within a second or two. Kafka has 30 and 10 records."""
    wal = {"segment_size": "1KB", "cleanup_interval": "200ms"}
    driver = {"cursor_lease": "2s"}
    with Cluster(tmp_path, kafka_broker.options, [tps[0].topic], receivers=1, driver=driver, wal=wal) as cluster:
        completed(cluster, tps, 30, 10)
        yield cluster


def completed(cluster: Cluster, tps: list[TopicPartition], *ends: int) -> None:
    cluster.await_completed({(tp.topic, tp.partition): end for tp, end in zip(tps, ends, strict=True)})
    cluster.wait(lambda: not cluster.state().batches, "the history to hold all batches")


def drop(broker: KafkaBroker, before: dict[TopicPartition, int]) -> None:
    with KafkaAdmin(broker.options) as admin:
        admin.delete_records(before)


def cursors(cluster: Cluster) -> list[TrackedCursor]:
    return list(cluster.wait(cluster.status, "status").cursors)


def first_held(cluster: Cluster, tp: TopicPartition) -> int:
    """The first offset of the partition that the journal names a block for."""
    ranges = (r for block in cluster.state().blocks.values() for r in block.meta.ranges)
    return min((r.from_offset for r in ranges if (r.topic, r.partition) == (tp.topic, tp.partition)), default=1 << 62)


class Reader:
    """A job that reads what it is given, once it may."""

    def __init__(self, runs: Runs, cluster: Cluster) -> None:
        access = KafkaAccess(dict(runs.options), "g", PATIENCE_SECONDS)
        self.how = TaskReading(access, Reading(keep=False), intake=IntakeEndpoint.of(cluster.driver_url))
        self.runs = runs
        self.at_work, self.may = threading.Event(), threading.Event()
        self.read: list[tuple[TopicPartition, int]] = []

    def __call__(self, work: Batch) -> None:
        self.at_work.set()
        assert self.may.wait(PATIENCE_SECONDS)
        for span in work.spans:  # type: ignore[attr-defined]
            self.read += [(span.tp, o) for rows in self.how.read(span) for o in column_values(rows, "offset")]
        self.runs.job(work)


@pytest.mark.kafka
def test_stream_behind_kafka_reads_what_its_cursor_keeps_and_then_releases_it(
    runs: Runs, tps: list[TopicPartition], cluster: Cluster, kafka_broker: KafkaBroker
) -> None:
    """INV-2, INV-5, INV-8: across a restart, with the intake's driver down for a while; only the cursor keeps its WAL."""
    one = tps[0]
    reader = Reader(runs, cluster)
    stream = runs.start(Assign([one], {one: 28}), reader, tracker=cluster.driver_url, max_queued_batches=1)
    for end in (50, 70):  # a block each, and a segment each
        produce(kafka_broker.options, one, 20)
        completed(cluster, tps, end, 10)
    drop(kafka_broker, {one: 65})
    (cursor,) = cursors(cluster)
    assert cursor.cursor.startswith("direct-s-") and cursor.behind == 42
    assert cursor.user.startswith("direct stream s on ")
    cluster.kill9("driver")  # a stream that Kafka gives everything needs no driver of an intake
    reader.may.set()
    produce(kafka_broker.options, one, 1)
    cluster.restart("driver")
    runs.await_records(43)
    runs.stop(stream)
    assert reader.read == [(one, offset) for offset in range(28, 71)]
    stream = runs.start(Assign([one]), reader, tracker=cluster.driver_url)
    cluster.wait(lambda: [c.cursor for c in cursors(cluster) if not c.behind] == [cursor.cursor], "the cursor to move")
    produce(kafka_broker.options, one, 1)
    runs.await_records(44)
    completed(cluster, tps, 72, 10)
    cluster.wait(lambda: first_held(cluster, one) > 0, "the first block to be deleted")
    runs.stop(stream)
    assert runs.once(one) == (28, 72)
    with pytest.raises(OutOfRangeError, match=rf"{one}\[0, 72\).*the WAL of stream stream does not hold {one}\[0, "):
        list(reader.how.read(OffsetRange(one.topic, 0, 0, 72)))


@pytest.mark.kafka
def test_exact_ranges_have_the_same_rows_and_errors_from_wal_and_kafka(
    runs: Runs, tps: list[TopicPartition], cluster: Cluster, kafka_broker: KafkaBroker
) -> None:
    """INV-5."""
    one, _ = tps
    how = Reader(runs, cluster).how
    stream = runs.start(
        Assign([one], {one: 0}),
        cast(Any, lambda _: threading.Event().wait(0.01)),
        tracker=cluster.driver_url,
        interval_seconds=3600.0,
    )
    with KafkaAdmin(kafka_broker.options) as admin:
        topic_id = admin.topic_ids([one.topic])[one.topic]

    def rows(begin: int, until: int, **more: object) -> list[dict[str, object]]:
        span = OffsetRange(one.topic, 0, begin, until, **more)  # type: ignore[arg-type]
        return [row for batch in how.read(span) for row in batch.to_pylist()]

    before = rows(0, 30)
    drop(kafka_broker, {one: 17})
    for more in ({}, {"topic_id": topic_id}, {"topic_id": topic_id, "records": 28}):
        assert rows(2, 30, **more) == before[2:]
    assert rows(3, 11) == before[3:11]
    assert rows(20, 25) == before[20:25]
    with pytest.raises(RangeNotHeldError, match="hold 28 records instead of 5"):
        rows(2, 30, records=5)
    with pytest.raises(RangeNotHeldError, match="had the id elsewhere"):
        rows(2, 30, topic_id="elsewhere")
    with pytest.raises(RangeNotHeldError, match="ends at offset 30"):
        rows(20, 31)
    other = IntakeEndpoint.of(cluster.driver_url)
    assert other is not None
    uncommitted = KafkaAccess({**runs.options, "isolation.level": "read_uncommitted"}, "g", PATIENCE_SECONDS)
    with pytest.raises(UsageError, match=r"isolation\.level = read_committed, and this reader has read_uncommitted"):
        list(TaskReading(uncommitted, Reading(keep=False), intake=other).read(OffsetRange(one.topic, 0, 0, 30)))
    runs.stop(stream)


@pytest.mark.kafka
def test_deleted_topic_is_read_from_the_intake_before_the_stream_ends(
    runs: Runs, tps: list[TopicPartition], cluster: Cluster, kafka_broker: KafkaBroker
) -> None:
    """INV-5: what neither has becomes a gap with its exact range, with on_vanished = "record"."""
    one, two = tps
    reader = Reader(runs, cluster)
    stream = runs.start(Subscribe([one.topic]), reader, tracker=cluster.driver_url, max_queued_batches=1)
    assert reader.at_work.wait(PATIENCE_SECONDS)
    produce(kafka_broker.options, one, 5)
    completed(cluster, tps, 35, 10)
    with KafkaAdmin(kafka_broker.options) as admin:
        admin.delete_topic(one.topic)
    checkpoint = Checkpoint(runs.checkpoint.as_uri(), "s", runs.options)
    assert {loss.kind for loss in checkpoint.losses()} == {"batch", "gone"}
    checkpoint = Checkpoint(runs.checkpoint.as_uri(), "s", runs.options, tracker=cluster.driver_url)
    assert checkpoint.losses() == []  # five records are left to read
    reader.may.set()
    with pytest.raises(
        UnknownTopicError,
        match=rf"{one}, which the stream reads at 35, no longer exists.*{two}.* at 10, no longer exists",
    ):
        stream.await_termination(PATIENCE_SECONDS)
    assert sorted(reader.read) == [(one, offset) for offset in range(35)] + [(two, offset) for offset in range(10)]


@pytest.mark.kafka
def test_stream_killed_before_its_cursor_is_open_leaves_no_orphan(
    tps: list[TopicPartition], cluster: Cluster, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    """INV-7, INV-8: the name is journalled before the cursor is opened, and the cursor is opened before any partition
    begins."""
    # what was written and not synced is there after a kill, so the last one stands for what is durable
    marks = ["journal.before-write:CursorNamed", "journal.before-sync:CursorNamed", "journal.before-write:SpansBegun"]
    (tmp_path / "out").mkdir()
    (tmp_path / "hits").mkdir()
    environment = {
        **os.environ,
        "FOREBAY_FAILPOINTS": ",".join(f"{mark}=kill" for mark in marks),
        "FOREBAY_FAILPOINT_DIR": str(tmp_path / "hits"),
    }
    arguments = [kafka_broker.address, tps[0].topic, str(tmp_path), cluster.driver_url]
    with (tmp_path / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.direct_process", *arguments],
            env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def read() -> list[tuple[int, int, int]]:
        assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
        batches = (json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json"))
        return sorted((number, begin, end) for batch in batches for _, number, begin, end in batch)

    try:
        cluster.wait(lambda: read() == [(0, 0, 30), (1, 0, 10)], "all offsets in batches")
        cluster.wait(lambda: [c.behind for c in cursors(cluster)] == [0], "one cursor, at the end")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert len(list((tmp_path / "hits").glob("*.hit"))) == len(marks)
    (cursor,) = cursors(cluster)
    assert cursor.cursor == Checkpoint((tmp_path / "checkpoint").as_uri(), "s").state().cursor


@pytest.mark.kafka
def test_direct_stream_stops_at_a_destroyed_block_until_a_person_accepts_the_loss(
    runs: Runs, kafka_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """INV-2, INV-5: the intake's journal names a destroyed block; records of its other blocks are read."""
    tp = TopicPartition(topic_name(), 0)
    kafka_broker.create_topic(tp.topic, 1)
    produce(kafka_broker.options, tp, 10)
    with Cluster(tmp_path, kafka_broker.options, [tp.topic], receivers=1, **destroyed.SETTINGS) as cluster:
        cluster.await_completed({(tp.topic, 0): 10})
        reader = Reader(runs, cluster)
        more: dict[str, Any] = {"tracker": cluster.driver_url, "max_queued_batches": 1, "max_failures": 2}
        stream = runs.start(Assign([tp], {tp: 10}), reader, **more)
        cluster.wait(lambda: cursors(cluster), "the stream's cursor")
        destroyed.hold_a_batch(cluster, tp)
        assert reader.at_work.wait(PATIENCE_SECONDS)
        batch, lost = destroyed.destroy(cluster, tp)
        reader.may.set()
        with pytest.raises(RangeNotHeldError, match=re.escape(lost.label) + r" of batch .*forebay direct accept-loss"):
            stream.await_termination(PATIENCE_SECONDS)
        checkpoint = Checkpoint(runs.checkpoint.as_uri(), "s", runs.options, tracker=cluster.driver_url)
        assert [loss.label for loss in checkpoint.losses()] == [lost.label]
        # that it was accepted for the intake's own batch decides nothing here
        accepted = cluster.command("recover", "--accept-loss", str(batch), lost.label, "--yes")
        assert accepted.returncode == 0, accepted
        assert [loss.label for loss in checkpoint.losses()] == [lost.label]
        checkpoint.accept_losses([lost.label], "ann")
        stream = runs.start(Assign([tp]), reader, **more)
        left = [(tp, offset) for offset in range(10, 31) if not lost.from_offset <= offset < lost.until_offset]
        runs.await_records(len(left))
        runs.stop(stream)
    assert reader.read == left
