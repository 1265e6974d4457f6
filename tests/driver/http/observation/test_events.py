"""Server-sent events: bounded queues, bounded clients, and no work while no client listens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from driver.http.api import tracker_application
from driver.http.observation import events as events_module
from driver.http.observation.events import CLIENTS_MAX, EventHub
from driver.journal import events as ev
from driver.listeners.events import BatchCompleted, BatchFailed, RateChanged
from forebay import messages as m
from forebay.client import Client
from forebay.client import events as parsing
from forebay.client.events import parse_events
from forebay.http.server import Server
from forebay.model.errors import TurnedAwayError, UnreachableError
from forebay.security.access import Guard
from forebay.settings.reading.load import from_values
from tests.support.state.observed import no_stream


def overview() -> m.OverviewAnswer:
    return m.OverviewAnswer(time_ms=1, stream="s", release="1", state="running")


async def present() -> m.OverviewAnswer:
    return overview()


class Listening:
    """A client of a hub. ``paused``: it accepts nothing."""

    def __init__(self, hub: EventHub) -> None:
        self.body: list[bytes] = []
        self.paused = asyncio.Event()
        self.paused.set()
        self.gone = asyncio.Event()
        self.ended = False
        self.arrived = asyncio.Event()
        self.task = asyncio.ensure_future(hub.serve(self._receive, self._send))

    async def _receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.paused.wait()
        if message["type"] == "http.response.body":
            self.body.append(message["body"])
            self.ended = not message["more_body"]
        self.arrived.set()

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in parse_events(self.body)]

    async def until(self, holds: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not holds():
                self.arrived.clear()
                await self.arrived.wait()

        await asyncio.wait_for(wait(), 30)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_client_gets_the_overview_and_events_in_order() -> None:
    async def test() -> None:
        hub = EventHub(present)
        assert not hub.is_listening
        client = Listening(hub)
        await client.until(lambda: client.kinds == ["overview"])
        assert hub.is_listening
        hub.note([ev.RateLearned(rate=7.0, time_ms=5)], now_ms=9)
        hub.tell([RateChanged(time_ms=10, records_per_second=8.0)])
        await client.until(lambda: len(client.kinds) >= 3)
        found = [event for event in parse_events(client.body) if event[0] != "overview"]
        assert [msgspec.json.decode(data)["records_per_second"] for _, data, _ in found] == [7.0, 8.0]
        assert [(kind, number) for kind, _, number in found] == [("rate-changed", 1), ("rate-changed", 2)]
        client.gone.set()
        await client.task
        assert not hub.is_listening
        hub.tell([RateChanged(time_ms=10, records_per_second=8.0)])  # there is no listener: it is dropped

    run(test)


def test_client_that_accepts_nothing_is_dropped_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6."""
    monkeypatch.setattr(events_module, "FRAMES_MAX", 100)

    async def test() -> None:
        hub = EventHub(present)
        slow, quick = Listening(hub), Listening(hub)
        await slow.until(lambda: bool(slow.body))
        await quick.until(lambda: bool(quick.body))
        slow.paused.clear()
        for sent in range(50, 300, 50):  # the first frames are on their way when the client pauses
            for _ in range(50):
                hub.tell([RateChanged(time_ms=10, records_per_second=8.0)])
            await quick.until(lambda sent=sent: quick.kinds.count("rate-changed") == sent)  # type: ignore[misc]
        slow.paused.set()
        await slow.until(lambda: slow.ended)
        assert slow.kinds[-1] == "dropped" and slow.kinds.count("rate-changed") < 100
        await slow.task
        hub.tell([RateChanged(time_ms=11, records_per_second=9.0)])
        before = len(quick.kinds)
        await quick.until(lambda: len(quick.kinds) > before)
        assert "dropped" not in quick.kinds
        hub.close()
        await quick.until(lambda: quick.ended)
        assert quick.kinds[-1] == "end"
        await quick.task

    run(test)


def test_event_of_many_lines_is_bounded_as_one_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6."""
    monkeypatch.setattr(parsing, "EVENT_BYTES_MAX", 1_000)
    line = b"data: " + b"x" * 400 + b"\n"
    assert [data for _, data, _ in parse_events([line, line, b"\n"])] == [b"x" * 800]
    with pytest.raises(ValueError, match="an event has more than 1000 bytes"):
        list(parse_events([line] * 3))


def test_client_is_dropped_by_the_bytes_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6."""
    monkeypatch.setattr(events_module, "BYTES_MAX", 1_000)

    async def test() -> None:
        client = events_module.EventClient()
        for _ in range(3):  # what was taken does not count
            client.put(b"x" * 900)
            assert await client.next() == (b"x" * 900, True)
        for _ in range(3):
            client.put(b"x" * 400)
        data, more = await client.next()
        assert b"the client is too slow" in data and len(data) < 100 and not more

    run(test)


def test_overview_that_fails_is_logged_once_and_the_next_one_is_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events_module, "OVERVIEW_SECONDS", 0.001)
    failures = [ValueError("a bug")] * 3

    async def sometimes() -> m.OverviewAnswer:
        if failures:
            raise failures.pop()
        return overview()

    async def test() -> None:
        hub = EventHub(sometimes)
        client = Listening(hub)
        await client.until(lambda: client.kinds[:1] == ["overview"])
        assert caplog.text.count("cannot make the overview") == 1
        hub.close()
        await client.task

    run(test)


