"""When the next batch is expected."""

from __future__ import annotations

from driver.decisions.pace import ExpectedBatch, Pace
from driver.journal.events import JobFailed
from driver.tracker.requests import AllocateNext, Complete, FailJob
from forebay import messages as m
from tests.support.state.tracked import Tracked, offsets


def test_with_an_interval_the_next_batch_is_expected_at_its_end() -> None:
    pace = Pace(1_000)
    assert pace.next_batch(5_300) == ExpectedBatch(700, 1_000)
    assert pace.next_batch(6_000) == ExpectedBatch(1_000, 1_000)


def test_a_job_slower_than_the_interval_is_awaited() -> None:
    pace = Pace(1_000)
    pace.begin(1, 5_000)
    pace.end(1, 8_000)
    pace.begin(2, 8_000)
    assert pace.next_batch(8_500) == ExpectedBatch(2_500, 3_000)
    assert pace.next_batch(10_900) == ExpectedBatch(435, 3_000), "a part of what it took so far"


def test_without_an_interval_what_was_just_accepted_is_the_next_batch_and_a_later_block_the_one_after() -> None:
    pace = Pace(0)
    assert pace.next_batch(5_000) is None, "nothing is known yet"
    pace.begin(1, 5_000)
    pace.end(1, 5_200)
    assert pace.next_batch(5_300) == ExpectedBatch(200, 200)
    pace.begin(2, 5_300)
    assert pace.next_batch(5_350) == ExpectedBatch(67, 200), "it may end early"
    assert pace.next_batch(5_450) == ExpectedBatch(50, 200)
    assert pace.next_batch(5_600) == ExpectedBatch(45, 200), "overtime"
    pace.end(7, 6_400)
    assert pace.next_batch(5_600) == ExpectedBatch(45, 200), "an unknown batch changes nothing"


def test_the_next_batch_is_expected_to_take_as_long_as_the_faster_ones_of_late() -> None:
    """A block that is sealed after the batch has ended waits for a whole batch."""
    pace = Pace(0)
    for batch, took in enumerate((90, 300, 280, 250, 310, 260, 270, 500, 240)):
        pace.begin(batch, 0)
        pace.end(batch, took)
    assert pace.next_batch(0) == ExpectedBatch(250, 250), "the first has been forgotten"


def test_while_one_of_several_jobs_is_free_none_is_awaited() -> None:
    pace = Pace(1_000, jobs=2)
    pace.begin(1, 0)
    pace.end(1, 9_000)
    pace.begin(2, 9_000)
    assert pace.next_batch(9_100) == ExpectedBatch(900, 9_000)
    pace.begin(3, 9_050)
    assert pace.next_batch(9_100) == ExpectedBatch(8_900, 9_000)


def test_a_clock_that_was_set_back_is_no_negative_time() -> None:
    pace = Pace(0)
    pace.begin(1, 5_000)
    pace.end(1, 4_000)
    pace.begin(2, 5_000)
    assert pace.next_batch(1_000) == ExpectedBatch(0, 0)


def test_the_answer_to_a_report_says_when_the_next_batch_is_expected_unless_batches_are_paused() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.now_ms = 5_300

    def answer(start: int, until: int) -> tuple[int, int]:
        block = t.block(epoch, [offsets(start, until, token)])
        said = t.say(m.ReportRequest(receiver_id="r1", epoch=epoch, blocks=(block,)))
        assert said.results[0].accepted
        return said.next_batch_ms, said.every_ms

    assert answer(0, 5) == (700, 1_000)
    t.say(m.PauseRequest(paused=True, cause="ann"))
    assert answer(5, 6) == (-1, 0)
    t.say(m.PauseRequest(paused=False, cause="ann"))
    assert answer(6, 7) == (700, 1_000)
    made = t.say(AllocateNext(5_000, 1)).batch_id
    assert made is not None
    t.say(FailJob(JobFailed(made, "", "OSError: no disk", "", 1, 1, 5_300, time_ms=5_300)))
    assert answer(7, 8) == (-1, 0), "no batch begins while one fails"
    t.now_ms += 3_600_000
    t.say(Complete(made, t.now_ms, 2))
    assert answer(8, 9) == (700, 1_000), "an hour of attempts says nothing about the next batch"


def test_an_attempt_that_failed_says_nothing_about_the_next_batch() -> None:
    pace = Pace(0)
    pace.begin(1, 0)
    pace.end(1, 3_600_000, usual=False)
    assert pace.next_batch(3_600_000) is None
