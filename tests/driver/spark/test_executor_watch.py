"""When a driver whose cluster gives it no executors any more ends, and when it goes on waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest

from driver.spark import executor_watch
from driver.spark.executor_watch import ExecutorWatch, watch_executors

#: a watch of 100 s looks each 5 s
_LOOKS = 20
SECONDS = 100.0


def watch(present: Callable[[], bool], needed: Callable[[], bool] = lambda: True) -> ExecutorWatch:
    return ExecutorWatch(present, needed=needed, limit_seconds=SECONDS, lost=lambda: None)


def lost_after(seen: Iterable[bool], needed: Iterable[bool] | None = None) -> int | None:
    """Return the number of looks at which the executors are lost; None if they never are."""
    looks = list(seen)
    there, wanted = iter(looks), iter(needed if needed is not None else [True] * len(looks))
    watched = watch(lambda: next(there), lambda: next(wanted))
    return next((number for number, _ in enumerate(looks, start=1) if watched.look()), None)


def test_executors_that_stay_away_for_the_limit_are_lost() -> None:
    assert lost_after([True] + [False] * (_LOOKS + 1)) == 1 + _LOOKS + 1
    assert lost_after([True] + [False] * _LOOKS) is None


def test_executors_that_come_back_in_time_are_not_lost() -> None:
    assert lost_after([True, *[False] * _LOOKS, True, *[False] * _LOOKS]) is None


def test_cluster_that_has_never_given_an_executor_may_be_full() -> None:
    assert lost_after([False] * 10 * _LOOKS) is None


def test_executors_that_nothing_needs_may_be_away() -> None:
    """Spark's dynamic allocation returns them while no job runs."""
    away = [False] * 3 * _LOOKS
    assert lost_after([True, *away], [False] * len(away)) is None
    assert lost_after([True, *away], [False] * _LOOKS + [True] * 2 * _LOOKS) == 1 + _LOOKS + _LOOKS + 1


def test_loss_is_reported_once_from_the_thread_of_the_watch() -> None:
    reported: list[str] = []
    done = threading.Event()

    def lost() -> None:
        reported.append(threading.current_thread().name)
        done.set()

    seen = iter([True])
    watched = ExecutorWatch(lambda: next(seen, False), needed=lambda: True, limit_seconds=0.1, lost=lost)
    watched.start()
    assert done.wait(60.0)
    assert reported == ["executor-watch"]
    watched.stop()


def test_watch_ends_with_its_spark_and_raises_nothing_in_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    ended = threading.Event()

    def present() -> bool:
        ended.set()
        raise ConnectionRefusedError("the JVM has ended")

    watched = ExecutorWatch(present, needed=lambda: True, limit_seconds=0.1, lost=lambda: None)
    watched.start()
    assert ended.wait(60.0)
    for thread in threading.enumerate():
        if thread.name == "executor-watch":
            thread.join(60.0)
    assert raised == []


class Context:
    """A context of Spark whose executors leave after the first look."""

    applicationId = "app-1"  # noqa: N815 - Spark's name

    def __init__(self, *, is_dynamic: bool, jobs: list[int]) -> None:
        self._jobs = jobs
        self._is_dynamic = is_dynamic
        self._jsc = self
        self.looks = 0
        self.stopped = threading.Event()

    def getConf(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return {"spark.dynamicAllocation.enabled": "true"} if self._is_dynamic else {}

    def statusTracker(self) -> Context:  # noqa: N802 - Spark's name
        return self

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802 - Spark's name
        return self._jobs

    def sc(self) -> Context:
        return self

    def stop(self) -> None:
        self.stopped.set()


@pytest.mark.parametrize(
    ("is_dynamic", "jobs", "ends"), [(False, [], True), (False, [1], True), (True, [1], True), (True, [], False)]
)
def test_context_without_executors_is_stopped_unless_dynamic_allocation_has_no_job(
    monkeypatch: pytest.MonkeyPatch, is_dynamic: bool, jobs: list[int], ends: bool
) -> None:
    context = Context(is_dynamic=is_dynamic, jobs=jobs)
    many = threading.Event()

    def executors(_: object) -> frozenset[str]:
        context.looks += 1
        if context.looks > 50:
            many.set()
        return frozenset({"w1:7"} if context.looks == 1 else ())

    monkeypatch.setattr(executor_watch, "executors", executors)
    watched = watch_executors(context, 0.1)  # type: ignore[arg-type]
    try:
        assert context.stopped.wait(60.0) if ends else many.wait(60.0)
        assert context.stopped.is_set() is ends
    finally:
        watched.stop()
