"""The list of batches with its filters and pages, and one batch with its offsets and blocks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from driver.background.batch_history import fill_from_state
from driver.batches.batch_log import BatchLog
from driver.batches.entries import RunningBatch
from driver.decisions.replay import RewindTo
from driver.http.batches import PAGE_MAX, BatchAnswers, BatchQuery, archived_content, list_batches
from driver.journal import history
from driver.journal.history import HistoryWriter
from driver.tracker.requests import BeginReplay
from forebay import messages as m
from forebay.model.errors import RefusedError, UsageError
from forebay.model.identifiers import numbered
from tests.support.state.tracked import STREAM, TOPIC, Tracked
from wal.storage import MemoryStorage

NAMES = itertools.count(1)


def entry(number: int, state: str = "completed", **more: Any) -> m.BatchEntry:
    values: dict[str, Any] = {"time_ms": number * 1_000, "blocks": 1, "records": 5, "attempts": 1, **more}
    return m.BatchEntry(batch_id=numbered(1, number), number=number, state=state, **values)


def numbers(answer: m.BatchesAnswer) -> list[tuple[int, int]]:
    return [(batch.number, batch.replay) for batch in answer.batches]


def test_pages_follow_each_other_without_gap_or_repeat_while_batches_begin_and_end() -> None:
    batches = [*(entry(number) for number in range(1, 8)), entry(3, replay=1), entry(8, "running")]
    first = list_batches(batches, BatchQuery(limit=4))
    assert (first.total, numbers(first)) == (9, [(8, 0), (7, 0), (6, 0), (5, 0)])
    batches = [*batches[1:-1], entry(8), entry(9, "queued"), entry(10, "queued")]
    second = list_batches(batches, BatchQuery(limit=4, after=first.next))
    assert numbers(second) == [(4, 0), (3, 1), (3, 0), (2, 0)]
    assert second.next == "", "the oldest one left the list meanwhile"
    last = list_batches(batches, BatchQuery(limit=4, after=f"{numbered(1, 2)}.0"))
    assert (numbers(last), last.next, last.total) == ([], "", 10)


def test_filters_select_by_state_failed_attempts_time_and_text() -> None:
    batches = [
        entry(1), entry(2, attempts=3, detail="ValueError: no such carrier"), entry(3, written=("delays: 5 rows",)),
        entry(4, "failing", detail="KeyError: 'x'", place="jobs.py:7 in process"), entry(5, "queued", attempts=0),
        entry(6, "unreadable"),
    ]  # fmt: skip

    def found(**query: Any) -> list[int]:
        return [number for number, _ in numbers(list_batches(batches, BatchQuery(**query)))]

    assert found(state="queued") == [5]
    assert found(failed=True) == [6, 4, 2]
    assert found(since_ms=4_000) == [6, 5, 4]
    assert found(text="carrier") == [2]
    assert found(text="jobs.py") == [4]
    assert found(text="delays") == [3]
    assert found(text=str(numbered(1, 3))) == [3]
    assert found(failed=True, text="carrier", state="queued") == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"limit": 0}, "1 to 1000"),
        ({"limit": PAGE_MAX + 1}, "1 to 1000"),
        ({"state": "done"}, "queued, running"),
        ({"after": "x"}, "next"),
        ({"after": "1." + "9" * 5_000}, "next"),
        ({"after": "²."}, "next"),
    ],
)
def test_a_wrong_query_is_refused_with_the_allowed_values(query: dict[str, Any], message: str) -> None:
    """INV-6."""
    with pytest.raises(UsageError, match=message):
        BatchQuery(**query)


class Asked:
    """Answers about the batches of a tracked stream. The journal's store holds the history."""

    def __init__(self, blocks: int = 1) -> None:
        self.t = Tracked()
        self.storage = MemoryStorage(f"memory://batch-answers-{next(NAMES)}")
        self.log = BatchLog(100)
        self.segments = 0
        self.running: dict[int, RunningBatch] = {}
        self.answers = BatchAnswers(
            ask=self.t.ask, running=self.running, completed=self.log, storage=self.storage, stream=STREAM
        )
        epoch = self.t.register()
        self.token = self.t.claim(epoch).view.token
        self.epoch = epoch

    def batch(self, blocks: int = 1) -> int:
        self.t.now_ms += 1_000
        for _ in range(blocks):
            self.t.take_in(self.epoch, self.token, self.t.state.partitions[f"{TOPIC}/0"].position + 5)
        return self.t.batch()

    def complete(self, batch_id: int) -> None:
        self.t.complete(batch_id)
        fill_from_state(self.log, self.t.state, 100)

    def archive(self) -> None:
        finished = history.finished(self.t.state)
        self.segments += 1
        writer = HistoryWriter(
            self.storage,
            STREAM,
            numbered(1, self.segments),
            segment_bytes=1_000_000,
            now=lambda: 0.0,
            new_uid=lambda: 7,
        )
        writer.append(finished)
        writer.close()
        self.t.archive(*(batch.batch_id for batch in finished))


