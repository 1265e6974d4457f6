"""``forebay demo``: all services on this machine, with real data and two crashes, and the audit at the end.

The demo loads the flights that left New York in 2013 into a topic, and a job adds up their delays per carrier. While data
flows, the demo kills a receiver and then the driver with SIGKILL; the supervisor of ``forebay up`` starts them again.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploy.commands.trial.demo_check import Outcome
from deploy.commands.trial.demo_run import run
from deploy.commands.trial.demo_screen import Screen
from deploy.console.invocation import FINDINGS, FINE, Invocation, example, pass_invocation, shared_options

if TYPE_CHECKING:
    from rich.console import Group


def tables(outcome: Outcome) -> list[Group]:
    """Return the tables of the delays and of the audit."""
    from deploy.commands.inspection import audit
    from deploy.console.table import table

    return [
        table(
            "Delays at arrival, flights from New York in 2013",
            ("carrier", "flights", "arrived", "mean minutes"),
            [(c.carrier, c.flights, c.arrived, f"{c.mean_minutes:7.2f}") for c in outcome.carriers],
        ),
        *audit.tables(outcome.audit),
    ]


@click.command(
    epilog=example("forebay demo", "forebay demo --broker kafka --keep /tmp/forebay-demo"),
)
@click.option(
    "--broker",
    type=click.Choice(["mock", "kafka"]),
    default="mock",
    show_default=True,
    help="Kind of broker. mock: librdkafka's mock; kafka: Apache Kafka, fetched at first use, needs Java.",
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Empty or new folder in which configuration, job, logs, WAL and journal are kept [default: deleted after success].",
)
@shared_options
@pass_invocation
def demo(invocation: Invocation, broker: str, keep: Path | None) -> int:
    """Load 336,776 real flights into a broker, add up their delays in Spark, and meanwhile kill a receiver and the driver.

    At the end the demo compares the delays per carrier with the data set, and runs the audit. Exits with 0 only if each record
    is in exactly one batch and the delays are right. Use it to see Forebay run on one machine without a configuration.
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"--keep {keep}: the folder is not empty")
    folder = Path(tempfile.mkdtemp(prefix="forebay-demo-")) if keep is None else keep.resolve()
    outcome = run(broker, folder, lambda total: Screen(total, sys.stderr.isatty()))
    invocation.write(outcome, lambda: tables(outcome))
    for difference in outcome.differences:
        invocation.say(f"forebay: {difference}")
    duplicates = sum(incarnation.duplicates for incarnation in outcome.audit.incarnations)
    missing = sum(incarnation.missing for incarnation in outcome.audit.incarnations)
    verdict = "all is right" if not outcome.differences else f"{len(outcome.differences)} differences"
    invocation.say(
        f"{outcome.records} records in {outcome.seconds:.0f} s, {' and '.join(outcome.kills)} killed meanwhile: "
        f"duplicates {duplicates}, missing {missing}, {verdict}"
    )
    if outcome.differences:
        invocation.say(f"all files of the demo are kept in {folder}")
        return FINDINGS
    if keep is None:
        shutil.rmtree(folder)
    return FINE
