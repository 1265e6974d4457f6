"""Custom sources under the threads of a receiver's service."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from forebay.process.clock import SystemClock
from forebay.sources.receiving import Records
from receiver import inputs as inp
from receiver.main import compose
from receiver.sources.custom_source import ReliableAdapter, UnreliableAdapter
from receiver.sources.source import Source
from tests.receiver.fakes import FakeTracker, marked
from tests.receiver.test_service import Running, settings_of, taken_in
from tests.support.state.custom_sources import HERE, A, B, Lists, Q, Queue, settings_for
from wal.storage.local import LocalStorage


@pytest.fixture
def tracker() -> Iterator[FakeTracker]:
    with FakeTracker() as tracker:
        yield tracker


def run(tmp_path: Path, tracker: FakeTracker, source: Source, name: str = "Lists") -> Running:
    settings = settings_of(tmp_path, tracker.url)
    receiver = msgspec.structs.replace(settings.receiver, source=f"{HERE}:{name}")
    settings = msgspec.structs.replace(settings, receiver=receiver)
    return Running(
        compose(
            settings,
            "s-r0",
            source=source,
            storage=marked(LocalStorage(str(tmp_path / "wal"))),
            clock=SystemClock(),
            host="h",
        )
    )


@pytest.mark.parametrize("name", ["Lists", "Queue"])
def test_refused_reports_lose_and_repeat_nothing_of_either_kind(
    tmp_path: Path, tracker: FakeTracker, name: str
) -> None:
    """INV-2, rule 4."""
    own, settings = (Lists(700), settings_for("Lists")) if name == "Lists" else (Queue(700), settings_for("Queue"))
    adapter: Source = (
        ReliableAdapter(settings, own, SystemClock())
        if isinstance(own, Lists)
        else UnreliableAdapter(settings, own, SystemClock())
    )
    prefixes = {A: b"a", B: b"b"} if name == "Lists" else {Q: b""}
    tracker.refuse = 4
    receiver = run(tmp_path, tracker, adapter, name)
    tracker.wait_for(lambda: all(tracker.positions.get(tp) == 700 for tp in prefixes))
    assert tracker.refuse == 0
    receiver.service.drain()
    assert receiver.ended() == 0
    assert taken_in(tmp_path, tracker) == {
        tp: [(n, b"%s%d" % (prefix, n)) for n in range(700)] for tp, prefix in prefixes.items()
    }
    assert own.closed if isinstance(own, Lists) else own.ended


def test_records_before_an_exception_are_accepted_and_the_driver_gets_the_reason(
    tmp_path: Path, tracker: FakeTracker
) -> None:
    """An unreliable source returns them once, so the receiver drains, and exits with 1."""
    own = Queue(300)
    own.fails = ValueError("the line broke")
    receiver = run(tmp_path, tracker, UnreliableAdapter(settings_for("Queue"), own, SystemClock()), "Queue")
    assert receiver.ended() == 1
    assert tracker.positions[Q] == 300
    message = f"{HERE}:Queue: poll(): ValueError: the line broke"
    assert any(message in note.message for beat in tracker.heartbeats for note in beat.errors)
    assert tracker.heartbeats[-1].detail == f"ends: {message}" and own.ended
    assert [(r.topic, r.partition) for r in tracker.released] == [("q", 0)]


def test_poll_in_progress_when_drain_begins_is_taken_in(tmp_path: Path, tracker: FakeTracker) -> None:
    """The driver may command a drain during a poll, and the source does not return the records again."""
    polled, go_on = threading.Event(), threading.Event()

    class Slow(Queue):
        def poll(self, max_records: int, timeout_seconds: float) -> Records:
            given = super().poll(max_records, timeout_seconds)
            if given:
                polled.set()
                go_on.wait(60)
            return given

    receiver = run(tmp_path, tracker, UnreliableAdapter(settings_for("Queue"), Slow(5), SystemClock()), "Queue")
    assert polled.wait(60)
    receiver.service.tell(inp.DrainRequested())  # as the answer to a heartbeat does, from its thread
    go_on.set()
    assert receiver.ended() == 0
    assert tracker.positions[Q] == 5
