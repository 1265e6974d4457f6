"""``forebay pause`` and ``forebay resume``: whether batches begin."""

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


@click.command(epilog=example('forebay pause --cause "maintenance of the warehouse"'))
@because_option
@shared_options
@pass_invocation
def pause(invocation: Invocation, because: str) -> int:
    """Begin no more batches until `forebay resume`. Receivers continue to take records in.

    Jobs that run continue to their end. A failed batch is not tried again during the pause. The journal keeps the pause, so
    it outlasts restarts of the driver. `forebay status` shows it. No batch is made: blocks wait.
    """
    return _request(invocation, True, because)


@click.command(epilog=example("forebay resume"))
@because_option
@shared_options
@pass_invocation
def resume(invocation: Invocation, because: str) -> int:
    """Begin batches again after `forebay pause`."""
    return _request(invocation, False, because)


def _request(invocation: Invocation, paused: bool, because: str) -> int:
    with operator(invocation.settings()) as client:
        message = (client.pause if paused else client.resume)(cause=person(because))
    invocation.write({"paused": paused, "message": message})
    invocation.say(message)
    return FINE
