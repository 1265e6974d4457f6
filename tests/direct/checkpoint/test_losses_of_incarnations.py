"""Losses of a topic that was created again: the same offsets of another incarnation are other records (INV-2, INV-5)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from deploy.main import main
from direct.checkpoint.checkpoint import Checkpoint
from direct.checkpoint.leadership import lead
from direct.checkpoint.losses import Held, journal_losses, losses_of_state, points_of_state
from direct.stream import planner
from direct.stream.commits import DirectCommits
from direct.stream.settings import StreamSettings
from direct.stream.strategies import Assign
from driver.batches.batch_run import BatchRun
from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.decisions.batch_order import window
from driver.decisions.replay import RewindTo, plan
from driver.journal.events import LossAccepted, SpansAllocated
from driver.journal.history import FinishedBatch
from driver.journal.state import State
from driver.journal.state_parts import Batch as Waiting
from driver.journal.transitions import apply
from driver.tracker import Tracker
from driver.tracker.requests import AllocateSpans, BeginSpans, Complete, EndSpans, KeepWindow, SkipSpans
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.spans import OffsetRange, is_inside, label_of, parse_label, without_lost
from forebay.messages import AcceptLossRequest
from forebay.model.errors import UsageError
from forebay.model.identifiers import numbered
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock, SystemClock
from tests.support.state.tracked import tracker_options
from wal.storage import open_storage

TP = TopicPartition("t", 0)
FIRST, SECOND = numbered(1, 1), numbered(1, 2)
OLD, NEW = OffsetRange("t", 0, 0, 100, "a", leader_epoch=5), OffsetRange("t", 0, 0, 50, "b", leader_epoch=1)
#: what makes a stream whose first batch has OLD, and whose second one, after the topic was created again, has NEW
REQUESTS = (
    KeepWindow(1),
    BeginSpans({"t/0": 0}, {"t": "a"}, 1, "given"),
    AllocateSpans((OLD,), 2),
    EndSpans(("t/0",), 3, "created-again", {"t/0": 0}, {"t": "b"}),
    AllocateSpans((NEW,), 4),
)
#: Kafka has all records of the new topic, and none of the old one
HELD = {TP: Held("b", 0, 50, 1)}


class Rows:
    """Rows that nothing reads."""

    def over(self, work: object) -> Rows:
        return self


class Stream:
    """The stream of REQUESTS, decided in memory."""

    def __init__(self) -> None:
        self.state = State(stream="s", timeline=1)
        self.tracker = Tracker(self.state, numbered(1, 1), tracker_options(max_queued_batches=8))
        for request in REQUESTS:
            self.ask(request)

    def ask(self, request: Any) -> Any:
        return self.tracker.decide(request, 1.0, 1_000).answer

    def work(self) -> BatchWork:
        """Return the work of the second batch, with the first one in its window."""
        batch = self.state.batches[SECOND]
        run = BatchRun.of(self.state, (*window(self.state, batch, False), batch), 0, False)
        *past, own = run.work(1, False, 1, 1, {})
        return replace(own, past=tuple(past))

    def window(self) -> list[tuple[OffsetRange, int]]:
        """Return what the job of the second batch reads in ``batch.window(2)``."""
        over = Batch(self.work(), cast(Any, Rows())).window(2)._work
        return list(zip(over.spans, over.incarnations, strict=True))


def test_accepted_loss_of_an_earlier_batch_removes_nothing_of_the_batch_itself() -> None:
    """INV-2: the labels of both would be equal without the incarnation."""
    stream = Stream()
    found = losses_of_state(stream.state, HELD)
    assert [(loss.label, loss.batch_id) for loss in found] == [("t/0[0, 100)", FIRST), ("t/0[0, 100)", SECOND)]
    journal_losses(stream.ask, found[1:], 9, "ann")
    assert stream.work().spans == (NEW,) and stream.window() == [(NEW, 2)]
    journal_losses(stream.ask, found[:1], 9, "ann")
    assert losses_of_state(stream.state, HELD) == []
    assert stream.work().past[0].spans == () and stream.window() == [(NEW, 2)]


def test_loss_of_the_batch_itself_leaves_the_earlier_one_in_its_window() -> None:
    stream = Stream()
    stream.ask(AcceptLossRequest(batch_id=SECOND, ranges=("t/0[0, 10) life 2",)))
    assert stream.window() == [(OLD, 1), (OffsetRange("t", 0, 10, 50, "b", leader_epoch=1), 2)]


def test_label_names_the_incarnation_and_its_absence_the_first_one() -> None:
    """As ``BlockRange.label``; older releases wrote no incarnation."""
    span = OffsetRange("t", 0, 10, 20)
    assert label_of(span, 1) == str(span) and label_of(span, 3) == "t/0[10, 20) life 3"
    written = "t/0[10, 20) life 3"
    for text in (written, written.replace(" ", ""), f" {written.replace(' ', '  ')} "):
        assert parse_label(text) == (span, 3)
    assert parse_label("t/0[10, 20)") == (span, 1)
    for text in ("t/0[10, 20) life 0", written[:-2], f"{written} life 3", "t/0 life 2"):
        with pytest.raises(UsageError, match="is not a range of offsets"):
            parse_label(text)
    assert without_lost([(span, 1), (span, 2)], ["t/0[10, 15) life 2", "t/0[18, 20)"]) == [
        (OffsetRange("t", 0, 10, 18), 1),
        (OffsetRange("t", 0, 15, 20), 2),
    ]
    assert is_inside("t/0[12, 14) life 2", [(span, 2)]) and not is_inside("t/0[12, 14)", [(span, 2)])


def test_driver_accepts_a_loss_only_of_an_incarnation_that_the_batch_reads() -> None:
    stream = Stream()
    for label in ("t/0[0, 100) life 2", "t/0[0, 10) life 3"):
        with pytest.raises(UsageError, match=r"contains t/0\[0, 100\), t/0\[0, 50\) life 2; name"):
            stream.ask(AcceptLossRequest(batch_id=SECOND, ranges=(label,)))
    stream.ask(AcceptLossRequest(batch_id=SECOND, ranges=("t/0[0, 10)", "t/0[0, 10) life 2")))
    assert stream.state.batches[SECOND].lost == ("t/0[0, 10)", "t/0[0, 10) life 2")


def test_loss_that_an_older_release_accepted_for_a_later_incarnation_is_found_again() -> None:
    """INV-5: its label does not say which records were lost."""
    stream = Stream()
    apply(stream.state, LossAccepted(SECOND, ("t/0[0, 50)",), 5, "ann"))
    assert stream.work().spans == (NEW,)
    lost = losses_of_state(stream.state, {TP: Held("b", 50, 50, 1)})
    assert [loss.label for loss in lost] == ["t/0[0, 100)", "t/0[50, 100)", "t/0[0, 50) life 2"]


def test_partition_of_an_older_release_keeps_its_id_when_another_one_of_its_topic_begins_again() -> None:
    """INV-5: a kill between the losses of two partitions. The release kept one id for each topic, and no incarnations."""
    state = State(
        stream="s", timeline=1, created=True, direct=True, next_offsets={"t/0": 10, "t/1": 20}, topic_ids={"t": "a"}
    )
    tracker = Tracker(state, numbered(1, 1), tracker_options(max_queued_batches=8))
    held = {TP: Held("b", 0, 50, 1), TopicPartition("t", 1): Held("b", 0, 50, 1)}
    losses = losses_of_state(state, held)
    assert [loss.label for loss in losses] == ["t/0", "t/1"]
    journal_losses(lambda request: tracker.decide(request, 1.0, 1_000), losses[:1], 9, "ann")
    assert [loss.label for loss in losses_of_state(state, held)] == ["t/1"]
    journal_losses(lambda request: tracker.decide(request, 1.0, 1_000), losses[1:], 9, "ann")
    assert losses_of_state(state, held) == [] and state.next_offsets == {"t/0": 0, "t/1": 0}


def test_topic_that_was_created_again_under_an_older_release_is_not_taken_for_the_one_of_a_waiting_batch() -> None:
    """INV-2: with the same incarnation, the loss of the old batch would remove records of the new one."""
    state = State(
        stream="s", timeline=1, created=True, direct=True, next_offsets={"t/0": 0}, topic_ids={"t": "b"}, batch_count=1
    )
    state.batches[FIRST] = Waiting(batch_id=FIRST, number=1, time_ms=1, tasks=(), spans=(OLD,))
    apply(state, SpansAllocated(SECOND, 2, 3, (NEW,)))
    assert state.batches[SECOND].incarnations == (2,)


def test_replay_needs_all_records_of_an_incarnation_whose_loss_was_not_accepted() -> None:
    ranges = ("t/0[0, 100)",)
    batch = FinishedBatch(FIRST, 1, 1, 2, 1, 150, (), (), ranges, spans=(OLD, NEW), incarnations=(1, 2))
    asked: list[OffsetRange] = []

    def held_in_kafka(span: OffsetRange) -> bool:
        asked.append(span)
        return False

    state = State(stream="s", timeline=1, batch_count=1, archived_number=1, created=True, direct=True)
    assert plan(state, (batch,), RewindTo(batch=1), held_in_kafka).lacking == (batch,)
    assert asked == [NEW]


def test_points_of_the_old_topic_are_not_compared_with_the_new_one() -> None:
    """A leader that does not know the epoch counts as unreachable, so the loss would never be found."""
    assert points_of_state(Stream().state) == {TP: {1: 50}}


def test_gap_of_a_later_incarnation_is_labelled_with_it() -> None:
    stream = Stream()
    *_, gap = losses_of_state(stream.state, {TP: Held("b", 70, 90, 1)})
    assert (gap.kind, gap.label) == ("gap", "t/0[50, 70) life 2")
    asked: list[Any] = []
    journal_losses(asked.append, [gap], 9, "ann")
    assert asked == [SkipSpans((OffsetRange("t", 0, 50, 70),), 9, "out-of-range, ann")]


class Brokers:
    """As ``KafkaAdmin``, of brokers that have the new topic alone, from offset ``first`` on. Its leaders know only its epoch."""

    first = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def partitions(self, topics: Collection[str]) -> set[TopicPartition]:
        return {TP}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return {"t": "b"}

    def places(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(wanted, self.first)

    def log_ends(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, LogPoint]:
        return dict.fromkeys(wanted, LogPoint(50, 1))

    def cuts(self, points: Mapping[TopicPartition, LogPoint]) -> dict[TopicPartition, int]:
        raise AssertionError(f"the new topic never had the leader epoch of {points}")


def test_stream_that_records_losses_continues_with_all_records_of_the_new_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-2: the job's window failed at the old topic's range."""
    monkeypatch.setattr(planner, "KafkaAdmin", Brokers)
    stream = Stream()
    own: Any = type("Safe", (), {"options": {}, "group": "", "reset": "earliest"})
    made = planner.BatchPlanner(
        safe=own, strategy=Assign([TP]), settings=StreamSettings("s", "memory://c", on_vanished="record"),
        timeout_seconds=1.0, commits=DirectCommits(""), clock=ManualClock(), admin=own, loop=cast(Any, stream), kept=None,
    )  # fmt: skip
    assert made.journal_lost(stream.work())
    assert stream.state.batches[SECOND].lost == ("t/0[0, 100)",)
    assert stream.work().spans == (NEW,) and stream.window() == [(NEW, 2)]
    assert not made.journal_lost(stream.work())
    monkeypatch.setattr(Brokers, "first", 10)
    assert made.journal_lost(stream.work())
    assert stream.state.batches[SECOND].lost == ("t/0[0, 10) life 2", "t/0[0, 100)")
    assert [(span.from_offset, number) for span, number in stream.window()] == [(10, 2)]


