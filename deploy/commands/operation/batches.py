"""``forebay batch``: retry failed batches."""

from __future__ import annotations

import click

from deploy.console.driver_requests import post
from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from forebay.messages import OperatorAnswer, RetryRequest


@click.group(epilog=example("forebay batch retry"))
@shared_options
def batch() -> None:
    """Retry failed batches. `forebay status` shows the batches and their states."""


@batch.command(short_help="Retry all failed batches now.", epilog=example("forebay batch retry"))
@shared_options
@pass_invocation
def retry(invocation: Invocation) -> int:
    """Start the next attempt at every failed or unreadable batch now, instead of after its delay.

    Use it when the cause outside the job is fixed. The driver runs the code that it has loaded: after a change of the job's
    code, restart the driver instead.
    """
    answer = post(invocation.settings(), "/v1/operator/retry", RetryRequest(), OperatorAnswer)
    invocation.write({"message": answer.message})
    invocation.say(answer.message)
    return FINE
