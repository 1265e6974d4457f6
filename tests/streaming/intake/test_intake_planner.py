"""The planner of a query over an intake, with the driver's decisions and no server."""

from __future__ import annotations

import itertools
import logging
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from driver.journal.events import IncarnationBegun, IncarnationStart
from driver.journal.transitions import apply
from driver.tracker.requests import FoundPartitions
from forebay import messages as m
from forebay.model.errors import (
    AccessError,
    LostBlockError,
    RangeNotHeldError,
    RefusedError,
    UnknownTopicError,
    UnreachableError,
    UsageError,
)
from forebay.model.values import Block, TopicPartition
from forebay.security.access import Access
from pyspark_forebay.intake import client, cursor
from pyspark_forebay.intake import source as source_module
from pyspark_forebay.intake.batch import IntakeBatchReader
from pyspark_forebay.intake.progress_group import ProgressGroup
from pyspark_forebay.intake.source import IntakeSource
from pyspark_forebay.intake.stream import IntakeStreamReader
from pyspark_forebay.options.source import read_options
from tests.support.asked_intake import Taken, asked_in_process
from tests.support.kafka import PATIENCE_SECONDS
from tests.support.tracked import TOPIC, Tracked, offsets
from wal.reading import ReadPlan

ALL = ReadAllAvailable()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    return asked_in_process(monkeypatch)


def begun(identity: str = "q") -> IntakeStreamReader:
    return IntakeStreamReader({"tracker": "http://127.0.0.1:1"}, lambda: identity)


def records(tasks: list[Any]) -> dict[str, int]:
    """Records that the tasks read, by range."""
    found: dict[str, int] = {}
    for task in tasks:
        for part in task.value.parts:
            found |= {r.label: part.records for r in part.reference.ranges if r.label not in part.unwanted}
    return found


def test_partition_created_after_a_batch_was_planned_is_kept(taken: Taken) -> None:
    """INV-8: the batch does not name it, and the next one reads it from its beginning."""
    taken.take()
    reader = begun()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    taken.take()
    end = reader.latestOffset(start, ALL)
    taken.add(1)
    taken.take(1)
    assert records(reader.partitions(start, end)) == {"t/0[10, 20)": 10}
    assert taken.held(1)
    reader.commit(end)
    assert taken.held(1)
    after = reader.latestOffset(end, ALL)
    assert records(reader.partitions(end, after)) == {"t/1[0, 10)": 10}
    reader.commit(after)
    assert not taken.held(1)


@pytest.mark.parametrize("call", ["plans its last batch again", "commits it"])
def test_partition_created_while_the_query_was_stopped_is_kept(taken: Taken, call: str) -> None:
    """INV-8: Spark begins with the unfinished batch, which does not name the partition."""
    taken.take()
    reader = begun()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    taken.take()
    end = reader.latestOffset(start, ALL)
    reader.stop()
    taken.add(1)
    taken.take(1)
    again = begun("again")
    if call == "commits it":
        again.commit(end)
    else:
        again.partitions(start, end)
    assert taken.held(1)


def test_query_that_cannot_begin_leaves_no_cursor(taken: Taken) -> None:
    """INV-6: it may be started repeatedly."""
    taken.take()
    options = {"tracker": "http://127.0.0.1:1", "startingOffsets": f'{{"{TOPIC}": {{"0": 99}}}}'}
    reader = IntakeStreamReader(options, lambda: "q")
    for _ in range(2):
        with pytest.raises(UsageError, match="is too high: the stream has taken in offsets up to"):
            reader.latestOffset(reader.initialOffset(), ALL)
        assert not taken.tracked.state.cursors
        assert not taken.held(0)
    assert "/v1/cursors/earliest" not in taken.driver.asked  # no option needs it


def test_deleted_records_of_an_unkept_partition_are_reported(taken: Taken) -> None:
    """INV-5: its cursor may have expired meanwhile."""
    taken.take()
    reader = begun()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()
    taken.tracked.say(m.DropCursorRequest(cursor="query-q"))
    taken.add(1)
    taken.take(1)
    state = taken.tracked.state
    (gone,) = (path for path, share in state.index.segments.items() if path.endswith("1.seg"))
    state.cleaning_segments[gone] = True
    again = begun("again")
    end = again.latestOffset(start, ALL)
    with pytest.raises(RangeNotHeldError, match=r"t/1\[0, 10\): the WAL no longer has it"):
        again.partitions(start, end)


