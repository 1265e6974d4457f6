"""Statistics of batches: what is measured, what the journal keeps of it, and what observers and listeners get."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from driver.background.batch_history import BatchHistory, fill_from_state
from driver.batches.batch_log import BatchLog
from driver.batches.job.batch import Batch
from driver.batches.job.description import OFFSETS_LENGTH_MAX, job_description, offsets_text
from driver.batches.job.engine import NamedJob
from driver.batches.job.work import BatchWork, Written
from driver.batches.runner import AttemptRules, BatchHooks
from driver.batches.scheduler import BatchOptions, Scheduler
from driver.decisions.replay import RewindTo
from driver.journal import events as ev
from driver.journal import history
from driver.journal.history import HistoryWriter
from driver.journal.log.opening import lead
from driver.journal.statistics import BatchStatistics
from driver.journal.transitions import apply
from driver.listeners.events import BatchCompleted, BatchStarted, Happened
from driver.tracker.requests import Allocate, BeginReplay, SkipBatch
from forebay.kafka.consume.spans import OffsetRange
from forebay.messages import BatchEntry, BatchRange
from forebay.model.identifiers import numbered
from forebay.model.values import BlockRange
from forebay.process.clock import ManualClock
from tests.support.state.tracked import STREAM, TOPIC, Tracked, offsets
from wal.reading import TierCounts
from wal.storage import MemoryStorage


def sized(start: int, until: int, token: int, newest_ms: int, partition: int = 0) -> BlockRange:
    """A range of records of 10 bytes each. Kafka got the newest one at ``newest_ms``."""
    made = offsets(start, until, token, partition)
    return msgspec.structs.replace(made, bytes=10 * made.records, max_timestamp_ms=newest_ms)


class Running:
    """A scheduler of a stream with two partitions, whose jobs take the seconds that ``job`` returns."""

    def __init__(self, job: Callable[[Batch], float], outputs: Sequence[str] = ("job",)) -> None:
        self.clock = ManualClock()
        self.t = Tracked(now_ms=self.clock.wall_ms())
        self.epoch = self.t.register()
        self.tokens = [self.t.claim(self.epoch, partition).view.token for partition in (0, 1)]
        self.notified: list[Happened] = []
        self.is_listening = True
        self.seen: list[tuple[str, int | None, int | None]] = []
        running = self

        class Loop:
            ask = staticmethod(self.t.say)

        class Engine:
            def await_ready(self, work: BatchWork) -> bool:
                return False

            def run(self, work: BatchWork, named: Any) -> TierCounts:
                (shown,) = running.scheduler.running.values()
                running.seen.append((shown.state, shown.scheduling_delay_ms, shown.bytes))
                running.clock.advance(job(Batch(work, cast(Any, None))))
                return TierCounts({"local": 2, "wal": 1}, {"agent: unreachable": 1})

        def stop_when_done(*_: Any) -> None:
            if not self.t.state.unfinished() and not self.t.state.replaying:
                self.scheduler.stop()

        self.scheduler = Scheduler(
            cast(Any, Loop()),
            cast(Any, Engine()),
            [NamedJob(name, cast(Any, None)) for name in outputs],
            clock=self.clock,
            options=BatchOptions(batch_interval_seconds=1.0, tasks=lambda: 1, headers=False),
            rules=AttemptRules(max_failures=4, retry_delay_seconds=0.0, unreadable_retry_seconds=30.0),
            hooks=BatchHooks(
                completed=stop_when_done, tell=self.notified.extend, is_listening=lambda: self.is_listening
            ),
        )

    def take_in(self, *ranges: tuple[int, int, int, int]) -> None:
        """Take in one block of ranges (partition, from, until, age of the newest record in seconds)."""
        made = [
            sized(start, until, self.tokens[partition], self.clock.wall_ms() - age * 1000, partition)
            for partition, start, until, age in ranges
        ]
        (result,) = self.t.report(self.epoch, self.t.block(self.epoch, made))
        assert result.accepted

    def allocate(self) -> int:
        self.t.now_ms = self.clock.wall_ms()
        return int(self.t.say(Allocate(self.clock.wall_ms(), 1)))

    def run(self) -> BatchEntry:
        """Run what is allocated; return the batch that was completed last."""
        self.scheduler.run()
        entry = self.scheduler.batches.newest
        assert entry is not None
        return entry

    def completed(self) -> BatchCompleted:
        (event,) = [event for event in self.notified if isinstance(event, BatchCompleted)]
        return event


def test_delays_are_those_of_spark_and_a_failed_attempt_counts_only_in_the_total() -> None:
    """Due at 0 s, begun at 2 s. Output a takes 3 s; b fails after 5 s, is tried again and takes 4 s."""
    runs: list[float] = []

    def job(batch: Batch) -> float:
        runs.append([3.0, 5.0, 4.0][len(runs)])
        if len(runs) == 2:
            running.clock.advance(5.0)
            raise RuntimeError("once")
        batch.note(Written("table", 5))
        return runs[-1]

    running = Running(job, ("a", "b"))
    running.take_in((0, 0, 5, 7), (1, 0, 2, 1))
    running.take_in((0, 5, 9, 6))
    batch_id = running.allocate()
    running.clock.advance(2.0)
    entry = running.run()
    assert entry.state == "completed" and entry.batch_id == batch_id
    assert (entry.scheduling_delay_ms, entry.processing_ms, entry.total_delay_ms) == (2_000, 7_000, 14_000)
    assert entry.end_to_end_ms == 21_000, "from the oldest of the ranges' newest records: 7 s before the batch"
    assert (entry.blocks, entry.records, entry.bytes) == (2, 11, 110)
    assert entry.tiers == {"local": 4, "wal": 2, "agent: unreachable": 2}, "of both outputs, not of the failed attempt"
    assert (entry.attempts, entry.rerun) == (2, True)
    assert entry.detail.startswith("RuntimeError: once") and "test_statistics.py" in entry.place
    assert entry.written == ("table: 5 rows", "table: 5 rows")
    assert running.seen == [("running", 2_000, 110)] * 3


def test_listeners_get_the_statistics_and_the_offsets_of_each_partition() -> None:
    running = Running(lambda _: 1.0)
    running.take_in((1, 0, 2, 0), (0, 0, 5, 3))
    running.take_in((0, 5, 9, 2))
    batch_id = running.allocate()
    running.clock.advance(0.5)
    entry = running.run()
    started, completed = running.notified[0], running.completed()
    ranges = (
        BatchRange(topic=TOPIC, partition=0, incarnation=1, from_offset=0, until_offset=9, records=9, bytes=90),
        BatchRange(topic=TOPIC, partition=1, incarnation=1, from_offset=0, until_offset=2, records=2, bytes=20),
    )
    assert isinstance(started, BatchStarted)
    assert (started.scheduling_delay_ms, started.bytes, started.ranges) == (500, 110, ranges)
    assert started.batch_time_ms == completed.batch_time_ms == entry.time_ms
    assert (completed.batch_id, completed.number, completed.records, completed.bytes) == (batch_id, 1, 11, 110)
    assert (completed.scheduling_delay_ms, completed.processing_ms, completed.total_delay_ms) == (500, 1_000, 1_500)
    assert (completed.end_to_end_ms, completed.ranges, completed.tiers) == (4_500, ranges, entry.tiers)
    posted = msgspec.json.decode(msgspec.json.encode(completed))
    assert posted["kind"] == "batch-completed"
    assert posted["ranges"][0] == {
        "topic": TOPIC, "partition": 0, "life": 1, "from": 0, "until": 9, "records": 9, "bytes": 90
    }  # fmt: skip


def test_a_listener_gets_a_completion_only_after_the_journal_has_it() -> None:
    running = Running(lambda _: 0.0)
    running.take_in((0, 0, 5, 0))
    batch_id = running.allocate()
    unfinished_counts: list[int] = []

    def tell(events: Sequence[Happened]) -> None:
        if any(isinstance(event, BatchCompleted) for event in events):
            unfinished_counts.append(len(running.t.state.unfinished()))

    running.scheduler._runner._hooks = replace(running.scheduler._runner._hooks, tell=tell)
    running.run()
    assert unfinished_counts == [0]
    assert running.t.state.batches[batch_id].statistics is not None


def test_a_clock_that_is_set_back_gives_no_negative_delay() -> None:
    running = Running(lambda _: 1.0)
    running.take_in((0, 0, 5, -3600))
    running.allocate()
    running.clock.advance(-10.0)
    entry = running.run()
    assert (entry.scheduling_delay_ms, entry.total_delay_ms, entry.end_to_end_ms) == (0, 0, 0)


def test_records_without_a_timestamp_have_no_end_to_end_delay() -> None:
    running = Running(lambda _: 1.0)
    (result,) = running.t.report(running.epoch, running.t.block(running.epoch, [offsets(0, 5, running.tokens[0])]))
    assert result.accepted
    running.allocate()
    entry = running.run()
    assert entry.end_to_end_ms is None
    assert entry.total_delay_ms == 1_000


def test_a_replayed_batch_is_due_when_its_replay_begins_and_its_statistics_survive_a_restart() -> None:
    running = Running(lambda _: 1.0)
    running.take_in((0, 0, 5, 3))
    batch_id = running.allocate()
    first = running.run()
    running.clock.advance(3_600.0)
    running.t.now_ms = running.clock.wall_ms()
    running.t.say(BeginReplay(RewindTo(batch_id), (), 0, "ann"))
    running.clock.advance(2.0)
    running.scheduler._progress.stopping.clear()
    again = running.run()
    assert (again.replay, again.rerun, again.batch_id) == (1, True, batch_id)
    assert (again.scheduling_delay_ms, again.processing_ms, again.total_delay_ms) == (2_000, 1_000, 3_000)
    assert again.end_to_end_ms is None, "its records were taken in long ago"
    after = BatchLog(10)
    fill_from_state(after, running.t.state, 10)
    assert after.entries() == (again, first)


def statistics(number: int, **more: Any) -> BatchStatistics:
    values: dict[str, Any] = {
        "records": 5, "bytes": 50, "scheduling_delay_ms": number, "processing_ms": 10, "total_delay_ms": number + 10,
        "end_to_end_ms": 30, "tiers": {"local": 1}, "rerun": False,
    }  # fmt: skip
    return BatchStatistics(**{**values, **more})


def completed(t: Tracked, count: int, known: bool = True) -> list[int]:
    """Take in, allocate and complete ``count`` batches of 5 records; return their ids."""
    epoch = t.register()
    token = t.claim(epoch).view.token
    ids = []
    for _ in range(count):
        t.now_ms += 1_000
        t.take_in(epoch, token, t.state.partitions[f"{TOPIC}/0"].position + 5)
        batch = t.batch()
        of = statistics(batch & 0xFF) if known else None
        apply(t.state, ev.BatchCompleted(batch, t.now_ms + 5, 1, of))
        ids.append(batch)
    return ids


def test_a_restarted_driver_lists_the_batches_of_the_state_and_of_the_history_newest_first() -> None:
    """INV-7: only from what is durable; bounded by the number that is kept."""
    storage = MemoryStorage("memory://batch-history")
    t = Tracked()
    ids = completed(t, 7)
    epoch = numbered(1, 1)
    for some in (ids[:2], ids[2:4]):
        writer = HistoryWriter(
            storage, STREAM, epoch, segment_bytes=1_000_000, now=lambda: 0.0, new_uid=iter(range(100, 200)).__next__
        )
        leaving = tuple(one.finished() for one in history.leaving(t.state) if one.batch.batch_id in some)
        writer.append(leaving)
        writer.close()
        t.archive(*some)
        epoch += 1

    def listed(limit: int, before: int = epoch) -> list[BatchEntry]:
        log = BatchLog(limit)
        fill_from_state(log, t.state, limit)
        filling = BatchHistory(log, storage, STREAM, epoch=before, rebuilds=())
        filling.start()
        filling.join()
        return list(log.entries())

    entries = listed(100)
    assert [entry.batch_id for entry in entries] == ids[::-1]
    assert [entry.scheduling_delay_ms for entry in entries] == [7, 6, 5, 4, 3, 2, 1]
    assert all(entry.records == 5 and entry.bytes == 50 and entry.blocks == 1 for entry in entries)
    assert [entry.batch_id for entry in listed(5)] == ids[:1:-1]
    assert [entry.batch_id for entry in listed(2)] == ids[:4:-1]
    assert [entry.batch_id for entry in listed(100, before=epoch - 1)] == [*ids[:3:-1], *ids[1::-1]], (
        "not its own segments"
    )


def test_a_damaged_history_is_logged_and_the_rest_is_listed(caplog: pytest.LogCaptureFixture) -> None:
    """INV-5."""
    storage = MemoryStorage("memory://damaged-batch-history")
    t = Tracked()
    ids = completed(t, 2)
    writer = HistoryWriter(storage, STREAM, numbered(1, 1), segment_bytes=1_000_000, now=lambda: 0.0, new_uid=lambda: 7)
    writer.append(history.finished(t.state, limit=1))
    writer.close()
    t.archive(ids[0])
    (path,) = storage.list(f"{STREAM}/history")
    data = bytearray(storage.read(path))
    data[-1] ^= 1
    data += bytes(64) + data
    storage.delete(path)
    storage.put_new(path, bytes(data))
    log = BatchLog(10)
    fill_from_state(log, t.state, 10)
    reading = BatchHistory(log, storage, STREAM, epoch=numbered(1, 2), rebuilds=())
    reading.start()
    reading.join()
    assert [entry.batch_id for entry in log.entries()] == ids[1:]
    assert "older batches are not listed" in caplog.text


def test_batches_of_an_older_release_have_unknown_statistics() -> None:
    t = Tracked()
    completed(t, 1, known=False)
    log = BatchLog(10)
    fill_from_state(log, t.state, 10)
    (entry,) = log.entries()
    assert (entry.state, entry.records, entry.attempts) == ("completed", 5, 1)
    assert (entry.bytes, entry.scheduling_delay_ms, entry.processing_ms, entry.total_delay_ms, entry.end_to_end_ms) == (
        None, None, None, None, None
    )  # fmt: skip


def test_a_skipped_batch_is_listed_with_who_skipped_it_also_by_the_next_driver() -> None:
    t = Tracked()
    (batch_id,) = completed(t, 1)
    t.say(BeginReplay(RewindTo(batch_id), (), 0, "ann"))
    t.say(SkipBatch(batch_id, t.now_ms + 9, 4, "anna@h1: broken", replay=1))
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 12)
    t.say(SkipBatch(t.batch(), t.now_ms + 20, 2, "bob@h2", replay=0))
    log = BatchLog(10)
    fill_from_state(log, t.state, 10)
    assert [(b.number, b.replay, b.attempts, b.records, b.detail) for b in log.entries()] == [
        (2, 0, 2, 7, "skipped by bob@h2"), (1, 1, 4, 5, "skipped by anna@h1: broken"), (1, 0, 1, 5, ""),
    ]  # fmt: skip


def test_the_journal_keeps_statistics_over_a_restart_and_over_a_snapshot() -> None:
    """INV-7."""
    storage = MemoryStorage("memory://statistics")
    opened, state = lead(storage, STREAM, "one", 1_000, lambda: 1.0, lambda: 1)
    t = Tracked()
    (batch_id,) = completed(t, 1)
    event = next(event for event in t.events if isinstance(event, ev.BatchAllocated))
    for before in t.events:
        apply(state, before)
    done = ev.BatchCompleted(batch_id, 9, 2, statistics(1))
    apply(state, done)
    opened.append([*t.events, done])
    opened.sync()
    assert event.batch_id == batch_id
    uids = itertools.count(2)
    for number in (2, 3):
        _, after = lead(storage, STREAM, f"driver {number}", 2_000, lambda: 1.0, lambda: next(uids))
        assert after.batches[batch_id].statistics == statistics(1)


# ---- the log ---------------------------------------------------------------------------------------------------------


def entry(number: int, replay: int = 0) -> BatchEntry:
    return BatchEntry(
        batch_id=number, number=number, time_ms=number, state="completed", blocks=1, records=1, replay=replay,
        completed_ms=number,
    )  # fmt: skip


def test_the_log_is_bounded_and_never_has_a_run_twice() -> None:
    """INV-6."""
    log = BatchLog(3)
    assert log.newest is None
    log.add(entry(5))
    assert log.add_older([entry(5), entry(4)])
    assert not log.add_older([entry(3), entry(2)]), "it is full"
    assert [one.batch_id for one in log.entries()] == [5, 4, 3]
    log.add(entry(6))
    log.add(entry(5, replay=1))
    assert [(one.batch_id, one.replay) for one in log.entries()] == [(5, 1), (6, 0), (5, 0)]
    assert [one.batch_id for one in log.last(2)] == [6, 5]
    assert log.newest == entry(5, replay=1)
    assert not log.add_older([entry(1)])


# ---- as text --------------------------------------------------------------------------------------------------------


def test_the_description_for_spark_names_all_partitions_within_its_length() -> None:
    """Spark sends it along with each task: the partitions beyond the limit are counted."""
    ranges = [offsets(start, start + 5, 1, partition) for partition in range(9, -1, -1) for start in (0, 5)]
    assert offsets_text(ranges) == ", ".join(f"t/{partition}[0, 10)" for partition in range(10))
    assert offsets_text(ranges, 30) == "t/0[0, 10), t/1[0, 10), t/2[0, 10) and 7 more partitions"
    assert offsets_text(ranges[-8:], 30) == "t/0[0, 10), t/1[0, 10), t/2[0, 10) and 1 more partition"
    assert offsets_text([]) == ""
    many = offsets_text([offsets(0, 5, 1, partition) for partition in range(1_000)])
    assert len(many) < OFFSETS_LENGTH_MAX + 100 and many.endswith(" more partitions")


def test_names_in_the_description_for_spark_are_text_and_no_markup() -> None:
    """A custom source may give its topics any name."""
    span = OffsetRange("<a href='/jobs/job/kill'>x</a>", 0, 1, 3)
    work = BatchWork(1, 7, 0, False, (), stream="s", replay=2, spans=(span,), incarnations=(1,))
    assert job_description(work) == (
        "s: batch 7 (id 1), replay 2, 2 records: &lt;a href='/jobs/job/kill'&gt;x&lt;/a&gt;/0[1, 3)"
    )


def test_job_does_not_wait_for_ranges_that_no_listener_gets() -> None:
    """Joining 500,000 ranges takes 0.4 s. The completion names them, after the job."""
    running = Running(lambda batch: 1.0)
    running.is_listening = False
    running.take_in((0, 0, 10, 1))
    running.allocate()
    running.run()
    (started,) = [event for event in running.notified if isinstance(event, BatchStarted)]
    assert started.ranges == ()
    assert [(r.from_offset, r.until_offset) for r in running.completed().ranges] == [(0, 10)]
