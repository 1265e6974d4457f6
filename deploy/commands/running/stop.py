"""``forebay stop``: stop the running driver, with or without a drain."""

from __future__ import annotations

import socket
import threading
import time
from urllib.parse import urlsplit

import click

from deploy.console.driver_requests import TIMEOUT_SECONDS, operator
from deploy.console.invocation import FINDINGS, FINE, Invocation, example, pass_invocation, person, shared_options
from deploy.console.parameters import DurationType
from deploy.console.progress import spinner

_POLL_SECONDS = 0.2
#: time for a driver to exit after its last job; stopping Spark takes most of it
_END_SECONDS = 60.0


@click.command(epilog=example("forebay stop", "forebay stop --drain"))
@click.option("--drain", is_flag=True, help="Drain the receivers first, and complete all records taken in.")
@click.option(
    "--timeout",
    "seconds",
    metavar="DURATION",
    type=DurationType(),
    help="Maximum time of a drain, as in 30s; the rest waits for the next driver [default: driver.stop_timeout].",
)
@shared_options
@pass_invocation
def stop(invocation: Invocation, drain: bool, seconds: float | None) -> int:
    """Stop the running driver, and wait until it has exited.

    Without --drain, running jobs finish, and receivers continue; they keep unreported blocks for the next driver. Use --drain
    before a planned end of the stream. Exits with 1 if the driver is still running when the time is over.
    """
    settings = invocation.settings()
    with operator(settings) as client:
        invocation.say(client.stop(drain=drain, timeout_seconds=seconds or 0.0, cause=person()))
        leader = client.url
    allowed = (seconds or settings.driver.stop_timeout) + _END_SECONDS
    with spinner("waiting for the driver to end"):
        stopped = _await_end(leader, allowed)
    message = "the driver has stopped" if stopped else f"the driver is still running after {allowed:g} s"
    invocation.write({"stopped": stopped, "message": message})
    invocation.say(message)
    return FINE if stopped else FINDINGS


def _await_end(url: str, seconds: float) -> bool:
    """Wait until no process listens at ``url``. False if one still does after ``seconds``."""
    parts = urlsplit(url)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection((parts.hostname or "", parts.port or 80), timeout=TIMEOUT_SECONDS).close()
        except OSError:
            return True
        threading.Event().wait(_POLL_SECONDS)
    return False