def test_client_whose_token_was_removed_gets_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "OVERVIEW_SECONDS", 0.01)
    file = tmp_path / "tokens"
    file.touch(mode=0o600)
    file.write_text(f"reader {'r' * 40}\noperator {'o' * 40}\n")
    values: dict[str, Any] = {
        "stream": "s",
        "data": str(tmp_path),
        "kafka": {"bootstrap.servers": "unused:1", "topics": ["t"]},
        "security": {"token_file": str(file)},
    }
    observer: Any = no_stream()
    observer.hub = EventHub(present)

    def nothing(*_: Any) -> Any:
        raise UnreachableError("no stream")

    guard = Guard(from_values(values))
    app = tracker_application(
        nothing, status=nothing, ready=lambda: None, release="test", guard=guard, observer=observer
    )
    with Server(app, "http://127.0.0.1:0", guard=guard) as server:
        client = Client(server.url, token="r" * 40)
        kinds: list[Any] = []
        for event in client.events():
            if not kinds:
                file.write_text(f"operator {'o' * 40}\n")
            kinds.append(event)
        client.close()
    assert "token is not valid" in str(kinds[-1])


def test_burst_beyond_the_bound_drops_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: the queue between the decision loop and the serving loop."""
    monkeypatch.setattr(events_module, "WAITING_MAX", 10)

    async def test() -> None:
        hub = EventHub(present)
        client = Listening(hub)
        await client.until(lambda: bool(client.body))
        for _ in range(12):
            hub.tell([RateChanged(time_ms=10, records_per_second=8.0)])
        await client.until(lambda: client.ended)
        assert client.kinds[-1] == "dropped"
        await client.task

    run(test)


@pytest.mark.parametrize("text", [False, True])
def test_few_large_events_beyond_the_bound_drop_all_clients(monkeypatch: pytest.MonkeyPatch, text: bool) -> None:
    """INV-6: one completion of a batch may name 100,000 ranges, and one failure a long error."""
    monkeypatch.setattr(events_module, "WAITING_BYTES_MAX", 100_000)
    ranges = tuple(
        m.BatchRange(topic="t", partition=number, incarnation=1, from_offset=0, until_offset=1, records=1, bytes=1)
        for number in range(300)
    )
    large = (
        BatchFailed(time_ms=1, batch_id=1, number=1, output="o", attempt=1, detail="e" * 40_000, final=False)
        if text
        else BatchCompleted(time_ms=1, batch_id=1, attempts=1, ranges=ranges)
    )

    async def test() -> None:
        hub = EventHub(present)
        client = Listening(hub)
        await client.until(lambda: bool(client.body))
        for _ in range(3):  # each waits alone
            hub.tell([large])
            hub.tell([large])
            count = len(client.body)
            await client.until(lambda count=count: len(client.body) > count)  # type: ignore[misc]
        assert client.kinds[-1] != "dropped"
        for _ in range(3):
            hub.tell([large])
        await client.until(lambda: client.ended)
        assert client.kinds[-1] == "dropped"
        await client.task

    run(test)


def test_clients_beyond_the_maximum_and_after_the_end_are_refused() -> None:
    async def test() -> None:
        hub = EventHub(present)
        clients = [Listening(hub) for _ in range(CLIENTS_MAX)]
        await clients[-1].until(lambda: bool(clients[-1].body))
        with pytest.raises(TurnedAwayError, match="20 clients"):
            await Listening(hub).task
        clients[0].gone.set()
        await clients[0].task
        more = Listening(hub)
        await more.until(lambda: bool(more.body))
        hub.close()
        for client in [*clients[1:], more]:
            await client.until(lambda client=client: client.ended)  # type: ignore[misc]
            await client.task
        with pytest.raises(TurnedAwayError, match="stopping"):
            await Listening(hub).task

    run(test)


def test_overview_that_cannot_be_had_leaves_the_events() -> None:
    async def away() -> m.OverviewAnswer:
        raise UnreachableError("the decision loop does not answer")

    async def test() -> None:
        hub = EventHub(away)
        client = Listening(hub)
        await client.until(lambda: hub.is_listening)
        hub.tell([RateChanged(time_ms=10, records_per_second=8.0)])
        await client.until(lambda: bool(client.body))
        assert client.kinds == ["rate-changed"]
        hub.close()
        await client.task

    run(test)


def test_events_are_parsed_whatever_the_parts_in_which_they_arrive() -> None:
    body = b': a comment\nid: 3\nevent: x\ndata: {"a": 1}\n\nevent: y\ndata: [\ndata: 2]\n\nevent: cut off\nda'
    wanted = [("x", b'{"a": 1}', 3), ("y", b"[2]", 0)]
    for size in (1, 2, 7, len(body)):
        assert list(parse_events(body[at : at + size] for at in range(0, len(body), size))) == wanted
    with pytest.raises(ValueError, match="more than"):
        list(parse_events([b"data: " + b"x" * (16 << 20), b"x" * 10]))