def test_commands_show_and_accept_ranges_with_their_incarnation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = tmp_path.as_uri()
    with lead(open_storage(url), "s", 4, SystemClock(), lambda _: None) as led:
        for request in REQUESTS:
            led.loop.ask(cast(Any, request))
        first, second = sorted(led.state.batches)
        led.loop.ask(Complete(first, 5, 1))
    assert main(["direct", "batches", url, "s", "--json"]) == 0
    shown = {batch["batch_id"]: batch["ranges"] for batch in json.loads(capsys.readouterr().out)}
    assert shown == {first: ["t/0[0, 100)"], second: ["t/0[0, 50) life 2"]}

    monkeypatch.setattr(Checkpoint, "_held", lambda *_: {TP: Held("b", 20, 50, 1)})
    command = ["direct", "accept-loss", url, "s", "--broker", "b:1"]
    assert main([*command, "--json"]) == 1
    labels = [loss["label"] for loss in json.loads(capsys.readouterr().out)]
    assert labels == ["t/0[0, 100)", "t/0[0, 20) life 2"]
    assert main([*command, "t/0[0,20)", "--apply"]) == 2
    assert "t/0[0, 20) is not a loss of the stream" in capsys.readouterr().err
    assert main([*command, "t/0[0,20)  life 2", "--apply"]) == 0
    assert Checkpoint(url, "s").state().batches[second].lost == ("t/0[0, 20) life 2",)
    assert [loss.label for loss in Checkpoint(url, "s", {"bootstrap.servers": "b:1"}).losses()] == ["t/0[0, 100)"]
