"""How direct streams and their tasks use an intake's answers, with the driver's decisions and without servers and Kafka."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

import driver.decisions.intake
from direct.checkpoint.losses import OFFSET_MAX
from direct.intake import coverage
from direct.intake import reading as intake_reading
from direct.intake.access import IntakeEndpoint
from direct.intake.coverage import COMMITTED, KeptByIntake, find_coverage
from direct.intake.reading import lost_in_kafka, read_through
from direct.stream import cursor
from direct.stream.cursor import StreamCursor, ranges_to_keep
from driver.journal.events import ReplayedBatch, SpansBegun
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay import messages as m
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import (
    LostBlockError,
    OffsetGapError,
    OutOfRangeError,
    RangeNotHeldError,
    RefusedError,
    UnknownTopicError,
    UnreachableError,
    UnreadableBlockError,
    UsageError,
)
from forebay.model.records import DATAFRAME_SCHEMA
from forebay.model.values import TopicPartition
from forebay.security.access import Access
from pyspark_forebay.intake import client
from pyspark_forebay.intake import cursor as query_cursor
from pyspark_forebay.intake.planning import BlockPart
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.state.asked_intake import Taken, asked_in_process
from tests.support.state.columns import column_values
from tests.support.state.tracked import STREAM, TOPIC

ENDPOINT = IntakeEndpoint(("http://127.0.0.1:1",), Access(), 1.0)
ACCESS = KafkaAccess({"bootstrap.servers": "127.0.0.1:1"}, "g", 1.0)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    return asked_in_process(monkeypatch)


def held(taken: Taken) -> dict[str, tuple[int, int]]:
    (cursor,) = taken.tracked.state.cursors.values()
    return cursor.vector


# ---- what is found ---------------------------------------------------------------------------------------------------


def test_lost_range_takes_one_request_for_each_answer(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-5, INV-6: each task asks, so the number of requests counts."""
    for _ in range(5):
        taken.take()
    for at_once, asked in ((100, ["/v1/cursors/span"]), (2, ["/v1/cursors/span", *["/v1/cursors/blocks"] * 2])):
        monkeypatch.setattr(driver.decisions.intake, "BLOCKS_AT_ONCE", at_once)
        taken.driver.asked.clear()
        found = find_coverage(ENDPOINT.connect(), OffsetRange(TOPIC, 0, 5, 60, "id-1"), COMMITTED)
        assert taken.driver.asked == asked
        assert [part.reference.ranges[0].from_offset for part in found.parts] == [0, 10, 20, 30, 40]
        assert list(map(str, found.kept)) == ["t/0[5, 50)"]
    for elsewhere in (OffsetRange(TOPIC, 7, 0, 9), OffsetRange(TOPIC, 0, 0, 9, "id-2")):
        assert not find_coverage(ENDPOINT.connect(), elsewhere, COMMITTED).kept


def test_gap_of_intake_is_lost_for_a_direct_reader(taken: Taken) -> None:
    """INV-5: a query skips the gap and logs it; a reader of exact offsets must fail."""
    taken.take()
    taken.lose(0, 25)
    taken.take()
    span = OffsetRange(TOPIC, 0, 0, 35)
    assert list(map(str, find_coverage(ENDPOINT.connect(), span, COMMITTED).kept)) == ["t/0[0, 10)", "t/0[25, 35)"]


