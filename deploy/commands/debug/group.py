"""``forebay debug``: collects what another person needs to understand a stream."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from deploy.commands.debug import parts
from deploy.commands.debug.bundle import Bundle
from deploy.commands.debug.secrets import known_secrets
from deploy.commands.setup.doctor.command import diagnose
from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.progress import spinner
from forebay.model.errors import SettingsError, UnreachableError, UsageError
from forebay.process.clock import SystemClock
from forebay.settings.in_force import in_force
from forebay.settings.reading.load import load_if_right, mistakes
from forebay.settings.schema import Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


@click.group(epilog=example("forebay debug bundle"))
@shared_options
def debug() -> None:
    """Collect what another person needs to understand a stream."""


@debug.command(
    short_help="Write status, settings, versions, logs and threads to one archive, without secrets.",
    epilog=example("forebay debug bundle", "forebay debug bundle --logs /var/log/forebay --output /tmp/flights.tar.gz"),
)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Archive to write [default: forebay-STREAM-TIME.tar.gz in the current folder].",
)
@click.option(
    "--logs",
    metavar="FOLDER",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with the services' logs [default: that of the running `forebay up --logs`].",
)
@click.option("--no-logs", is_flag=True, help="Leave the services' logs out.")
@click.option("--doctor/--no-doctor", default=True, help="Include the findings of `forebay doctor` [default: yes].")
@shared_options
@pass_invocation
def bundle(invocation: Invocation, output: Path | None, logs: Path | None, no_logs: bool, doctor: bool) -> int:
    """Write one archive with the status of the stream, its settings, versions, logs, threads and an inspection of the journal.

    Passwords, tokens, keys and credentials are removed from every file. The command reads no blocks. But logs and errors hold
    what your job prints and raises, which may be records. The archive also holds names of hosts and topics, and offsets: read it
    before you pass it on. What can't be collected, such as the answer of a driver that does not run, is listed in contents.json
    with the reason.
    """
    if no_logs and logs is not None:
        raise UsageError("--logs and --no-logs exclude each other: remove one of them")
    path = invocation.config_path
    raw = raw_values(path)
    settings = load_if_right(path)
    clock = SystemClock()
    now = datetime.fromtimestamp(clock.wall_ms() / 1000, timezone.utc)
    stream = settings.stream if settings is not None else "unknown"
    name = f"forebay-{stream}-{now:%Y%m%dT%H%M%SZ}"
    made = Bundle(known_secrets(raw, os.environ))
    with spinner("collecting"):
        _collect(made, path, settings)
        if settings is not None and not no_logs:
            for file, text in parts.logs(settings, logs):
                made.add(file, text)
        if doctor:
            made.add("doctor.json", lambda: list(diagnose(path, clock)))
    target = output or Path(f"{name}.tar.gz")
    made.write(target, name, now.timestamp())
    missing = [part for part in made.parts if part.error]
    invocation.write({"path": str(target.resolve()), "bytes": target.stat().st_size, "parts": made.parts})
    if not invocation.json:
        click.echo(str(target))
    for part in missing:
        invocation.say(f"forebay: without {part.name}: {part.error}")
    invocation.say(
        f"forebay: {len(made.parts) - len(missing)} files without secrets; read them before you pass them on"
    )
    return FINE


def raw_values(path: Path) -> dict[str, Any]:
    """Return the file's values, to find secrets in them; {} if it can't be read, which the bundle then shows."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return values
    except (OSError, ValueError, RecursionError):  # deep nesting
        return {}


def _collect(made: Bundle, path: Path, settings: Settings | None) -> None:
    made.add("versions.json", parts.versions)
    made.add("environment.json", lambda: parts.environment(os.environ))
    made.add("processes.json", parts.processes)
    if settings is None:
        made.add("configuration.json", lambda: [str(error) for error in mistakes(path)])
        return
    made.add("settings.json", lambda: list(in_force(settings)))
    for make in (parts.answers_of_driver, parts.answers_of_agent):
        for name, answer in make(settings):
            if isinstance(made.add(name, answer), (UnreachableError, SettingsError)):
                break  # its other answers would fail in the same way
    made.add("journal.json", lambda: parts.journal(settings))
