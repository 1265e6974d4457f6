"""The engine starts and warms up beside the rest: what fails then, what is stopped meanwhile, and when a standby does it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from driver.service.engine_start import EngineStart
from driver.spark.early import starts_early, starts_first, starts_spark_first
from forebay.model.errors import EngineLostError, UsageError
from tests.support.state.stored import Stored

_SECONDS = 60.0


class Engine:
    """An engine that notes its calls. Each call does what the test gives, by name."""

    def __init__(self, **does: Callable[[], None]) -> None:
        self.calls: list[str] = []
        self._does = does

    def __getattr__(self, name: str) -> Callable[[], None]:
        def call() -> None:
            self.calls.append(name)
            self._does.get(name, lambda: None)()

        return call


def raising(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def started(engine: Any, *, standby: bool = False, lost: Any = None) -> EngineStart:
    made = EngineStart(engine, standby=standby, check_seconds=0.01, lost=lost)
    made.begin()
    return made


def test_engine_is_ready_before_it_is_warm() -> None:
    """The driver never waits for the warming. Its first batch may, for one query: tests/engines/test_warming.py."""
    may_end = threading.Event()

    def slow() -> None:
        may_end.wait(_SECONDS)

    engine = Engine(warm=slow)
    start = started(engine)
    start.finish()
    assert "stop" not in engine.calls
    may_end.set()
    start.stop()
    assert sorted(set(engine.calls)) == ["start", "stop", "warm"]


def test_failed_start_ends_the_leader_and_a_standby_tries_again_when_it_leads() -> None:
    faults: list[Exception] = [UsageError("no Java"), UsageError("no Java yet")]

    def fail() -> None:
        if faults:
            raise faults.pop()

    leader = started(Engine(start=raising(UsageError("no Java"))))
    with pytest.raises(UsageError, match="no Java"):
        leader.finish()
    leader.stop()

    faults.pop()
    engine = Engine(start=fail)
    standby = started(engine, standby=True)
    standby.finish()
    assert engine.calls == ["start", "stop", "start"], "what a failed start holds is given back"
    standby.stop()


def test_failed_warming_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    start = started(Engine(warm=raising(RuntimeError("no memory"))))
    start.finish()
    start._thread.join(_SECONDS)  # type: ignore[union-attr]
    start.finish()
    assert ["no memory" in record.getMessage() for record in caplog.records] == [True]
    start.stop()


def test_standby_whose_engine_has_ended_ends_before_it_is_needed() -> None:
    seen = threading.Event()
    errors: list[Exception] = []

    def lost(error: Exception) -> None:
        errors.append(error)
        seen.set()

    start = started(Engine(check=raising(EngineLostError("Spark's JVM has ended"))), standby=True, lost=lost)
    assert seen.wait(_SECONDS)
    start.stop()
    assert [str(error).partition(";")[0] for error in errors] == ["Spark's JVM has ended"]


def test_stop_waits_for_a_start_that_is_under_way_and_stops_what_it_started() -> None:
    begun, stopped = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        stopped.wait(_SECONDS)

    engine = Engine(start=slow, stop=stopped.set)
    start = started(engine)
    assert begun.wait(_SECONDS)
    start.stop()
    assert engine.calls == ["start", "stop", "stop"]


@pytest.mark.parametrize(
    ("chosen", "master", "early"),
    [
        ("auto", "local[4]", True),
        ("auto", "spark://host:7077", False),
        ("auto", "", False),
        ("always", "yarn", True),
        ("never", "local[*]", False),
    ],
)
def test_standby_starts_spark_early_where_that_takes_nothing_from_the_leader(
    chosen: Any, master: str, early: bool, tmp_path: Path
) -> None:
    """A second application on a cluster could take the cores that the leader needs."""
    plain = Stored(tmp_path).settings()
    s = msgspec.structs.replace(
        plain,
        driver=msgspec.structs.replace(plain.driver, warm_standby=chosen),
        spark=msgspec.structs.replace(plain.spark, options={"spark.master": master}),
    )
    assert starts_early(s, standby=True) is early
    assert starts_early(s, standby=False)
    assert starts_first(s, standby=True) is (early and master.startswith("local"))
    assert starts_first(s, standby=False) is master.startswith("local")
    assert starts_spark_first(s, standby=False) is master.startswith("local")
    other = msgspec.structs.replace(s, driver=msgspec.structs.replace(s.driver, engine="local"))
    assert not starts_spark_first(other, standby=False)