def batch_of(**options: str) -> IntakeBatchReader:
    return IntakeBatchReader({"tracker": "http://127.0.0.1:1", **options})


def test_repeated_warnings_are_logged_once(taken: Taken, caplog: pytest.LogCaptureFixture) -> None:
    """A trigger every few hundred milliseconds would fill the log. The warnings are missing headers, and a gap."""
    taken.take()
    taken.lose(0, 25)
    taken.take()
    reader = IntakeStreamReader(
        {"tracker": "http://127.0.0.1:1", "includeHeaders": "true", "startingOffsets": f'{{"{TOPIC}": {{"0": 5}}}}'},
        lambda: "q",
    )
    end = reader.latestOffset(reader.initialOffset(), ALL)
    with caplog.at_level(logging.WARNING, "forebay.source"):
        for _ in range(2):
            assert records(reader.partitions({}, end)) == {"t/0[0, 10)": 5, "t/0[25, 35)": 10}
    told = [record.getMessage() for record in caplog.records]
    assert [words.partition(":")[0] for words in told] == ["t/0[10, 25) was lost in Kafka", "option includeHeaders"]
    reader.stop()


def test_missing_block_fails_the_search_for_a_time_or_is_skipped(
    taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-5."""
    taken.take()
    with pytest.raises(LostBlockError, match='failOnDataLoss" to "false"'):
        batch_of(startingTimestamp="1").partitions()
    with (
        caplog.at_level(logging.WARNING, "forebay.source"),
        pytest.raises(UsageError, match="t/0 has no record at or after 1 ms"),
    ):
        batch_of(startingTimestamp="1", failOnDataLoss="false").partitions()
    assert "failOnDataLoss is false: searching the next blocks" in caplog.text


@pytest.mark.parametrize(
    ("path", "answer", "options"),
    [
        ("blocks", m.BlocksAnswer(blocks=(), reached=(0,)), {}),
        ("times", m.TimesAnswer(found=(m.TimedBlock(reached=0),)), {"startingTimestamp": "1"}),
    ],
)
def test_answers_without_progress_end_the_request(
    path: str, answer: m.Message, options: dict[str, str], taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6."""
    taken.take()
    post = taken.driver.post

    def posted(asked: str, body: Any, kind: Any) -> Any:
        assert len(taken.driver.asked) < 20
        found = post(asked, body, kind)
        return answer if asked == f"/v1/cursors/{path}" else found

    monkeypatch.setattr(taken.driver, "post", posted)
    with pytest.raises(UsageError, match=f"the driver's answer about {path} makes no progress"):
        batch_of(startingOffsets=f'{{"{TOPIC}": {{"0": 0}}}}', **options).partitions()


def test_refused_token_is_not_retried_and_a_stop_ends_the_wait(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: either would wait for minutes. After the time has passed there is no second request."""
    asked: list[str] = []
    outcome: list[Exception] = [AccessError("a query's token is needed")]

    def refused(path: str, answer: Any) -> Any:
        asked.append(path)
        raise outcome[0]

    monkeypatch.setattr(taken.driver, "get", refused)
    waiting = client.Intake(("http://127.0.0.1:1",), Access(), 600.0)
    with pytest.raises(AccessError):
        waiting.describe()
    assert len(asked) == 1
    outcome[0] = UnreachableError("away")
    with pytest.raises(UnreachableError, match="away"):
        client.Intake(("http://127.0.0.1:1",), Access(), 0.0).describe()
    assert len(asked) == 2
    waiting.close()
    with pytest.raises(UnreachableError, match="the query is stopping"):
        waiting.describe()
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("group", "kafka", "words"),
    [
        ("g", {}, "the stream does not read Kafka, so it has no consumer groups"),
        ("forebay.flights", {"bootstrap.servers": "b:1"}, "'forebay.flights' is a consumer group of the stream itself"),
    ],
)
def test_invalid_progress_group_is_refused(group: str, kafka: dict[str, str], words: str) -> None:
    """Offsets in the stream's own group would count as the stream's commits."""
    with pytest.raises(UsageError, match=words):
        ProgressGroup(group, kafka, ("forebay.flights", "forebay.flights.completed"))


def test_query_with_a_dropped_cursor_fails_every_call_without_a_request(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-4: also while the driver is unavailable."""
    monkeypatch.setattr(cursor, "HEARTBEAT_SECONDS", 0.01)
    taken.take()
    reader = begun()
    at = reader.latestOffset(reader.initialOffset(), ALL)
    taken.driver.post("/v1/cursors/drop", m.DropCursorRequest(cursor="query-q"), m.OperatorAnswer)
    assert reader._planner is not None and reader._planner._cursor is not None
    reader._planner._cursor._thread.join(PATIENCE_SECONDS)  # its heartbeat was refused
    asked = len(taken.driver.asked)
    for call in (lambda: reader.latestOffset(at, ALL), lambda: reader.partitions(at, at), lambda: reader.commit(at)):
        with pytest.raises(RefusedError, match="cursor query-q does not exist: dropped by"):
            call()
    reader.stop()
    assert len(taken.driver.asked) == asked
    assert taken.driver.closed == 1


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({}, ["a/0", "a/1", "ab/0"]),
        ({"subscribe": "a"}, ["a/0", "a/1"]),
        ({"subscribePattern": "b$"}, ["ab/0"]),
        ({"assign": '{"a": [1]}'}, ["a/1"]),
    ],
)
def test_query_reads_its_subscription_or_everything(given: dict[str, str], read: list[str]) -> None:
    options = read_options({"tracker": "http://127.0.0.1:1", **given}, streaming=False)
    source = IntakeSource(options, client.Intake.of(options))
    known = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("ab", 0)]
    assert [str(tp) for tp in known if source.reads(tp)] == read


