"""``forebay wal``: the commands that look at the write-ahead log, and mend it."""

from __future__ import annotations

import click

from deploy.commands import LazyGroup
from deploy.invocation import example, shared_options

#: command → its module
_COMMANDS = {
    "inspect": "deploy.log_inspection",
    "verify": "deploy.verification",
    "follow": "deploy.follow",
    "repair": "deploy.repair",
    "export": "deploy.export",
    "retention": "deploy.retention_report",
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
