"""``forebay restart-receiver``: drain a receiver and have it started again."""

from __future__ import annotations

import click

from deploy.console.driver_requests import post
from deploy.console.invocation import (
    FINE,
    Invocation,
    because_option,
    example,
    pass_invocation,
    person,
    shared_options,
)
from forebay.messages import OperatorAnswer, RestartReceiverRequest


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
    request = RestartReceiverRequest(receiver_id=receiver_id, cause=person(because))
    answer = post(invocation.settings(), "/v1/operator/restart-receiver", request, OperatorAnswer)
    invocation.write({"message": answer.message})
    invocation.say(answer.message)
    return FINE
