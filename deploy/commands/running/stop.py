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
    before a planned end of the stream. Exits with 1 if the driver is still running when the time is over, or if its end can't be
    seen from here.
    """
    if seconds is not None and not drain:
        raise click.UsageError("--timeout limits a drain: add --drain, or remove --timeout")
    if seconds is not None and seconds <= 0:
        raise click.UsageError(
            "--timeout must be longer than 0s; to stop without a drain, remove --drain and --timeout"
        )
    settings = invocation.settings()
    with operator(settings) as client:
        invocation.say(client.stop(drain=drain, timeout_seconds=seconds or 0.0, cause=person()))
        leader = client.url
    allowed = (seconds or settings.driver.stop_timeout) + _END_SECONDS
    with spinner("waiting for the driver to end"):
        unseen = _await_end(leader, allowed)
    message = unseen or "the driver has stopped"
    invocation.write({"stopped": not unseen, "message": message})
    invocation.say(message)
    return FINDINGS if unseen else FINE


def _await_end(url: str, seconds: float) -> str:
    """Wait until no process listens at ``url``. Return "", or after ``seconds`` a sentence: why the end was not seen."""
    parts = urlsplit(url)
    deadline = time.monotonic() + seconds
    unseen = ""
    while (left := deadline - time.monotonic()) > 0:
        try:
            address = (parts.hostname or "", parts.port or 80)
            socket.create_connection(address, timeout=min(TIMEOUT_SECONDS, left)).close()
            unseen = ""
        except (ConnectionRefusedError, ConnectionResetError):
            return ""
        except OSError as error:  # a hung driver, a lost network or a name without an address: it may still run
            unseen = error.strerror or str(error)
        threading.Event().wait(_POLL_SECONDS)
    if unseen:
        return (
            f"after {seconds:g} s it is unknown whether the driver has stopped: {url} can't be reached ({unseen}); look at its "
            "process on its host"
        )
    return f"the driver is still running after {seconds:g} s; `forebay status` shows what it does"
