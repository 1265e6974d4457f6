"""``forebay top``: the stream at a glance, live in a terminal; once if stdout is no terminal."""

from __future__ import annotations

import queue
import sys
from typing import TYPE_CHECKING

import click

from deploy.commands.inspection.top.feed import Feed, everything
from deploy.commands.inspection.top.screen import Answers, Screen, disconnected, pressed, received
from deploy.console.driver_requests import observer
from deploy.console.invocation import FINDINGS, FINE, Invocation, example, pass_invocation, shared_options
from forebay.process.clock import Clock, SystemClock
from forebay.process.signals import stop_signals

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.client import Client

#: width of a snapshot in a pipe
_PIPE_WIDTH = 160
#: time after which the ages on the screen are written again
_TICK_SECONDS = 1.0


@click.command(epilog=example("forebay top", "forebay top --once", "forebay top --json | jq .lag_records"))
@click.option("--once", is_flag=True, help="Print one snapshot and exit, also on a terminal.")
@shared_options
@pass_invocation
def top(invocation: Invocation, once: bool) -> int:
    """Show the stream at a glance, live: problems with their next step, the way of a record from Kafka to committed with rate,
    waiting records and delay at each step, lag, and lists of batches, receivers, partitions and hosts.

    \b
    q            quit
    p or space   pause the display; p again continues
    ← → or tab   show another list
    ↑ ↓ PgUp PgDn  scroll the list

    If stdout is no terminal, the command prints one snapshot without colour, and exits with 1 if the stream has a problem. With
    --json it prints the overview as JSON. NO_COLOR switches colours off.
    """
    with observer(invocation.settings()) as client:
        if invocation.json:
            overview = client.overview()
            invocation.write(overview)
            return FINDINGS if overview.problem_count else FINE
        console = invocation.console()
        if once or not (sys.stdout.isatty() and sys.stdin.isatty()) or console.is_dumb_terminal:
            return _print_once(console, client, SystemClock())
        return _live(console, client, SystemClock())


def _print_once(console: Console, client: Client, clock: Clock) -> int:
    from deploy.commands.inspection.top.view import snapshot

    answers = everything(client, clock)
    width = console.width if console.is_terminal else _PIPE_WIDTH
    console.print(snapshot(Screen(client.url, answers), width, answers.at), soft_wrap=True)
    return FINDINGS if answers.overview.problem_count else FINE


def _live(console: Console, client: Client, clock: Clock) -> int:
    from rich.live import Live

    from deploy.commands.inspection.top.keys import keyboard
    from deploy.commands.inspection.top.view import view

    screen = Screen(client.url)
    changes: queue.SimpleQueue[Answers | str] = queue.SimpleQueue()

    with keyboard(sys.stdin.fileno()) as keys:

        def change(one: Answers | str) -> None:
            changes.put(one)
            keys.wake()

        feed = Feed(client, clock, wanted=lambda: screen.shown_list, show=change, fail=change)
        stopped = False

        def stop() -> None:
            nonlocal stopped
            stopped = True
            keys.wake()

        with stop_signals(stop), Live(console=console, screen=True, auto_refresh=False) as live:
            feed.start()
            while not (screen.ended or stopped or keys.closed or feed.error is not None):
                live.update(view(screen, console.width, console.height, clock.monotonic()), refresh=True)
                for key in keys.read(_TICK_SECONDS):
                    screen = pressed(screen, key)
                while not changes.empty():
                    one = changes.get()
                    screen = received(screen, one) if isinstance(one, Answers) else disconnected(screen, one)
        feed.stop()
    if feed.error is not None:
        raise feed.error
    return FINE
