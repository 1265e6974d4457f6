"""The thread that receives overviews and lists from the driver. It reconnects with growing pauses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deploy.commands.inspection.top.screen import LIST_MAX, LISTS, Answers, ListName
from forebay import messages as m
from forebay.model.errors import AccessError, ForebayError, UnreachableError
from forebay.process.clock import Clock

if TYPE_CHECKING:
    from forebay.client import Client

#: time between two requests of the series, which has a point each 10 s
SERIES_SECONDS = 10.0
#: points of the series: an hour
SERIES_POINTS = 360
#: pause before the first attempt to reconnect; it doubles up to the maximum
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.5, 10.0


def everything(client: Client, clock: Clock) -> Answers:
    """Return the overview, the series, and the beginning of every list. Raises ForebayError."""
    answers = Answers(client.overview(), clock.monotonic())
    if answers.overview.leader:
        return answers
    answers = replace(answers, series=client.series(points_max=SERIES_POINTS))
    for name in LISTS:
        answers = _with_list(client, answers, name)
    return answers


def _with_list(client: Client, answers: Answers, name: ListName) -> Answers:
    page: Any = getattr(client, name)(limit=LIST_MAX)
    changes: Mapping[str, Any] = {name: getattr(page, name), "totals": {**answers.totals, name: page.total}}
    return replace(answers, **changes)


class Feed:
    """Calls ``show`` with new answers, and ``fail`` with the reason when the driver can't be reached; both in its own thread.

    ``wanted`` returns the list that the screen shows: only that one is requested. An error that a new attempt can't help, such as
    a refused token, ends the feed; ``error`` then has it, and ``fail`` was called.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        wanted: Callable[[], ListName],
        show: Callable[[Answers], None],
        fail: Callable[[str], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._wanted = wanted
        self._show = show
        self._fail = fail
        self._stop = threading.Event()
        self._answers: Answers | None = None
        self._series_at = -SERIES_SECONDS
        self.error: ForebayError | None = None
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current request; it is a daemon, so the process may end before."""
        self._stop.set()

    def _run(self) -> None:
        pause = PAUSE_SECONDS_MIN
        while not self._stop.is_set():
            try:
                with closing(self._client.events()) as events:
                    for event in events:
                        if self._stop.is_set():
                            return
                        if event.kind == "overview":
                            self._received(event.data)
                            pause = PAUSE_SECONDS_MIN
                        elif event.kind == "end":
                            self._fail("the driver is stopping")
            except ForebayError as error:
                if isinstance(error, AccessError) or not isinstance(error, UnreachableError):
                    self.error = error
                self._fail(str(error))
                if self.error is not None:
                    return
            self._stop.wait(pause)
            pause = min(PAUSE_SECONDS_MAX, pause * 2)

    def _received(self, overview: m.OverviewAnswer) -> None:
        now = self._clock.monotonic()
        old = self._answers
        answers = Answers(overview, now) if old is None else replace(old, overview=overview, at=now)
        if now - self._series_at >= SERIES_SECONDS:
            self._series_at = now
            answers = replace(answers, series=self._client.series(points_max=SERIES_POINTS))
        self._answers = _with_list(self._client, answers, self._wanted())
        self._show(self._answers)
