"""A real ``forebay up`` whose job fails, or ends the driver's process: its log, and the output of ``forebay status``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from forebay.messages import StatusAnswer
from tests.support.processes.up import log_of, running, status, until

ATTEMPTS = 8
#: lines about one error, whatever the number of attempts
LINES_MAX = 24


@pytest.fixture(autouse=True)
def settings(project: Any, url: str) -> None:
    project.replace("[driver]", '[driver]\njob_retry_delay = "10ms"\nbatch_interval = "100ms"')


def give_job(project: Any, *lines: str) -> None:
    (project.folder / "jobs.py").write_text("\n".join(["import ctypes, os", "def process(batch):", *lines, ""]))


def produce(project: Any) -> None:
    broker = project.config.read_text().split('"bootstrap.servers" = "')[1].split('"')[0]
    producer = Producer({"bootstrap.servers": broker})
    producer.produce("t", b"record", partition=0)
    assert producer.flush(30) == 0


def until_status(url: str, holds: Callable[[StatusAnswer], object]) -> StatusAnswer:
    def found() -> StatusAnswer | None:
        answer = status(url)
        return answer if answer is not None and holds(answer) else None

    return until(found)


def is_failed_after(attempts: int) -> Callable[[StatusAnswer], bool]:
    return lambda answer: (
        answer.state == "failed" and [(b.state, b.attempts >= attempts) for b in answer.batches] == [("failed", True)]
    )


def test_job_that_raises_is_reported_once_and_the_driver_stays_up(project: Any, url: str) -> None:
    project.replace("[driver]", f"[driver]\njob_max_failures = {ATTEMPTS}")
    give_job(project, "    row = {}", '    return row["carrier"]')
    with running(project, "up"):
        epoch = until_status(url, lambda answer: answer.state == "running").driver_epoch
        produce(project)
        answer = until_status(url, is_failed_after(ATTEMPTS))
        assert answer.driver_epoch == epoch
        shown = project.forebay("status")
        assert shown.returncode == 1
        place = f"{project.folder}/jobs.py:4 in process"
        assert f"the job fails, batch {answer.batches[0].batch_id}: KeyError: 'carrier' at {place}" in shown.stderr
        assert project.forebay("batch", "retry").returncode == 0
        assert until_status(url, is_failed_after(ATTEMPTS + 1)).driver_epoch == epoch
    log = log_of(project, "up")
    assert log.count("Traceback") == 1, log
    block = log[log.index("Traceback") :].split("KeyError: 'carrier'")[0].count("\n")
    about = sum("KeyError" in line or "carrier" in line for line in log.splitlines())
    assert about + block <= LINES_MAX, log
    assert "started again" not in log, log


ENDS = {
    "exit": ("    os._exit(7)", "driver failed (exit code 7) after"),
    "crash": ("    ctypes.string_at(0)", "driver was killed by SIGSEGV after"),
}


@pytest.mark.parametrize("how", ENDS)
def test_job_that_ends_the_driver_process_is_delayed_by_later_drivers(project: Any, url: str, how: str) -> None:
    line, reason = ENDS[how]
    project.replace("[driver]", "[driver]\njob_max_failures = 2")
    give_job(project, line)
    with running(project, "up"):
        until_status(url, lambda answer: answer.state == "running")
        produce(project)
        answer = until_status(url, is_failed_after(2))
        batch_id = answer.batches[0].batch_id
        # the attempt of the driver that made the batch, and those of the two drivers after it
        assert log_of(project, "up").count(reason) == 3
        shown = project.forebay("status")
        assert shown.returncode == 1
        assert f"the job fails, batch {batch_id}: the driver's process ended during attempt 2" in shown.stderr
        # 3: the attempt can end the driver's process before the answer has left it
        assert project.forebay("batch", "retry").returncode in (0, 3)
        again = until_status(url, is_failed_after(3))
        assert again.driver_epoch > answer.driver_epoch
        log = log_of(project, "up")
        assert log.count(reason) == 4
        assert f"batch {batch_id}, output jobs:process: the driver's process ended during attempt 3" in log
        assert (f'File "{project.folder}/jobs.py", line 3 in process' in log) is (how == "crash")
        assert "Traceback" not in log
        # a job that was corrected needs a driver that loads it, and no more waiting than an operator wants
        give_job(project, "    pass")
        assert project.forebay("stop").returncode == 0
    with running(project, "up"):
        until_status(url, is_failed_after(3))
        assert project.forebay("batch", "retry").returncode == 0
        until_status(url, lambda answer: (answer.state, answer.batches_completed) == ("running", 1))