def test_empty_batch_query_has_one_task_and_leaves_no_connection(taken: Taken) -> None:
    (nothing,) = batch_of().partitions()
    assert nothing.value is None and list(batch_of().read(nothing)) == []
    assert taken.driver.closed == 1
    taken.take()
    offsets = {name: f'{{"{TOPIC}": {{"0": {at}}}}}' for name, at in (("startingOffsets", 8), ("endingOffsets", 3))}
    with pytest.raises(UsageError, match="starting offset 8 of t/0 is beyond its ending offset 3"):
        batch_of(**offsets).partitions()
    assert taken.driver.closed == 2


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_options_must_name_every_partition_that_is_read(option: str, taken: Taken) -> None:
    taken.take()
    with pytest.raises(UsageError, match=rf"option {option} must name every .* missing: t/0; not read by .*: t/7"):
        batch_of(**{option: f'{{"{TOPIC}": {{"7": 5}}}}'}).partitions()


class Brokers:
    """As ``KafkaAdmin``: topics have the id ``id-1``, and every place that is asked for is at ``at``."""

    def __init__(self, at: int) -> None:
        self._at = at

    def __call__(self, *_: Any, **__: Any) -> Brokers:
        return self

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "id-1")

    def places(self, asked: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
        return dict.fromkeys(asked, self._at)


@pytest.mark.parametrize(
    ("incarnations", "held", "at", "found"),
    [
        ([(1, 0, "id-1")], (1, 5), 2, (1, 2)),
        ([(1, 0, "id-1")], (1, 5), -1, None),  # no record is as young
        ([(1, 0, "id-0")], (1, 5), 2, None),  # another topic's offsets
        ([(1, 0, "id-0"), (2, 20, "id-1")], (1, 5), 2, None),  # the WAL has all of the newest incarnation
        ([(1, 0, "id-0"), (2, 20, "id-1")], (2, 25), 22, (2, 22)),
        (
            [(1, 0, "id-0"), (2, 20, "id-1")],
            (2, 25),
            3,
            (2, 20),
        ),  # offsets below its start belong to the older incarnation
    ],
)
def test_kafka_is_asked_only_about_the_newest_incarnation(
    incarnations: list[tuple[int, int, str]],
    held: tuple[int, int],
    at: int,
    found: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-5: another topic's records would pass for ours."""
    monkeypatch.setattr(source_module, "KafkaAdmin", Brokers(at))
    options = read_options({"tracker": "http://127.0.0.1:1"}, streaming=False)
    views = tuple(
        m.IncarnationView(number=incarnation, start=start, topic_id=topic_id)
        for incarnation, start, topic_id in incarnations
    )
    tp = TopicPartition(TOPIC, 0)
    known = {tp: m.IntakePartition(topic=TOPIC, partition=0, position=99, incarnations=views)}
    answer = m.IntakeAnswer(stream="s", partitions=(), wal_url="", kafka={"bootstrap.servers": "b:1"})
    source = IntakeSource(options, client.Intake.of(options))
    assert source._in_kafka(answer, known, {tp: held}, {tp: "earliest"}) == ({} if found is None else {tp: found})


def test_records_cleaned_up_during_a_search_are_asked_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-2: the block existed when Kafka was asked about older records, and was deleted before blocks were searched."""
    monkeypatch.setattr(source_module, "KafkaAdmin", Brokers(2))
    options = read_options({"tracker": "http://127.0.0.1:1"}, streaming=False)
    tp = TopicPartition(TOPIC, 0)
    incarnation = m.IncarnationView(number=1, start=0, topic_id="id-1")
    known = {tp: m.IntakePartition(topic=TOPIC, partition=0, position=5, incarnations=(incarnation,))}
    answer = m.IntakeAnswer(stream="s", partitions=(), wal_url="", kafka={"bootstrap.servers": "b:1"})
    held = iter([0, 5, 5])
    played = SimpleNamespace(
        earliest=lambda _: {tp: (1, next(held))},
        times=lambda spans: [SimpleNamespace(block=None, reached=span.span.until_offset) for span in spans],
    )
    source = IntakeSource(options, cast(client.Intake, played))
    assert source._at_times(answer, known, {tp: 3}) == {tp: (1, 2)}


def test_time_is_searched_in_the_whole_wal_before_kafka(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-2: times need not increase, and Kafka may have deleted what the WAL still has."""
    taken.tracked.say(FoundPartitions((IncarnationStart(TOPIC, 1, 7, "id-1"),), taken.tracked.now_ms, "found"))
    for _ in range(2):
        taken.take(1)
    looked: list[int] = []

    def times_in(own: IntakeSource, answer: Any, partitions: Any, block: Block, wanted: Any) -> Any:
        (r,) = block.meta.ranges
        looked.append(r.from_offset)
        offsets = np.arange(r.from_offset, r.until_offset)
        return {r.tp: (offsets, offsets)}

    monkeypatch.setattr(IntakeSource, "_times_in", times_in)
    monkeypatch.setattr(source_module, "KafkaAdmin", Brokers(25))
    options = {"assign": f'{{"{TOPIC}": [1]}}', "kafka.bootstrap.servers": "b:1"}

    def begins(time: int, **more: str) -> int:
        (task,) = batch_of(**options, startingTimestamp=str(time), **more).partitions()
        parts = task.value.parts if task.value is not None else ()
        return sum(part.records for part in parts)

    assert begins(9) == 18 and looked == [7]
    looked.clear()
    assert begins(21) == 6 and looked == [7, 17]
    with pytest.raises(UsageError, match="t/1 has no record at or after 99 ms"):
        begins(99)
    assert begins(99, startingOffsetsByTimestampStrategy="latest") == 0
    assert begins(9, endingTimestamp="99") == 18


def test_search_for_a_time_reads_only_wanted_ranges_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: the planner reads one block for each partition, and a block may have ranges of many partitions."""
    t = Tracked(partitions=2)
    epoch = t.register()
    tokens = [t.claim(epoch, number).view.token for number in range(2)]
    block = t.block(epoch, [offsets(0, 10, token, partition=number) for number, token in enumerate(tokens)])
    passed_over: list[Any] = []

    def read_block(_: Any, plan: ReadPlan) -> Any:
        passed_over.append(plan.lost)
        raise LostBlockError("gone")

    monkeypatch.setattr(source_module, "read_block", read_block)
    options = read_options({"tracker": "http://127.0.0.1:1", "failOnDataLoss": "false"}, streaming=False)
    source = IntakeSource(options, client.Intake.of(options))
    answer = m.IntakeAnswer(stream="s", partitions=(), wal_url="")
    wanted = m.IncarnationSpan(topic=TOPIC, partition=1, incarnation=1, from_offset=0, until_offset=10)
    assert source._times_in(answer, {}, block, {wanted.tp: [wanted]}) == {}
    assert passed_over == [{"t/0[0, 10)"}]


def test_tasks_get_token_and_topic_ids_and_show_no_secret(taken: Taken, tmp_path: Path) -> None:
    """INV-5: the ids show that Kafka's records belong to the incarnation."""
    file = tmp_path / "tokens"
    file.write_text("query secret-word-of-no-user\n")
    file.chmod(0o600)
    taken.take()
    options = {"kafka.bootstrap.servers": "b:1", "kafka.sasl.password": "secret-of-kafkas"}
    (task,) = batch_of(tokenFile=str(file), startingOffsets=f'{{"{TOPIC}": {{"0": 0}}}}', **options).partitions()
    file.unlink()
    plan = pickle.loads(pickle.dumps(task)).value.plan
    assert "secret-word" in plan.access.headers()["authorization"]
    assert plan.kafka.options["bootstrap.servers"] == "b:1"
    assert plan.topic_ids == {"t/0/1": "id-1"}
    of_kafka = msgspec.structs.replace(task.value, kafka=options)
    assert "secret" not in repr(task.value) + str(of_kafka)


def letters() -> str:
    return "q"


def test_tasks_get_no_state_of_the_planner(taken: Taken) -> None:
    """INV-4: a task that ends must not end the cursor."""
    taken.take()
    reader = IntakeStreamReader({"tracker": "http://127.0.0.1:1"}, letters)
    reader.latestOffset(reader.initialOffset(), ALL)
    asked = len(taken.driver.asked)
    pickle.loads(pickle.dumps(reader)).stop()
    assert len(taken.driver.asked) == asked
    reader.stop()


@pytest.mark.parametrize(
    ("given", "words"), [({"subscribe": "t,nobody"}, "nobody"), ({"assign": '{"t": [0, 7]}'}, "t/7")]
)
def test_topic_that_the_stream_does_not_take_in_is_refused(given: dict[str, str], words: str, taken: Taken) -> None:
    taken.take()
    reader = IntakeStreamReader({"tracker": "http://127.0.0.1:1", **given}, letters)
    for call in (lambda: reader.latestOffset(reader.initialOffset(), ALL), batch_of(**given).partitions):
        with pytest.raises(UnknownTopicError, match=f"the stream does not take in {words}$"):
            call()
    assert not taken.tracked.state.cursors


def test_each_user_of_a_cursor_has_its_own_key(taken: Taken) -> None:
    """INV-4: an epoch can be guessed."""
    count = map(str, itertools.count())
    at: dict[str, Any] = {}
    digests = set()
    for _ in range(2):
        reader = IntakeStreamReader({"tracker": "http://127.0.0.1:1"}, lambda: next(count))
        at = reader.latestOffset(at, ALL)
        digests |= {cursor.key_digest for cursor in taken.tracked.state.cursors.values()}
        reader.stop()
    assert len(digests) == 2 and "" not in digests


def test_query_waits_for_a_cursor_in_use_but_not_for_a_refused_one(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6: its user may have been killed; waiting changes nothing else."""
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.0)
    taken.take()
    answers = [
        RefusedError("there are too many", "conflict"),
        *[RefusedError("another user reads by it", "in-use")] * 2,
    ]

    def refuse(path: str) -> None:
        if path == "/v1/cursors/open" and answers:
            raise answers.pop(0)

    taken.driver.before = refuse
    reader = begun()
    with pytest.raises(RefusedError, match="there are too many"):
        reader.latestOffset(reader.initialOffset(), ALL)
    assert len(answers) == 2
    reader.latestOffset(reader.initialOffset(), ALL)
    assert not answers
    reader.stop()


def test_block_in_two_answers_is_read_once(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-2: an answer holds a limited number of blocks, and a block of several partitions may be in two answers."""
    taken.take()
    post = taken.driver.post
    reached = [5]

    def posted(path: str, body: Any, kind: Any) -> Any:
        found = post(path, body, kind)
        return (
            msgspec.structs.replace(found, reached=(reached.pop(),)) if path.endswith("/blocks") and reached else found
        )

    monkeypatch.setattr(taken.driver, "post", posted)
    (task,) = batch_of().partitions()
    assert [part.records for part in task.value.parts] == [10] and not reached


def test_checkpoint_with_a_batch_of_another_source_is_refused(taken: Taken) -> None:
    """INV-3: its ends are Kafka's offsets; read from blocks, it might be another batch."""
    taken.take()
    reader = begun()
    for start, end in (({TOPIC: {"0": 0}}, {TOPIC: {"0": 5}}), ({}, {TOPIC: {"0": 5}, "#cursor": "q"})):
        with pytest.raises(UsageError, match="another source planned"):
            reader.partitions(start, end)
    assert not taken.tracked.state.cursors
    end = reader.latestOffset({TOPIC: {"0": 0}}, ALL)  # where that has ended, the query goes on over the intake
    assert records(reader.partitions({TOPIC: {"0": 0}}, end)) == {"t/0[0, 10)": 10}
    reader.stop()


def test_cursor_keeps_no_partitions_that_the_query_does_not_read(taken: Taken) -> None:
    """INV-8: also partitions that are created later; they would fill the disk."""
    taken.add(1)
    taken.take(0)
    taken.take(1)
    reader = IntakeStreamReader({"tracker": "http://127.0.0.1:1", "assign": f'{{"{TOPIC}": [0]}}'}, lambda: "q")
    at = reader.latestOffset(reader.initialOffset(), ALL)
    assert not taken.held(1)
    assert not taken.held(0)  # it begins behind what was there
    taken.add(2)
    taken.take(2)
    assert taken.held(2)
    taken.take(0)
    for _ in range(2):
        reader.latestOffset(at, ALL)
        assert not taken.held(2)
    assert taken.driver.asked.count("/v1/cursors/move") == 2  # where it begins, and of the partition, once
    end = reader.latestOffset(at, ALL)
    reader.stop()
    taken.tracked.say(m.DropCursorRequest(cursor="query-q"))
    again = IntakeStreamReader({"tracker": "http://127.0.0.1:1", "assign": f'{{"{TOPIC}": [0]}}'}, lambda: "again")
    again.partitions(at, end)
    assert not taken.held(2)
    again.stop()


def test_cursor_keeps_everything_before_the_start_is_determined(taken: Taken) -> None:
    """INV-8: records could be deleted before."""
    taken.take()
    held: list[bool] = []

    def asked(path: str) -> None:
        if path == "/v1/cursors/open":
            taken.take()  # since it looked
        if path == "/v1/cursors/earliest":
            held.append(taken.held(0))

    taken.driver.before = asked
    options = {"tracker": "http://127.0.0.1:1", "startingOffsets": "earliest"}
    reader = IntakeStreamReader(options, lambda: "q")
    reader.latestOffset(reader.initialOffset(), ALL)
    assert held == [True]
    reader.stop()
    reader = begun()
    assert reader.latestOffset(reader.initialOffset(), ALL)["#start"] == {TOPIC: {"0": 30}}
    reader.stop()


def test_trigger_waits_for_min_offsets_unless_no_more_can_arrive(taken: Taken) -> None:
    """With Trigger.AvailableNow, which reads what existed when it began; and at the end of an incarnation."""
    some = {"tracker": "http://127.0.0.1:1", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "6"}
    some["maxTriggerDelay"] = "1h"
    start: dict[str, Any] = {TOPIC: {"0": 0}, "#cursor": "query-q"}
    taken.take()
    now, always = (IntakeStreamReader(some, cast(Any, lambda name=name: name)) for name in ("now", "always"))
    now.prepareForTriggerAvailableNow()
    taken.take()

    def triggers(reader: IntakeStreamReader, at: dict[str, Any], count: int) -> list[int]:
        found = []
        for _ in range(count):
            at = reader.latestOffset(at, reader.getDefaultReadLimit())
            found.append(at[TOPIC]["0"])
        return found

    assert triggers(now, start, 3) == [6, 10, 10]
    now.stop()
    assert triggers(always, start, 5) == [6, 12, 18, 18, 18]
    apply(
        taken.tracked.state, IncarnationBegun(IncarnationStart(TOPIC, 0, 0, "id-2"), taken.tracked.now_ms, "recreated")
    )
    assert triggers(always, {TOPIC: {"0": 18}, "#cursor": "query-q"}, 1) == [0]  # where the next life begins
    always.stop()


def test_restored_checkpoint_keeps_partitions_that_it_does_not_name(taken: Taken) -> None:
    """INV-8: the cursor had moved on in these partitions."""
    taken.take()
    reader = begun()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    taken.add(1)
    taken.take(1)
    reader.commit(reader.latestOffset(start, ALL))
    assert not taken.held(1)
    reader.stop()
    again = begun("again")
    again.commit(start)  # Spark begins with the batch that this checkpoint has last
    assert taken.held(1)
    again.stop()


def test_query_ahead_of_the_intake_waits(taken: Taken) -> None:
    """After a rebuild, the journal may have to take in records again."""
    taken.take()
    reader = begun()
    ahead = {TOPIC: {"0": 20}, "#cursor": "query-q"}
    assert reader.latestOffset(ahead, ALL) == ahead
    for _ in range(2):
        taken.take()
    assert records(reader.partitions(ahead, reader.latestOffset(ahead, ALL))) == {"t/0[20, 30)": 10}
    reader.stop()
