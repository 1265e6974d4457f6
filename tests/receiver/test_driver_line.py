"""What the receiver asks the driver."""

from __future__ import annotations

import queue
from typing import Any, cast

import pytest

from forebay import messages as m
from forebay.http.driver_client import DriverClient
from receiver import actions as act
from receiver import driver_line
from receiver import inputs as inp
from receiver.driver_line import DriverLine


class Answering:
    """A driver that answers everything alike."""

    def post(self, path: str, body: Any, answer: type[Any]) -> Any:
        return m.Done()


def test_a_line_that_breaks_is_told_and_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-5: a receiver that hears no answer any more ends, rather than wait for it."""

    def broken(request: int, answer: Any) -> inp.Input:
        raise TypeError("a fault")

    monkeypatch.setitem(driver_line.ROUTES, act.Release, driver_line._Route("/v1/x", m.Done, broken))
    told: queue.SimpleQueue[inp.Input] = queue.SimpleQueue()
    with DriverLine("reports", cast(DriverClient, Answering()), told.put) as line:
        line.send(act.Release(1, cast(Any, None)))
        assert isinstance(told.get(timeout=30), inp.Broken)
        line.send(act.Release(2, cast(Any, None)))
        assert isinstance(told.get(timeout=30), inp.Broken)
