"""``forebay forget``: a receiver or a host is gone on purpose."""

from __future__ import annotations

import click

from deploy.commands.status import TIMEOUT_SECONDS
from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from forebay.messages import ForgetRequest, OperatorAnswer


@click.command(
    short_help="Stop waiting for a receiver or host that is gone.",
    epilog=example("forebay forget h7", "forebay forget r1"),
)
@click.argument("name", metavar="NAME")
@shared_options
@pass_invocation
def forget(invocation: Invocation, name: str) -> int:
    """Tell the driver that the receiver or the agent's host NAME is not to come back.

    `forebay status` no longer calls its silence a problem. Nothing else changes. A receiver or an agent that comes back is
    known again. The driver forgets this when it ends.
    """
    from forebay.http.driver_client import DriverClient

    client = DriverClient.of(invocation.settings(), TIMEOUT_SECONDS)
    try:
        answer = client.post("/v1/operator/forget", ForgetRequest(name=name), OperatorAnswer)
    finally:
        client.close()
    invocation.write({"message": answer.message})
    invocation.say(answer.message)
    return FINE
