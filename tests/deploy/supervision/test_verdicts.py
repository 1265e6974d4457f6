"""What ``up`` does when a child has ended: the whole table."""

from __future__ import annotations

import pytest

from deploy.supervision.verdicts import VERDICTS, ExitVerdict, How, described, how_it_ended
from forebay.process.restarts import RestartPolicy


@pytest.mark.parametrize(
    ("return_code", "how", "verdict"),
    [
        (0, How.FINISHED, ExitVerdict.STAY_DOWN),
        (1, How.FAILED, ExitVerdict.RESTART),
        (2, How.WRONG_USE, ExitVerdict.STOP_ALL),
        (3, How.FAILED, ExitVerdict.RESTART),
        (4, How.FENCED, ExitVerdict.STAY_DOWN),
        (5, How.REPLACED, ExitVerdict.RESTART),
        (6, How.TO_RESTART, ExitVerdict.RESTART),
        (130, How.FAILED, ExitVerdict.RESTART),
        (-9, How.KILLED, ExitVerdict.RESTART),
        (-15, How.KILLED, ExitVerdict.RESTART),
        (-11, How.KILLED, ExitVerdict.RESTART),
    ],
)
def test_each_exit_code_has_its_verdict(return_code: int, how: How, verdict: ExitVerdict) -> None:
    """INV-4: what was fenced is never started again."""
    assert how_it_ended(return_code) is how
    assert VERDICTS[how][0] is verdict


def test_first_child_that_finds_the_stream_running_stops_all() -> None:
    """INV-4: nothing is started that would fence what runs."""
    assert how_it_ended(5, alone=True) is How.NOT_NEEDED
    assert VERDICTS[How.NOT_NEEDED][0] is ExitVerdict.STOP_ALL


def test_the_table_has_a_row_with_a_reason_for_every_way_to_end() -> None:
    assert set(VERDICTS) == set(How)
    assert all(reason for _, reason in VERDICTS.values())


@pytest.mark.parametrize(
    ("failures", "delay"), [(1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (8, 30.0), (10_000, 30.0)]
)
def test_the_delay_doubles_up_to_its_bound(failures: int, delay: float) -> None:
    """INV-6: neither the delay nor the rate of restarts is without limit."""
    assert RestartPolicy().delay_seconds(failures) == delay


@pytest.mark.parametrize(
    ("failures", "ran_seconds", "after"), [(0, 0.1, 1), (1, 0.1, 2), (5, 59.9, 6), (5, 60.0, 1), (0, 600.0, 1)]
)
def test_a_child_that_ran_long_enough_begins_with_the_first_delay_again(
    failures: int, ran_seconds: float, after: int
) -> None:
    assert RestartPolicy().failures_after(failures, ran_seconds) == after


@pytest.mark.parametrize(
    ("return_code", "message"),
    [
        (0, "finished"),
        (1, "failed (exit code 1)"),
        (4, "was fenced (exit code 4)"),
        (-9, "was killed by SIGKILL"),
        (-200, "was killed by signal 200"),
    ],
)
def test_end_of_a_child_is_described(return_code: int, message: str) -> None:
    assert described(return_code) == message
