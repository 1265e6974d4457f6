"""Listeners get durable events, in order, in threads of their own; a slow or broken one disturbs no other."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest

from driver.journal import events as ev
from driver.listeners.derivation import SeenReceiver, ended, happened_in, held_up, receiver_events
from driver.listeners.dispatch import Channel, Listeners, ListenerSink, find_listener
from driver.listeners.events import (
    METHODS,
    BatchCompleted,
    BatchSubmitted,
    BlockAdded,
    GapFound,
    Happened,
    Listener,
    PartitionLag,
    RateChanged,
    ReceiverError,
    ReceiverFailed,
    ReceiverResumed,
    ReceiverStarted,
    ReceiverStopped,
)
from driver.listeners.lag import measured
from driver.listeners.offsets import submitted_offsets, with_offsets
from driver.listeners.sizes import event_bytes
from driver.listeners.web_hook import ATTEMPTS_MAX, WebHook
from forebay.kafka.consume.spans import OffsetRange
from forebay.messages import BatchRange
from forebay.model.errors import SettingsError
from forebay.model.values import Gap
from tests.support.servers.hooked import Hooked
from tests.support.state.tracked import Tracked

PATIENCE_SECONDS = 30.0


def rate(number: float) -> RateChanged:
    return RateChanged(time_ms=0, records_per_second=number)


class Kept(Listener):
    """Keeps what it hears; ``hold`` holds it up."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.hold = threading.Event()
        self.hold.set()
        self.began = threading.Event()

    def rate_changed(self, event: RateChanged) -> None:
        self.began.set()
        assert self.hold.wait(PATIENCE_SECONDS)
        self.events.append(event.records_per_second)


@pytest.fixture
def telling() -> Iterator[Callable[..., Listeners]]:
    made: list[Listeners] = []

    def make(*receiving: Any, length: int = 100) -> Listeners:
        listeners = Listeners([Channel(one, length) for one in receiving], lambda: 0)
        listeners.start()
        made.append(listeners)
        return listeners

    yield make
    for listeners in made:
        listeners.stop()


# ---- which events ----------------------------------------------------------------------------------------------------


def test_every_kind_of_event_has_a_method_of_the_listener() -> None:
    assert set(METHODS) == set(get_args(Happened))
    assert set(METHODS.values()) == {name for name in vars(Listener) if not name.startswith("_")}


def test_events_of_the_journal_become_events_for_listeners() -> None:
    t = Tracked()
    events: list[Any] = []

    def say(request: Any) -> Any:
        decision = t.decide(request)
        events.extend(happened for event in decision.events for happened in happened_in(event, 9))
        return decision.answer

    t.say = say  # type: ignore[method-assign]
    epoch = t.register()
    token = t.claim(epoch).view.token
    block = t.take_in(epoch, token, 5)
    batch = t.batch()
    kinds = [type(happened) for happened in events]
    assert kinds == [ReceiverStarted, BlockAdded, BatchSubmitted]
    assert events[1].block_id == block.id
    assert events[1].ranges == ("t/0[0, 5)",)
    assert (events[2].batch_id, events[2].number, events[2].blocks) == (batch, 1, 1)
    (allocated,) = [event for event in t.events if isinstance(event, ev.BatchAllocated)]
    (submitted,) = happened_in(allocated, 9, t.state.index.records.get)
    assert isinstance(submitted, BatchSubmitted)
    assert (submitted.records, submitted.batch_time_ms) == (5, allocated.time_ms)


