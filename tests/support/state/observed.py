"""An observer that knows no stream, for tests of an application's other routes."""

from __future__ import annotations

from typing import Any

from driver.http.observation.events import EventHub
from driver.http.observation.observer import Observer
from forebay import messages as m
from forebay.model.errors import UnreachableError


async def _no_overview() -> m.OverviewAnswer:
    raise UnreachableError("no stream")


class _NoStream:
    def __init__(self) -> None:
        self.hub = EventHub(_no_overview)
        self.hub.close()

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: Any) -> Any:
            raise UnreachableError("no stream")

        return refuse


def no_stream() -> Observer:
    """Return an observer whose methods all raise UnreachableError, also that for events."""
    observer: Any = _NoStream()
    return observer  # type: ignore[no-any-return]