def test_unfinished_batches_are_listed_with_what_their_thread_shows() -> None:
    asked = Asked()
    first, second = asked.batch(2), asked.batch()
    asked.running[first] = RunningBatch(
        state="failing", attempts=2, detail="ValueError: x", place="jobs.py:3", bytes=7, scheduling_delay_ms=12
    )
    queued, failing = asked.answers.list(BatchQuery()).batches
    assert (queued.batch_id, queued.state, queued.blocks, queued.records, queued.attempts) == (
        second,
        "queued",
        1,
        5,
        0,
    )
    assert (failing.batch_id, failing.state, failing.blocks, failing.records) == (first, "failing", 2, 10)
    assert (failing.detail, failing.place, failing.scheduling_delay_ms) == ("ValueError: x", "jobs.py:3", 12)


def test_a_batch_never_vanishes_between_its_completion_and_its_entry_among_the_completed() -> None:
    asked = Asked()
    batch = asked.batch()
    asked.running[batch] = RunningBatch(state="running", attempts=1)
    asked.t.complete(batch)
    assert [b.state for b in asked.answers.all()] == ["running"]
    fill_from_state(asked.log, asked.t.state, 100)
    assert [b.state for b in asked.answers.all()] == ["completed"]
    asked.running.clear()
    assert [b.state for b in asked.answers.all()] == ["completed"]


def test_one_batch_is_found_by_id_and_by_number_wherever_the_journal_keeps_it() -> None:
    """The same answer from the state and, later, from the history."""
    asked = Asked()
    batch_id = asked.batch(3)
    waiting = asked.answers.detail(1)
    block_ids = tuple(asked.t.state.batches[batch_id].block_ids)
    assert waiting.batch.state == "queued"
    assert waiting.ranges == (
        m.BatchRange(topic=TOPIC, partition=0, incarnation=1, from_offset=0, until_offset=15, records=15, bytes=0),
    )
    assert (sum(waiting.tasks), waiting.block_ids) == (3, block_ids)
    asked.complete(batch_id)
    kept = asked.answers.detail(batch_id)
    assert kept.batch.state == "completed"
    asked.archive()
    assert batch_id not in asked.t.state.batches
    assert asked.answers.detail(1) == kept
    assert (kept.ranges, kept.tasks, kept.block_ids) == (waiting.ranges, waiting.tasks, waiting.block_ids)


def test_an_unknown_batch_is_refused_without_a_read_of_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: a caller can't make the driver read all of the history."""
    asked = Asked()
    asked.complete(asked.batch())
    asked.archive()
    monkeypatch.setattr(asked.storage, "read", lambda *_: pytest.fail("read"))
    with pytest.raises(RefusedError, match="batch_history") as refused:
        asked.answers.detail(99)
    assert refused.value.code == "not-found"


def test_the_history_is_read_back_only_as_far_as_the_batch_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: each segment is a request to the store."""
    asked = Asked()
    for _ in range(3):
        asked.complete(asked.batch())
        asked.archive()
    read: set[str] = set()
    real = asked.storage.read
    monkeypatch.setattr(asked.storage, "read", lambda path, *of: (read.add(path), real(path, *of))[1])
    found = archived_content(asked.storage, STREAM, numbered(1, 2))
    assert found is not None and len(found.ranges) == 1 and len(read) == 2
    read.clear()
    assert archived_content(asked.storage, STREAM, numbered(1, 9)) is None
    assert len(read) == 1


def test_the_newest_run_of_a_replayed_batch_is_shown() -> None:
    asked = Asked()
    batch_id = asked.batch()
    asked.complete(batch_id)
    asked.t.say(BeginReplay(RewindTo(batch_id), (), 0, "ann"))
    assert [(b.replay, b.state) for b in asked.answers.list(BatchQuery()).batches] == [(1, "queued"), (0, "completed")]
    detail = asked.answers.detail(batch_id)
    assert (detail.batch.replay, detail.batch.records, len(detail.block_ids)) == (1, 5, 1)


def test_the_lists_of_a_large_batch_are_cut_off() -> None:
    """INV-6."""
    asked = Asked()
    batch_id = asked.batch(PAGE_MAX + 1)
    detail = asked.answers.detail(batch_id)
    assert (detail.batch.blocks, len(detail.block_ids)) == (PAGE_MAX + 1, PAGE_MAX)
