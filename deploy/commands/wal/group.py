"""``forebay wal``: the commands that look at the write-ahead log, and mend it."""

from __future__ import annotations

import click

from deploy.console.groups import LazyGroup
from deploy.console.invocation import example, shared_options

#: command → its module
_COMMANDS = {
    "inspect": "deploy.commands.wal.inspection",
    "verify": "deploy.commands.wal.verification",
    "follow": "deploy.commands.wal.follow",
    "repair": "deploy.commands.wal.repair",
    "export": "deploy.commands.wal.export",
    "retention": "deploy.commands.wal.retention",
}


@click.group(
    cls=LazyGroup,
    modules=_COMMANDS,
    short_help="Look at the write-ahead log, verify it, mend it.",
    epilog=example("forebay wal inspect", "forebay wal verify"),
)
@shared_options
def wal() -> None:
    """Look at the write-ahead log, verify it, mend it."""
