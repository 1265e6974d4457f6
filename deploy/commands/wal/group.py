"""``forebay wal``: the commands on the write-ahead log."""

from __future__ import annotations

import click

from deploy.console.groups import Entry, LazyGroup
from deploy.console.invocation import example, shared_options

#: heading in the help → command → its module and its line in the help
_COMMANDS = {
    "Commands": {
        "inspect": Entry("deploy.commands.wal.inspection", "Show segments, frames and offset ranges."),
        "verify": Entry(
            "deploy.commands.wal.verification", "Verify all checksums, and compare the WAL with the journal."
        ),
        "follow": Entry("deploy.commands.wal.follow", "Print frames as they are written."),
        "repair": Entry("deploy.commands.wal.repair", "Restore damaged frames from copies, in place."),
        "export": Entry("deploy.commands.wal.export", "Write records to Parquet files, or into a topic."),
        "retention": Entry("deploy.commands.wal.retention", "Show which segments the next clean-up deletes, and why."),
    }
}


@click.group(cls=LazyGroup, sections=_COMMANDS, epilog=example("forebay wal inspect", "forebay wal verify"))
@shared_options
def wal() -> None:
    """Inspect, verify, repair or export the write-ahead log (WAL) of the stream."""
