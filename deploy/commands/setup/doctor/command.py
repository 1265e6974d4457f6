"""``forebay doctor``: checks this machine, Kafka, the stores, the services and the clocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploy.commands.setup.doctor.findings import PROBLEMS, Finding, of_check
from deploy.commands.setup.doctor.machine import check_machine
from deploy.commands.setup.validation import check_configuration
from deploy.console.invocation import FINDINGS, FINE, Invocation, example, pass_invocation, shared_options
from forebay.model.errors import SettingsError
from forebay.model.text import printable
from forebay.process.clock import Clock, SystemClock
from forebay.settings.reading.load import load_if_right

if TYPE_CHECKING:
    from rich.console import Console

#: outcome → style on a terminal
_STYLES = {"fine": "green", "note": "yellow", "wrong": "bold red", "unreachable": "bold red", "unknown": "dim"}


def diagnose(config_path: Path, clock: Clock) -> Iterator[Finding]:
    """Yield each finding when its check is done.

    If the configuration is wrong, only this machine is checked further. If no broker answers, Kafka is not examined further.
    """
    settings = load_if_right(config_path)
    yield from check_machine(settings)
    kafka_answers = False
    for check in check_configuration(config_path):
        if check.name == "java":
            continue  # check_machine says more
        kafka_answers |= check.name == "broker" and check.outcome == "fine"
        yield of_check(check)
    if settings is None:
        return
    from deploy.commands.setup.doctor.brokers import check_brokers
    from deploy.commands.setup.doctor.services import check_services
    from deploy.commands.setup.doctor.stores import check_stores

    if kafka_answers:
        yield from check_brokers(settings, clock.wall_ms())
    yield from check_stores(settings, clock)
    yield from check_services(settings, clock)


@click.command(epilog=example("forebay doctor", "forebay doctor --json | jq '.[] | select(.step != \"\")'"))
@shared_options
@pass_invocation
def doctor(invocation: Invocation) -> int:
    """Check everything that a stream needs on this machine, and print each finding with its next step.

    The command checks Python, packages and Java; the configuration, as `forebay validate` does; brokers with their releases,
    rights on topics and groups, and replicas; space, sync speed, latency and clock of the stores; ports; the running driver,
    its clock, and how many blocks tasks read on their own host. Run it on each host.

    It writes small files or objects to the stores to measure them, and deletes these again. It exits with 1 if a check
    found a problem, else with 0.
    """
    try:
        path = invocation.config_path
    except SettingsError as error:
        findings = [*check_machine(None), Finding("configuration", "configuration", "wrong", str(error), "")]
        _show(invocation, iter(findings))
        return FINDINGS
    return FINDINGS if _show(invocation, diagnose(path, SystemClock())) else FINE


def _show(invocation: Invocation, findings: Iterator[Finding]) -> int:
    """Print each finding when it is known, or all as one JSON document. Return the number of problems."""
    found = []
    console = None if invocation.json else invocation.console()
    for finding in findings:
        found.append(finding)
        if console is not None:
            _print(console, finding)
    if console is None:
        invocation.write(found)
    problems = sum(finding.outcome in PROBLEMS for finding in found)
    notes = sum(finding.outcome == "note" for finding in found)
    invocation.say(f"forebay: {len(found)} checks, {problems} problems, {notes} notes")
    return problems


def _print(console: Console, finding: Finding) -> None:
    from rich.text import Text

    line = Text(f"{finding.outcome:<12}", _STYLES[finding.outcome])
    line.append(printable(f"{finding.area} · {finding.name}: {finding.detail}"), "default")
    console.print(line, soft_wrap=True)
    if finding.step:
        console.print(Text(f"{'':12}→ {printable(finding.step)}"), soft_wrap=True)
