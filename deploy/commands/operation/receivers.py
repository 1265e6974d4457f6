"""``forebay restart-receiver``: drain a receiver and have it started again."""

from __future__ import annotations

import click

from deploy.console.driver_requests import operator
from deploy.console.invocation import (
    FINE,
    Invocation,
    because_option,
    example,
    pass_invocation,
    person,
    shared_options,
)


@click.command("restart-receiver", epilog=example("forebay restart-receiver h1-1"))
@click.argument("receiver_id", metavar="ID")
@because_option
@shared_options
@pass_invocation
def restart_receiver(invocation: Invocation, receiver_id: str, because: str) -> int:
    """Drain the receiver ID, and have it started again. No record is lost or repeated.

    The receiver seals, stores, reports and commits the records that it has taken in, and exits. Its agent starts a managed
    receiver again. `forebay up` and systemd start the others again, because they exit with 6. The driver does not keep the
    request over a restart of its own.
    """
    with operator(invocation.settings()) as client:
        message = client.restart_receiver(receiver_id, cause=person(because))
    invocation.write({"message": message})
    invocation.say(message)
    return FINE