def test_offsets_of_a_submitted_batch_are_read_by_the_listener_and_not_by_the_decision_loop() -> None:
    """A batch may have 500,000 ranges. Touching ones are joined; blocks that are deleted meanwhile leave no wrong offsets."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    for end in (5, 9):
        t.take_in(epoch, token, end)
    t.batch()
    (allocated,) = [event for event in t.events if isinstance(event, ev.BatchAllocated)]
    offsets = submitted_offsets(t.state, allocated)
    (found,) = offsets.values()
    assert (found.items, found.expected) == (2, 1)
    (submitted,) = happened_in(allocated, 9)
    read = with_offsets(submitted, offsets)
    assert isinstance(read, BatchSubmitted)
    assert [(r.partition, r.from_offset, r.until_offset, r.records) for r in read.ranges] == [(0, 0, 9, 9)]
    assert submitted_offsets(t.state, allocated)[allocated.batch_id].ranges == read.ranges
    late = submitted_offsets(t.state, allocated)
    del t.state.blocks[allocated.tasks[0][0]]
    assert with_offsets(submitted, late) == submitted


def test_batch_of_a_direct_stream_is_submitted_with_its_time_and_number_of_offsets() -> None:
    spans = (OffsetRange("t", 0, 10, 20), OffsetRange("t", 1, 5, 9))
    (submitted,) = happened_in(ev.SpansAllocated(7, 3, 1_000, spans), 9)
    assert submitted == BatchSubmitted(time_ms=9, batch_id=7, number=3, blocks=0, batch_time_ms=1_000, records=14)


def test_faults_and_gaps_of_a_partition_are_both_gap_events() -> None:
    fault = ev.FaultRecorded("a", 1, "out-of-range", 10, 20, False, "", -1)
    gap = ev.GapRecorded("a", 1, Gap(10, 20, "aged out"), 5)
    found = [happened_in(event, 1)[0] for event in (fault, gap)]
    assert all(isinstance(one, GapFound) and (one.from_offset, one.until_offset) == (10, 20) for one in found)
    assert [one.recorded for one in found] == [False, True]  # type: ignore[union-attr]


def test_a_silent_receiver_has_failed_once_unless_it_was_draining() -> None:
    def seen(state: str, epoch: int = 1, name: str = "r1") -> dict[str, SeenReceiver]:
        return {name: SeenReceiver(name, "h1", epoch, state)}

    (failed,) = ended(seen("active"), seen("lost"), 1)
    assert isinstance(failed, ReceiverFailed)
    (stopped,) = ended(seen("draining"), seen("lost"), 1)
    assert isinstance(stopped, ReceiverStopped)
    for before in (seen("lost"), seen("active", epoch=2), {}):
        assert ended(before, seen("lost"), 1) == []
    assert ended(seen("active"), seen("active"), 1) == []


def test_receiver_that_says_why_it_waits_reports_an_error_once_and_resumes() -> None:
    def seen(state: str, detail: str = "", epoch: int = 1) -> dict[str, SeenReceiver]:
        return {"r1": SeenReceiver("r1", "h1", epoch, state, detail)}

    waits = seen("waiting", "the store does not answer")
    for before in ({}, seen("active"), seen("waiting"), seen("waiting", "of an earlier start", epoch=0)):
        (error,) = held_up(before, waits, 1)
        assert isinstance(error, ReceiverError) and error.detail == "the store does not answer"
    assert held_up(waits, seen("waiting", "for 5 s now"), 1) == []
    (resumed,) = held_up(waits, seen("active"), 1)
    assert isinstance(resumed, ReceiverResumed)
    for now in (seen("draining"), seen("lost"), seen("waiting"), seen("active", epoch=2)):
        assert held_up(waits, now, 1) == []
    assert [type(one) for one in receiver_events(waits, seen("lost"), 1)] == [ReceiverFailed]


def test_lag_is_unknown_if_that_of_one_partition_is_and_names_the_worst_partitions() -> None:
    def lag(number: int, end: int | None) -> PartitionLag:
        return PartitionLag("t", number, position=5, completed=3, end=end)

    one = measured([lag(0, 9), lag(1, 105), lag(2, 4)], 1.5, 7)
    assert (one.not_taken_in, one.not_processed, one.lag_seconds) == (4 + 100, 6 + 102 + 1, 1.5)
    assert [partition.partition for partition in one.partitions] == [1, 0, 2]
    unknown = measured([lag(0, 9), lag(1, None)], None, 7)
    assert (unknown.not_taken_in, unknown.not_processed) == (None, None)
    assert len(measured([lag(number, 9) for number in range(500)], None, 7).partitions) == 100
    assert measured([], None, 7).not_taken_in is None


# ---- delivery --------------------------------------------------------------------------------------------------------


def test_order_is_kept_and_events_queued_before_the_end_still_arrive(telling: Callable[..., Listeners]) -> None:
    kept = Kept()
    listeners = telling(ListenerSink(kept), length=1000)
    listeners.tell_all([rate(n) for n in range(500)])
    listeners.stop(PATIENCE_SECONDS)
    assert kept.events == list(range(500))
    assert listeners.status[0].delivered == 500


def test_a_slow_listener_loses_events_and_no_other_does(telling: Callable[..., Listeners]) -> None:
    """INV-6: its queue is bounded, what does not fit is counted, and telling never waits."""
    slow, quick = Kept(), Kept()
    slow.hold.clear()
    listeners = telling(ListenerSink(slow, "slow"), ListenerSink(quick, "quick"), length=50)
    listeners.tell_all([rate(0)])
    assert slow.began.wait(PATIENCE_SECONDS)
    for n in range(1, 70):
        listeners.tell_all([rate(n)])  # by one: the quick one keeps up
        while listeners.status[1].waiting:
            threading.Event().wait(0.001)
    assert listeners.status[0].dropped == 69 - 50
    slow.hold.set()
    listeners.stop(PATIENCE_SECONDS)
    assert quick.events == list(range(70))
    assert slow.events == list(range(51))
    assert listeners.status[0].waiting == 0


def test_waiting_events_are_bounded_by_their_size_until_they_are_delivered() -> None:
    """INV-6: a few events of batches with many partitions take more memory than thousands of others."""
    slow = Kept()
    slow.hold.clear()
    size = event_bytes(rate(0))
    listeners = Listeners([Channel(ListenerSink(slow, "slow"), 1_000, 3 * size)], lambda: 0)
    listeners.start()
    listeners.tell_all([rate(0)])
    assert slow.began.wait(PATIENCE_SECONDS)
    listeners.tell_all([rate(1), rate(2), rate(3), rate(4)])  # the first one is being delivered, and counts
    assert listeners.status[0].dropped == 2
    slow.hold.set()
    while listeners.status[0].delivered < 3:
        threading.Event().wait(0.001)
    while listeners.status[0].dropped == 2 and len(slow.events) < 4:  # what is delivered makes room
        listeners.tell_all([rate(5)])
        threading.Event().wait(0.001)
    listeners.stop(PATIENCE_SECONDS)
    assert slow.events[:4] == [0, 1, 2, 5]
    one = BatchRange(topic="t", partition=0, incarnation=1, from_offset=0, until_offset=9, records=9)
    ranges = (one,) * 1_000
    wide = BatchCompleted(time_ms=0, batch_id=1, attempts=1, ranges=ranges)
    assert event_bytes(wide) > 100_000


def test_a_listener_that_raises_gets_further_events_and_is_logged_once_for_each_kind(
    telling: Callable[..., Listeners], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Listener):
        def rate_changed(self, event: RateChanged) -> None:
            raise KeyError("x") if event.records_per_second % 2 else ValueError("y")

    class Partial:
        """Has none of the methods."""

    listeners = telling(ListenerSink(Broken(), "broken"), ListenerSink(Partial(), "partial"))
    listeners.tell_all([rate(n) for n in range(6)])
    listeners.stop(PATIENCE_SECONDS)
    broken, partial = listeners.status
    assert (broken.failures, broken.delivered, partial.failures) == (6, 6, 0)
    assert broken.last_error == "rate_changed: KeyError: 'x'"
    assert sum("broken" in record.message for record in caplog.records) == 2


def test_a_listener_added_later_gets_later_events(telling: Callable[..., Listeners]) -> None:
    listeners = telling()
    assert not listeners
    listeners.tell_all([rate(1)])
    kept = Kept()
    listeners.add(Channel(ListenerSink(kept), 10))
    listeners.tell_all([rate(2)])
    listeners.stop(PATIENCE_SECONDS)
    assert kept.events == [2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:X", "can't be imported: ModuleNotFoundError"),
        ("json:Nothing", "module 'json' has no class 'Nothing'"),
        (
            "driver.listeners.dispatch:ListenerSink",
            "cannot create 'driver.listeners.dispatch:ListenerSink' without arguments: TypeError",
        ),
    ],
)
def test_a_wrong_listener_in_the_settings_is_refused_with_the_reason(name: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        find_listener(name)
    assert isinstance(find_listener("driver.listeners:Listener"), Listener)


# ---- the web hook ----------------------------------------------------------------------------------------------------


def rates(hooked: Hooked) -> list[float]:
    return [event["records_per_second"] for event in hooked.events]


@pytest.fixture
def hooked() -> Iterator[Hooked]:
    server = Hooked()
    yield server
    server.close()


def test_the_web_hook_is_posted_events_as_json_in_order(hooked: Hooked, telling: Callable[..., Listeners]) -> None:
    listeners = telling(WebHook(hooked.url, stream="flights", timeout_seconds=5.0), length=1000)
    listeners.tell_all([rate(n) for n in range(250)])
    listeners.stop(PATIENCE_SECONDS)
    assert rates(hooked) == list(range(250))
    first = hooked.bodies[0]
    assert (first["stream"], first["dropped"]) == ("flights", 0)
    assert first["events"][0] == {"kind": "rate-changed", "time_ms": 0, "records_per_second": 0.0}
    assert hooked.requests < 250  # several in one request


def test_a_web_hook_that_fails_for_a_moment_gets_all_events_again(
    hooked: Hooked, telling: Callable[..., Listeners]
) -> None:
    hooked.statuses = [500, 503, 302]
    listeners = telling(WebHook(hooked.url, stream="flights", timeout_seconds=5.0, first_wait_seconds=0.001))
    listeners.tell_all([rate(1)])
    listeners.stop(PATIENCE_SECONDS)
    assert rates(hooked) == [1]
    (status,) = listeners.status
    assert (status.failures, status.dropped, status.last_error) == (3, 0, "HTTP 302")


@pytest.mark.parametrize("size", [b"-1", b"-5", b"-" + b"f" * 20, b"zz"])
def test_an_answer_in_odd_chunks_does_not_end_the_web_hook(size: bytes, telling: Callable[..., Listeners]) -> None:
    """Its status counts, and nothing of its body is read."""
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + size + b"\r\nabc"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        hook = WebHook(f"http://127.0.0.1:{server.getsockname()[1]}", stream="flights", timeout_seconds=5.0)
        assert [hook.take([rate(n)], 0) for n in range(2)] == [0, 0]
        thread.join(60)
        assert not thread.is_alive()


def test_events_for_a_failing_web_hook_are_dropped_counted_and_the_next_ones_tried(
    hooked: Hooked, telling: Callable[..., Listeners], caplog: pytest.LogCaptureFixture
) -> None:
    hooked.statuses = [500] * ATTEMPTS_MAX
    hook = WebHook(hooked.url, stream="flights", timeout_seconds=5.0, first_wait_seconds=0.001)
    assert hook.take([rate(1), rate(2)], 0) == 2
    assert hooked.requests == ATTEMPTS_MAX
    assert hook.take([rate(3)], 2) == 0
    assert hooked.bodies[0]["dropped"] == 2
    text = " ".join([*caplog.messages, hook.name, hook.last_error])
    assert "s3cret" not in text
    assert hook.name in text


def test_a_web_hook_that_does_not_answer_in_time_or_is_down_counts_as_failed(
    hooked: Hooked, caplog: pytest.LogCaptureFixture
) -> None:
    hooked.hold.clear()
    hook = WebHook(hooked.url, stream="flights", timeout_seconds=0.05, first_wait_seconds=0.001)
    assert hook.take([rate(1)], 0) == 1
    assert hook.last_error == "no answer (ReadTimeoutError)"
    down = WebHook("http://127.0.0.1:1/s3cret", stream="flights", timeout_seconds=1.0, first_wait_seconds=0.001)
    assert down.take([rate(1)], 0) == 1
    assert down.last_error.startswith("no answer")
    assert "s3cret" not in " ".join([*caplog.messages, down.last_error])


def test_a_driver_that_ends_does_not_wait_for_a_web_hook_that_is_down(telling: Callable[..., Listeners]) -> None:
    """INV-6: retries end when the driver ends."""
    hook = WebHook("http://127.0.0.1:1/", stream="flights", timeout_seconds=1.0, first_wait_seconds=1000.0)
    listeners = telling(hook)
    listeners.tell_all([rate(1)])
    while not hook.failures:
        threading.Event().wait(0.001)
    listeners.stop(0.01)
    assert hook._closing.is_set()
