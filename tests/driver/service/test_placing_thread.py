"""The placing thread: what it passes to listeners."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from driver.http.health import HealthVerdict
from driver.journal import events as ev
from driver.listeners.derivation import SeenReceiver
from driver.listeners.dispatch import Listeners
from driver.listeners.events import Happened, ReceiverFailed
from driver.service.answers.view import ReadHealth
from driver.service.placing import Placing, ReadReceivers
from forebay.process.clock import ManualClock
from forebay.settings.reading.load import from_values


class Page:
    """A client of server-sent events, which comes and goes."""

    def __init__(self) -> None:
        self.is_listening = True
        self.happened: list[Happened] = []

    def note(self, events: Sequence[ev.Event], now_ms: int) -> None:
        pass

    def tell(self, happened: Sequence[Happened]) -> None:
        self.happened += happened


def test_receiver_that_fails_while_no_client_listens_is_no_event_for_the_next_client() -> None:
    page, clock = Page(), ManualClock()
    listeners = Listeners([], clock.wall_ms)
    listeners.attach(page)
    state = "active"

    def ask(request: Any) -> Any:
        if isinstance(request, ReadReceivers):
            return {"r1": SeenReceiver("r1", "h1", 1, state, "")}
        return HealthVerdict() if isinstance(request, ReadHealth) else []

    # of each round: whether the page listens, the state of the receiver, and the number of events before the round
    rounds = iter(
        [
            (True, "active", 0),
            (False, "active", 0),
            (False, "lost", 0),
            (True, "lost", 0),
            (True, "active", 0),
            (True, "lost", 0),
            (True, "lost", 1),
        ]
    )

    def wait(_: float) -> bool:
        nonlocal state
        following = next(rounds, None)
        if following is not None:
            page.is_listening, state, events = following
            assert len(page.happened) == events
        return following is None

    settings = from_values(
        {"stream": "s", "kafka": {"bootstrap.servers": "unused:1", "topics": ["t"]}, "data": "/unused"}
    )
    given: Any = SimpleNamespace(settings=settings, clock=clock, listeners=listeners)
    parts: Any = SimpleNamespace(loop=SimpleNamespace(ask=ask), tracker=None)
    stopping: Any = SimpleNamespace(wait=wait)
    failed: list[BaseException] = []
    view: Any = None
    placing = Placing(given, parts, view, stopping=stopping, failed=failed.append)
    placing.start()
    placing.join()
    assert failed == []
    assert [type(event) for event in page.happened] == [ReceiverFailed]
