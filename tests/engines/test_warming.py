"""Which queries run before the first batch, and which batch waits for which of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.batches.job.work import BatchWork
from driver.spark.engine import SparkEngine
from driver.spark.warming import Query, Warming
from tests.support.state.stored import Stored

_SECONDS = 60.0


class Queries:
    """Three queries; one of them waits until it may end."""

    def __init__(self, slow: str, failure: Exception | None = None) -> None:
        self.ran: list[str] = []
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self._slow, self._failure = slow, failure
        self.all = [Query(self._query("a"), True), Query(self._query("b"), True), Query(self._query("c"))]

    def _query(self, name: str) -> Callable[[], None]:
        def run() -> None:
            if name == self._slow and not self.begun.is_set():
                self.begun.set()
                assert self.may_end.wait(_SECONDS)
                if self._failure is not None:
                    raise self._failure
            self.ran.append(name)

        return run


class Waiting(threading.Thread):
    """A batch that waits."""

    def __init__(self, warming: Warming) -> None:
        super().__init__(daemon=True)
        self._warming = warming
        self.waited: bool | None = None
        self.start()
        assert warming._wanted.wait(_SECONDS)

    def run(self) -> None:
        self.waited = self._warming.await_ready()

    def ended(self) -> bool:
        self.join(_SECONDS)
        return not self.is_alive()


def warming_in_thread(warming: Warming, queries: Queries) -> threading.Thread:
    def run() -> None:
        try:
            warming.run(lambda: queries.all, 2)
        except RuntimeError:
            queries.ran.append("failed")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert queries.begun.wait(_SECONDS)
    return thread


def test_without_a_batch_all_rounds_run() -> None:
    queries = Queries("none")
    assert Warming().run(lambda: queries.all, 2) == 2
    assert queries.ran == ["a", "b", "c"] * 2


@pytest.mark.parametrize("slow", ["a", "b"])
def test_batch_waits_for_the_awaited_queries_and_no_further_query_begins(slow: str) -> None:
    warming, queries = Warming(), Queries(slow)
    thread = warming_in_thread(warming, queries)
    batch = Waiting(warming)
    assert batch.is_alive()
    queries.may_end.set()
    assert batch.ended()
    assert batch.waited
    thread.join(_SECONDS)
    assert queries.ran == ["a", "b"]


def test_batch_that_comes_later_does_not_wait_for_other_queries() -> None:
    warming, queries = Warming(), Queries("c")
    thread = warming_in_thread(warming, queries)
    batch = Waiting(warming)
    assert batch.ended()
    assert batch.waited is False
    queries.may_end.set()
    thread.join(_SECONDS)
    assert queries.ran == ["a", "b", "c"]


def test_batch_waits_while_the_queries_are_made() -> None:
    warming, queries = Warming(), Queries("none")
    made, may_be_made = threading.Event(), threading.Event()

    def make() -> list[Query]:
        made.set()
        assert may_be_made.wait(_SECONDS)
        return queries.all

    thread = threading.Thread(target=lambda: warming.run(make), daemon=True)
    thread.start()
    assert made.wait(_SECONDS)
    small = Waiting(warming)
    assert small.is_alive()
    may_be_made.set()
    assert small.ended()
    assert small.waited
    thread.join(_SECONDS)
    assert queries.ran == ["a", "b"]


def test_batch_goes_on_when_the_warming_fails_or_is_stopped() -> None:
    failing, queries = Warming(), Queries("a", RuntimeError("no memory"))
    thread = warming_in_thread(failing, queries)
    waiting = Waiting(failing)
    queries.may_end.set()
    assert waiting.ended()
    thread.join(_SECONDS)
    assert queries.ran == ["failed"]

    stopped, queries = Warming(), Queries("a")
    thread = warming_in_thread(stopped, queries)
    waiting = Waiting(stopped)
    stopped.stop()
    assert waiting.ended(), "before the query has ended"
    queries.may_end.set()
    thread.join(_SECONDS)
    assert queries.ran == ["a"]


def test_batch_of_an_engine_that_is_not_warmed_does_not_wait() -> None:
    assert not Warming().await_ready()


def test_engine_lets_batches_wait_for_its_warming_until_it_is_stopped(tmp_path: Path) -> None:
    engine, made, may_end = SparkEngine(Stored(tmp_path).settings(), dict), threading.Event(), threading.Event()
    waited: list[bool] = []

    def make() -> list[Query]:
        made.set()
        assert may_end.wait(_SECONDS)
        return []

    warming = threading.Thread(target=lambda: engine._warming.run(make), daemon=True)
    warming.start()
    assert made.wait(_SECONDS)
    work = BatchWork(1 << 40 | 1, 1, 0, False, ())
    batch = threading.Thread(target=lambda: waited.append(engine.await_ready(work)), daemon=True)
    batch.start()
    assert engine._warming._wanted.wait(_SECONDS)
    assert not waited
    engine.stop()
    batch.join(_SECONDS)
    assert waited == [True]
    may_end.set()
    warming.join(_SECONDS)
