"""The scripts of the fixed traces.

``python -m tests.simulation --record`` runs them on the right code and records the traces anew: after a change of the
simulation's steps, never to make a test pass.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.scenarios import adoption, clean_up, intake, leadership, stalls
from tests.simulation.script import Script
from tests.simulation.traces import Trace

SCENARIOS: dict[str, Callable[[], Script]] = {
    "reported-before-the-second-copy": intake.reported_before_the_second_copy,
    "read-from-a-topic-created-again": intake.read_from_a_topic_created_again,
    "clean-up-under-a-replay": clean_up.clean_up_under_a_replay,
    "completed-with-the-highest": clean_up.completed_with_the_highest,
    "clean-up-under-a-window": clean_up.clean_up_under_a_window,
    "clean-up-under-a-cursor": clean_up.clean_up_under_a_cursor,
    "rewind-by-seek-alone": intake.rewind_by_seek_alone,
    "answer-before-durable": leadership.answer_before_durable,
    "journal-order-unlike-decisions": leadership.journal_order_unlike_decisions,
    "claim-without-compare-and-set": intake.claim_without_compare_and_set,
    "put-without-an-answer-taken-for-done": intake.put_without_an_answer_taken_for_done,
    "append-after-take-over": leadership.append_after_take_over,
    "append-that-ends-after-a-take-over": stalls.append_that_ends_after_a_take_over,
    "deletion-after-take-over": clean_up.deletion_after_take_over,
    "orphan-deleted-before-its-report": clean_up.orphan_deleted_before_its_report,
    "unsynced-tail-trusted": leadership.unsynced_tail_trusted,
    "range-written-twice-under-one-token": intake.range_written_twice_under_one_token,
    "two-openers-act": leadership.two_openers_act,
    "refusal-after-take-over": leadership.refusal_after_take_over,
    "clean-up-by-the-wall-clock": clean_up.clean_up_by_the_wall_clock,
    "clean-up-on-what-no-copy-covers": clean_up.clean_up_on_what_no_copy_covers,
    "rebuild-that-trusts-the-highest-token-alone": leadership.rebuild_that_trusts_the_highest_token_alone,
    "history-forgets-what-came-while-it-waited": clean_up.history_forgets_what_came_while_it_waited,
    "reserve-that-turns-completions-away": leadership.reserve_that_turns_completions_away,
    "gap-while-an-old-writer-can-still-sync": adoption.gap_while_an_old_writer_can_still_sync,
    "life-ended-while-its-writer-can-still-sync": adoption.incarnation_ended_while_its_writer_can_still_sync,
    "whole-block-adopted": adoption.whole_block_adopted,
    "search-before-a-late-put": adoption.search_before_a_late_put,
    "adoption-that-the-reserve-ends": adoption.adoption_that_the_reserve_ends,
    "adopted-from-a-topic-created-again": adoption.adopted_from_a_topic_created_again,
}


def record(name: str, invariant: str) -> Trace:
    """Run the scenario on the right code.

    ``invariant``: the one that the planted mistake violates. Raises InvariantViolation if the right code violates one.
    """
    scenario = SCENARIOS[name]
    script = scenario()
    return Trace(
        about=" ".join((scenario.__doc__ or name).split()),
        invariant=invariant,
        options=script.options,
        steps=tuple(script.steps),
    )
