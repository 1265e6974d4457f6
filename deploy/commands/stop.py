"""``forebay stop``: ends the driver at work, after a drain if asked."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import click

from deploy.commands.status import TIMEOUT_SECONDS
from deploy.console.invocation import FINE, FOUND, Invocation, example, pass_invocation, shared_options
from forebay.messages import OperatorAnswer, StopRequest
from forebay.model.units import parse_duration

_LOOK_SECONDS = 0.2
#: a driver that has finished its jobs frees what it holds, Spark above all
_END_SECONDS = 60.0


class DurationType(click.ParamType[float]):
    """A duration as in the settings: ``30s``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return float(parse_duration(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


@click.command(
    short_help="End the driver, after a drain if asked.", epilog=example("forebay stop", "forebay stop --drain")
)
@click.option("--drain", is_flag=True, help="Receivers drain first, and all that was taken in is completed.")
@click.option(
    "--timeout",
    "seconds",
    metavar="DURATION",
    type=DurationType(),
    help="How long a drain may take, as in 30s [default: driver.stop_timeout]; what is not completed then waits.",
)
@shared_options
@pass_invocation
def stop(invocation: Invocation, drain: bool, seconds: float | None) -> int:
    """End the driver that is at work, and wait until it has ended.

    Without --drain the running jobs finish; receivers go on, and keep what they have until the next driver. Exits with 1 if
    the driver is still there when the time is over.
    """
    from forebay.http.driver_client import DriverClient

    settings = invocation.settings()
    client = DriverClient.of(settings, TIMEOUT_SECONDS)
    try:
        request = StopRequest(drain=drain, timeout_seconds=seconds or 0.0)
        answer = client.post("/v1/operator/stop", request, OperatorAnswer)
        leader = client.url
    finally:
        client.close()
    invocation.say(answer.message)
    allowed = (seconds or settings.driver.stop_timeout) + _END_SECONDS
    stopped = _await_end(leader, allowed)
    words = "the driver has stopped" if stopped else f"the driver is still there after {allowed:g} s"
    invocation.write({"stopped": stopped, "message": words})
    invocation.say(words)
    return FINE if stopped else FOUND


def _await_end(url: str, seconds: float) -> bool:
    """Whether nobody listens at ``url`` any more, within the time."""
    parts = urlsplit(url)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection((parts.hostname or "", parts.port or 80), timeout=TIMEOUT_SECONDS).close()
        except OSError:
            return True
        threading.Event().wait(_LOOK_SECONDS)
    return False
