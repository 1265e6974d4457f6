"""Requests of a receiver to the driver."""

from __future__ import annotations

import queue
from typing import Any, cast

import pytest

from forebay import messages as m
from forebay.http.driver_client import DriverClient
from receiver import actions as act
from receiver import inputs as inp
from receiver.channels.driver_channel import DriverChannel


class Answering:
    """A driver that gives every request the same answer."""

    def post(self, path: str, body: Any, answer: type[Any]) -> Any:
        return m.Done()


def test_channel_that_breaks_reports_broken_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-5: the receiver then ends. It does not wait for answers that can no longer come."""

    def broken(request: int) -> inp.Released:
        raise TypeError("a fault")

    monkeypatch.setattr(inp, "Released", broken)
    inputs: queue.SimpleQueue[inp.Input] = queue.SimpleQueue()
    with DriverChannel("reports", cast(DriverClient, Answering()), inputs.put) as channel:
        channel.send(act.Release(1, cast(Any, None)))
        assert isinstance(inputs.get(timeout=30), inp.ThreadFailure)
        channel.send(act.Release(2, cast(Any, None)))
        assert isinstance(inputs.get(timeout=30), inp.ThreadFailure)