def test_blocks_are_read_in_offset_order(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adoption may seal a block after blocks with higher offsets."""
    for _ in range(3):
        taken.take()
    span = OffsetRange(TOPIC, 0, 5, 30)
    parts = find_coverage(ENDPOINT.connect(), span, COMMITTED).parts
    assert [part.reference.ranges[0].from_offset for part in parts] == [0, 10, 20]
    blocks = client.Intake._blocks

    def newest_first(*given: Any) -> client.FoundBlocks:
        found = blocks(*given)
        return dataclasses.replace(found, blocks=found.blocks[::-1])

    monkeypatch.setattr(client.Intake, "_blocks", newest_first)
    assert find_coverage(ENDPOINT.connect(), span, COMMITTED).parts == parts


def test_intake_with_another_isolation_level_is_refused(taken: Taken) -> None:
    taken.take()
    with pytest.raises(
        UsageError, match=r"takes in records with isolation\.level = read_committed, and this reader has read_un"
    ):
        find_coverage(ENDPOINT.connect(), OffsetRange(TOPIC, 0, 0, 10), "read_uncommitted")


def test_patience_bounds_how_long_an_unavailable_driver_is_asked(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: a stream that checks what is lost has other work."""
    asked: list[str] = []

    def away(path: str, *_: Any) -> Any:
        asked.append(path)
        raise UnreachableError("away")

    monkeypatch.setattr(taken.driver, "post", away)
    kept = KeptByIntake(IntakeEndpoint(ENDPOINT.urls, Access(), 2.0), COMMITTED, 0.0)
    with pytest.raises(UnreachableError, match="away"):
        kept.kept(OffsetRange(TOPIC, 0, 0, 10))
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (None, []),
        (LostBlockError("gone"), ["t/0[10, 20)"]),
        (UnreadableBlockError("away"), None),
    ],
)
def test_missing_block_is_lost_and_unreachable_block_is_not(
    error: Exception | None, lost: list[str] | None, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-5: the journal may name a block that no longer exists."""
    for _ in range(3):
        taken.take()

    def read_part(part: BlockPart, *_: Any, headers: bool) -> list[pa.RecordBatch]:
        if error is not None and part.reference.ranges[0].from_offset == 10:
            raise error
        return []

    monkeypatch.setattr(coverage, "read_part", read_part)
    kept = KeptByIntake(ENDPOINT, COMMITTED, 1.0)
    if lost is None:
        with pytest.raises(UnreachableError, match="away"):
            kept.lost([OffsetRange(TOPIC, 0, 5, 25)])
    else:
        assert list(map(str, kept.lost([OffsetRange(TOPIC, 0, 5, 25)]))) == lost


# ---- reading ---------------------------------------------------------------------------------------------------------


class Brokers:
    """Like ``KafkaAdmin``: the topic's id, "" if it was deleted, the first offset held, and where the log was cut back."""

    def __init__(self, topic_id: str, low: int, cut: int | None = None) -> None:
        self._id, self._low, self._cut = topic_id, low, cut

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None: ...

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(topics, self._id)

    def watermarks(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        if not self._id:
            raise UnknownTopicError("gone")
        return dict.fromkeys(tps, (self._low, 99))

    def cuts(self, points: Mapping[TopicPartition, LogPoint]) -> dict[TopicPartition, int]:
        return {} if self._cut is None else dict.fromkeys(points, self._cut)


@pytest.mark.parametrize(
    ("now", "low", "wanted_id", "position", "lost"),
    [
        ("a", 30, "a", 10, "t/0[10, 30)"),
        ("a", 30, "", 10, "t/0[10, 30)"),
        ("a", 80, "a", 10, "t/0[10, 50)"),
        ("a", 30, "a", 20, "t/0[20, 30)"),
        ("a", 10, "a", 10, None),  # Kafka has it, and failed otherwise
        ("a", 5, "a", 20, None),
        ("b", 0, "a", 10, "t/0[10, 50)"),
        ("", 0, "a", 10, "t/0[10, 50)"),
        ("b", 0, "a", 20, None),  # what was read so far may be of another topic: the task begins anew
        ("", 0, "", 20, None),
    ],
)
def test_lost_offsets_are_distinguished_from_a_failed_read(
    now: str, low: int, wanted_id: str, position: int, lost: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_reading, "KafkaAdmin", lambda *_, **__: Brokers(now, low))
    found = lost_in_kafka(ACCESS, OffsetRange(TOPIC, 0, 10, 50, wanted_id), position)
    assert (found and str(found)) == lost
    assert found is None or found.topic_id == (wanted_id or now)


@pytest.mark.parametrize(
    ("low", "cut", "position", "lost"),
    [
        (0, 40, 10, "t/0[40, 50)"),
        (0, 40, 45, "t/0[45, 50)"),  # read before the cut
        (30, 40, 10, "t/0[10, 30)"),  # first what is before the log
        (0, None, 10, None),
    ],
)
def test_what_is_behind_a_cut_is_lost_in_kafka(
    low: int, cut: int | None, position: int, lost: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_reading, "KafkaAdmin", lambda *_, **__: Brokers("a", low, cut))
    found = lost_in_kafka(ACCESS, OffsetRange(TOPIC, 0, 10, 50, "a", leader_epoch=3), position)
    assert (found and str(found)) == lost
    assert found is None or found.leader_epoch == 3, "the intake must know which incarnation is meant"


def batch_of(*offsets: int) -> pa.RecordBatch:
    schema = DATAFRAME_SCHEMA(False)
    made = pa.RecordBatch.from_pylist([{"topic": TOPIC, "partition": 0, "offset": offset} for offset in offsets])
    nothing = {name: pa.nulls(len(offsets), schema.field(name).type) for name in schema.names}
    return pa.RecordBatch.from_pydict({**nothing, **{name: made.column(name) for name in made.schema.names}})


def read(
    taken: Taken,
    monkeypatch: pytest.MonkeyPatch,
    batches: list[pa.RecordBatch] | Exception,
    reading: Reading,
    records: int | None = None,
) -> list[int]:
    """Offsets of ``t/0[0, 20)``, which Kafka has lost, with the intake's first block as ``batches``, and the second one
    whole."""

    def lost(*_: Any, **__: Any) -> Any:
        raise OutOfRangeError("t/0[0, 20): Kafka begins at 20")

    def read_parts(
        parts: Iterable[BlockPart], plan: object, headers: object, on_lost: Callable[[Exception], None]
    ) -> Iterator[pa.RecordBatch]:
        for part in parts:
            if part.reference.ranges[0].from_offset:
                yield batch_of(*range(10, 20))
            elif isinstance(batches, Exception):
                on_lost(batches)
            else:
                yield from batches

    monkeypatch.setattr(intake_reading, "read_range", lost)
    monkeypatch.setattr(intake_reading, "read_parts", read_parts)
    monkeypatch.setattr(intake_reading, "KafkaAdmin", lambda *_, **__: Brokers("id-1", 20))
    for _ in range(2):
        taken.take()
    rows = read_through(ENDPOINT, ACCESS, OffsetRange(TOPIC, 0, 0, 20, records=records), reading)
    return [offset for batch in rows for offset in column_values(batch, "offset")]


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ([batch_of(*range(4)), batch_of(*range(4, 10))], ""),
        ([batch_of(0, 1, 4, 5, 6, 7, 8, 9)], "from offset 2 on the next record is 4"),
        ([batch_of(*range(1, 10))], "from offset 0 on the next record is 1"),
        ([batch_of(*range(8))], "from offset 8 on the next record is 10"),
    ],
)
def test_gap_between_records_of_the_wal_is_an_error_unless_allowed(
    first: list[pa.RecordBatch], message: str, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [offset for batch in first for offset in batch.column("offset").to_pylist()]
    allowing = Reading(allow_offset_gaps=True)
    assert read(taken, monkeypatch, first, allowing) == [*there, *range(10, 20)]
    if message:
        with pytest.raises(OffsetGapError, match=message):
            read(taken, monkeypatch, first, Reading())
    else:
        assert read(taken, monkeypatch, first, Reading()) == list(range(20))


def test_number_of_records_read_must_match_the_expected_count(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-3: if gaps are allowed, only the count shows that records are missing."""
    nine = [batch_of(*range(1, 10))]
    assert len(read(taken, monkeypatch, nine, Reading(allow_offset_gaps=True), records=19)) == 19
    assert taken.driver.closed == 1  # a task asks, and leaves no connection open
    with pytest.raises(RangeNotHeldError, match="Kafka and the intake hold 19 records instead of 20"):
        read(taken, monkeypatch, nine, Reading(allow_offset_gaps=True), records=20)


def test_gap_at_the_end_of_a_block_is_an_error(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    ten = [batch_of(*range(10))]
    monkeypatch.setattr(
        "tests.direct.intake.test_asking_an_intake.batch_of",
        lambda *offsets: pa.RecordBatch.from_pydict({"offset": offsets[:6]}),
    )
    with pytest.raises(OffsetGapError, match="from offset 16 on there is no record in the WAL"):
        read(taken, monkeypatch, ten, Reading())


def test_block_deleted_during_the_read_raises_the_error_of_kafkas_loss(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-5."""
    with pytest.raises(OutOfRangeError, match=r"Kafka begins at 20; no tier can read it"):
        read(taken, monkeypatch, LostBlockError("no tier can read it"), Reading())


def test_error_names_ranges_that_the_wal_lacks(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-5: it is raised before any record is read."""
    taken.lose(0, 5)
    with pytest.raises(
        OutOfRangeError, match=r"Kafka begins at 20; and the WAL of stream flights does not hold t/0\[0, 5\)"
    ):
        read(taken, monkeypatch, [batch_of(*range(10))], Reading(allow_offset_gaps=True))


def test_missing_headers_of_the_intake_are_logged(
    taken: Taken, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for headers, logged in ((False, False), (True, True)):
        with caplog.at_level(logging.WARNING, "direct.intake"):
            read(taken, monkeypatch, [batch_of(*range(10))], Reading(headers=headers))
        assert ("because the stream does not take them in (kafka.headers)" in caplog.text) == logged


# ---- holding ---------------------------------------------------------------------------------------------------------


class Stream:
    """What a direct stream has yet to read, as it says at each look, and what ended it."""

    def __init__(self, taken: Taken, monkeypatch: pytest.MonkeyPatch, *spans: OffsetRange) -> None:
        self.taken = taken
        self.spans = spans
        self.runs = 0
        self.failed: list[BaseException] = []
        self.ended = threading.Event()
        monkeypatch.setattr(cursor, "MOVE_SECONDS", 0.01)

    def hold(self, isolation: str = COMMITTED) -> StreamCursor:
        self.runs += 1
        return StreamCursor(
            ENDPOINT,
            isolation=isolation,
            name="direct-s",
            user=f"run {self.runs}",
            key=f"key {self.runs}",
            wanted=lambda: self.spans,
            failed=self._fail,
        )

    def _fail(self, error: BaseException) -> None:
        self.failed.append(error)
        self.ended.set()


def test_cursor_keeps_everything_until_the_stream_begins(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-8: records could be deleted before; partitions that the stream does not read are released afterwards."""
    taken.add(1)
    for partition in (0, 0, 1):
        taken.take(partition)
    stream = Stream(taken, monkeypatch)
    holding = stream.hold()
    assert held(taken) == {"t/0": (1, 0), "t/1": (1, 0)}
    stream.spans = (
        OffsetRange(TOPIC, 0, 12, OFFSET_MAX),
        OffsetRange(TOPIC, 0, 5, 12),
        OffsetRange("elsewhere", 0, 0, OFFSET_MAX),
    )
    holding.start()
    holding.stop()
    assert held(taken) == {"t/0": (1, 5)}
    assert not stream.failed


def test_restored_checkpoint_keeps_partitions_that_it_had_not_begun(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-8: the cursor had moved on in these partitions."""
    taken.add(1)
    taken.take(0)
    taken.take(1)
    stream = Stream(taken, monkeypatch, OffsetRange(TOPIC, 0, 5, OFFSET_MAX), OffsetRange(TOPIC, 1, 8, OFFSET_MAX))
    stream.hold().stop()
    assert held(taken) == {"t/0": (1, 5), "t/1": (1, 8)}
    stream.spans = stream.spans[:1]
    stream.hold().stop()
    assert held(taken) == {"t/0": (1, 5), "t/1": (1, 0)}


def test_cursor_is_dropped_only_if_the_stream_could_not_begin(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6, INV-8."""
    taken.take()
    Stream(taken, monkeypatch).hold().stop()
    assert not taken.tracked.state.cursors
    Stream(taken, monkeypatch, OffsetRange(TOPIC, 0, 3, OFFSET_MAX)).hold().stop()  # it began before, and not this time
    assert held(taken) == {"t/0": (1, 3)}


def test_stream_with_another_isolation_level_opens_no_cursor(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    taken.take()
    with pytest.raises(UsageError, match=r"isolation\.level"):
        Stream(taken, monkeypatch).hold("read_uncommitted")
    assert not taken.tracked.state.cursors


def test_refused_cursor_leaves_no_open_connection(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that cannot begin is started repeatedly."""
    refused = RefusedError("the stream has 1000 cursors already", "conflict")

    def post(path: str, body: object, answer: object) -> None:
        raise refused

    monkeypatch.setattr(taken.driver, "post", post)
    with pytest.raises(RefusedError, match="1000 cursors"):
        Stream(taken, monkeypatch).hold()
    assert taken.driver.closed == 2  # who looked, and who would have held


def test_dropped_cursor_ends_a_stream_that_does_not_move_it(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-5: nothing keeps what the stream has yet to read."""
    taken.take()
    monkeypatch.setattr(cursor, "CHECKS_MAX", 1 << 60)
    monkeypatch.setattr(query_cursor, "HEARTBEAT_SECONDS", 0.01)
    stream = Stream(taken, monkeypatch, OffsetRange(TOPIC, 0, 3, OFFSET_MAX))
    holding = stream.hold()
    holding.start()
    taken.driver.post("/v1/operator/drop-cursor", m.DropCursorRequest(cursor="direct-s"), m.OperatorAnswer)
    assert stream.ended.wait(PATIENCE_SECONDS)
    (error,) = stream.failed
    assert isinstance(error, RefusedError) and "does not exist: dropped by" in str(error)
    holding.stop()


def test_cursor_keeps_batches_of_a_replay_and_their_windows() -> None:
    """INV-8."""
    state = State(stream=STREAM, timeline=1)
    apply(state, SpansBegun({"t/0": 50}, {"t": "a"}, 1, "given"))
    for number, kept in enumerate((state.replaying, state.replay_window)):
        span = OffsetRange(TOPIC, 0, number * 10, number * 10 + 10, "a")
        kept[number] = ReplayedBatch(batch_id=number, number=number, time_ms=1, tasks=(), spans=(span,))
    assert [str(span) for span in ranges_to_keep(state)][:2] == ["t/0[0, 10)", "t/0[10, 20)"]
