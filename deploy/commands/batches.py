"""``forebay batch``: what an operator asks of batches."""

from __future__ import annotations

import click

from deploy.commands.status import TIMEOUT_SECONDS
from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from forebay.messages import OperatorAnswer, RetryRequest


@click.group(short_help="Try failed batches again.", epilog=example("forebay batch retry"))
@shared_options
def batch() -> None:
    """Operations on batches. `forebay status` shows the batches."""


@batch.command(short_help="Try failed batches again now.", epilog=example("forebay batch retry"))
@shared_options
@pass_invocation
def retry(invocation: Invocation) -> int:
    """Begin the next attempt at every failed or unreadable batch now, instead of after its delay.

    The driver runs the code that it has loaded: after a change of the job, start the driver again instead.
    """
    from forebay.http.driver_client import DriverClient

    client = DriverClient.of(invocation.settings(), TIMEOUT_SECONDS)
    try:
        answer = client.post("/v1/operator/retry", RetryRequest(), OperatorAnswer)
    finally:
        client.close()
    invocation.write({"message": answer.message})
    invocation.say(answer.message)
    return FINE
