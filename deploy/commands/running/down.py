"""``forebay down``: stop the services that ``forebay up`` runs on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from deploy.commands.running.services import children
from deploy.console.invocation import FINDINGS, FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.parameters import DurationType
from deploy.console.progress import spinner
from deploy.supervision.run_lock import holder, lock_path
from forebay.settings.schema import Settings


@click.command(epilog=example("forebay down", "forebay down --timeout 30s"))
@click.option(
    "--timeout",
    "seconds",
    metavar="DURATION",
    type=DurationType(),
    help="Maximum time to wait, as in 30s [default: as long as `forebay up` gives its services].",
)
@shared_options
@pass_invocation
def down(invocation: Invocation, seconds: float | None) -> int:
    """Stop what `forebay up` runs on this machine for this configuration's stream, and wait until it has stopped.

    The receivers drain first, then the driver stops, then the agent, as after Ctrl-C. With managed receivers, the agent stops
    before the driver. If services are still running when
    the time is over, the command exits with 1 and they continue to stop; a second `forebay down` kills them. If nothing runs,
    the command says so and exits with 0. It stops no services of systemd, and no driver of another machine.
    """
    settings = invocation.settings()
    allowed = seconds if seconds is not None else _stop_seconds(settings)
    with holder(lock_path(settings.agent.blocks, settings.stream)) as running:
        if running is None:
            message = f"no `forebay up` of stream {settings.stream!r} runs on this machine"
            return _finish(invocation, FINE, "not running", message)
        running.terminate()
        with spinner(f"stopping process {running.pid}"):
            ended = running.wait(allowed)
    if ended:
        message = f"process {running.pid} has stopped all services of stream {settings.stream!r}"
        return _finish(invocation, FINE, "stopped", message)
    message = (
        f"process {running.pid} is still stopping services after {allowed:g} s; a second `forebay down` kills them"
    )
    return _finish(invocation, FINDINGS, "stopping", message)


def _stop_seconds(settings: Settings) -> float:
    """Return the time in which `forebay up` stops or kills all services, rank by rank, with some reserve."""
    by_rank: dict[int, float] = {}
    for child in children(settings, Path("forebay.toml"), range(1, 2)):
        by_rank[child.stop_rank] = max(by_rank.get(child.stop_rank, 0.0), child.stop_seconds)
    return sum(by_rank.values()) + 5.0


def _finish(invocation: Invocation, code: int, state: str, message: str) -> int:
    if invocation.json:
        invocation.write({"state": state, "message": message})
    invocation.say(message)
    return code
