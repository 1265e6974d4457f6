"""``forebay forget``: stop reporting a receiver or host that was removed on purpose."""

from __future__ import annotations

import click

from deploy.console.driver_requests import operator
from deploy.console.invocation import FINE, Invocation, example, pass_invocation, person, shared_options


@click.command(
    epilog=example("forebay forget h7", "forebay forget r1"),
)
@click.argument("name", metavar="NAME")
@shared_options
@pass_invocation
def forget(invocation: Invocation, name: str) -> int:
    """Tell the driver that NAME, a receiver or the host of an agent, was removed on purpose.

    `forebay status` then no longer reports its silence as a problem. Nothing else changes. If the receiver or the agent
    returns, the driver knows it again. The driver does not keep this over a restart.
    """
    with operator(invocation.settings()) as client:
        message = client.forget(name, cause=person())
    invocation.write({"message": message})
    invocation.say(message)
    return FINE
