"""``forebay token``: make access tokens for the services."""

from __future__ import annotations

import secrets

import click

from deploy.commands.setup.installation import TOKEN_BYTES
from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from forebay.security.roles import ROLES, parse_tokens


@click.group(epilog=example("forebay token new operator >> tokens"))
@shared_options
def token() -> None:
    """Make access tokens, by which the services of a stream know the role of a client.

    A token file (security.token_file) has one line for each token, as `forebay token new` prints it. A service accepts the
    token of every line; a client sends the first token of its role. Services read the file again when it changes.
    """


@token.command(
    short_help="Print a line with a new token.",
    epilog=example(
        "forebay token new operator >> tokens", "forebay token new receiver:r1", "forebay token new agent:host1"
    ),
)
@click.argument("role", metavar="ROLE[:NAME]")
@shared_options
@pass_invocation
def new(invocation: Invocation, role: str) -> int:
    """Print a line for a token file, with a new random token.

    ROLE is receiver, agent, task (Spark tasks of the batch job), query (queries over the intake), reader (dashboards and
    Prometheus: all that the driver shows, without records) or operator. With NAME, a receiver's token is valid only for that
    receiver id, and an agent's only for that host. Other users must not be able to read the file (`umask 077`).
    """
    if role.partition(":")[0] not in ROLES:
        raise click.UsageError(f"{role}: unknown role; roles are {', '.join(ROLES)}, as in receiver:r1")
    made = secrets.token_urlsafe(TOKEN_BYTES)
    parse_tokens(f"{role} {made}", "ROLE[:NAME]")
    if invocation.json:
        invocation.write({"role": role, "token": made})
    else:
        click.echo(f"{role} {made}")
    return FINE
