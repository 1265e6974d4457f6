"""``forebay install``: put user, folders, configuration, tokens and units on one host, or remove the units."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from deploy.commands.setup.host import Host, Step
from deploy.commands.setup.installation import (
    CONFIGURATION,
    EXAMPLE,
    ROLES,
    SYSUSERS,
    TOKENS,
    UNIT_FOLDER,
    UNITS,
    USER,
    Installation,
    Role,
    first_configuration,
    new_tokens,
    other_token_file,
    plan_installation,
    unit_path,
)
from deploy.console.invocation import FINE, Invocation, changing_options, example, pass_invocation, shared_options
from forebay.model.errors import SettingsError, UsageError
from forebay.security.roles import parse_tokens
from forebay.settings.reading.load import load
from forebay.settings.schema import Settings

#: folders that the units hide from the services, which therefore can't run a program in them
_HIDDEN = ("/root", "/home", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  nothing is written there


#: outcome → its form in a dry run
WOULD = {
    "made": "would make",
    "written": "would write",
    "replaced": "would replace",
    "removed": "would remove",
    "run": "would run",
    "kept": "would keep",
    "left": "would leave",
}


@click.command(
    epilog=example(
        "forebay install --apply",
        "forebay install --role agent --role receiver --apply",
        "forebay install --uninstall --apply",
    ),
)
@click.option(
    "--role",
    "roles",
    type=click.Choice(ROLES),
    multiple=True,
    help="Service of this host; repeatable [default: those whose units the host has; all if it has none].",
)
@click.option(
    "--prefix",
    metavar="DIR",
    default="/",
    type=click.Path(path_type=Path, file_okay=False),
    help="Root of the host's files, for the build of an image or for a look at the files [default: /].",
)
@click.option(
    "--program",
    metavar="FILE",
    help="Path of the forebay command on that host [default: the path of this command].",
)
@click.option(
    "--configuration",
    "given",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="First content of forebay.toml [default: the example for one machine].",
)
@click.option(
    "--tokens",
    "given_tokens",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="First content of the token file [default: new tokens on the driver's host].",
)
@click.option(
    "--uninstall", is_flag=True, help="Stop the services and remove the units; data and configuration are kept."
)
@changing_options
@shared_options
@pass_invocation
def install(
    invocation: Invocation,
    roles: tuple[Role, ...],
    prefix: Path,
    program: str | None,
    given: Path | None,
    given_tokens: Path | None,
    uninstall: bool,
    yes: bool,
) -> int:
    """Set up this host: create the user, folders (mode 0700), configuration, tokens (mode 0600) and systemd units.

    Existing forebay.toml and token files are never changed. A repeated call changes only what differs; repeat it after an
    upgrade, to update the units. With --uninstall, the command stops the services and removes the units, and prints where
    data, configuration and user remain. Without --apply it only prints what it would do. Needs no network.
    """
    host = Host(prefix, yes)
    real = host.is_system
    if real and yes and os.geteuid() != 0:
        raise UsageError("install changes the system: run it as root, or add --prefix DIR to only look at the files")
    command = program or str(Path(sys.prefix) / "bin" / "forebay")
    if not os.path.isabs(command) or any(sign in command for sign in " \t\"'%$\\"):
        raise UsageError(f"--program {command}: write an absolute path without spaces, quotes, %, $ and \\")
    if real and not uninstall:
        _require_visible(command)
    present = tuple(role for role in ROLES if host.has(unit_path(role)))
    default = present or ROLES
    configuration = _checked_configuration(given) if given is not None else first_configuration()
    source = host.at(CONFIGURATION) if host.has(CONFIGURATION) else given
    settings = _checked_settings(source, uninstall)
    tokens = _checked_tokens(given_tokens) if given_tokens is not None else new_tokens(roles or default)
    wanted = plan_installation(roles or default, command, settings, configuration, tokens)
    booted = real and Path("/run/systemd/system").exists()
    steps = _uninstalled(host, wanted, roles or default, booted) if uninstall else _installed(host, wanted, booted)
    if not roles and not uninstall:
        invocation.say(_reason_for_roles(present, host))
    where = "on this host" if real else f"below {prefix.resolve()}"
    if not invocation.json:
        click.echo(f"{'what is done' if yes else 'what would be done'} {where}:")
    done = []
    for step in steps:
        done.append(step)
        if not invocation.json:
            outcome = step.outcome if yes else WOULD.get(step.outcome, step.outcome)
            click.echo(f"{outcome:<15}{step.what}{f'  ({step.detail})' if step.detail else ''}")
    if invocation.json:
        invocation.write(done)
    if not yes:
        invocation.say(f"nothing was changed {where}: add --apply to do it")
    elif not uninstall:
        invocation.say(f"done {where}")
        invocation.say(_next_steps(done, roles or default, command, host))
    return FINE


def _installed(host: Host, wanted: Installation, booted: bool) -> Iterator[Step]:
    yield from host.put(wanted)
    if os.geteuid() == 0:
        yield host.run("systemd-sysusers", f"--root={host.at('/')}", Path(SYSUSERS).name)
        yield from host.give(wanted, USER)
    else:
        yield Step("left", f"user {USER}", "only root can create it and change the owner of the files")
    if booted:
        yield host.run("systemctl", "daemon-reload")


def _uninstalled(host: Host, wanted: Installation, roles: Sequence[Role], booted: bool) -> Iterator[Step]:
    # systemctl refuses all units if one does not exist
    units = [UNITS[role] for role in roles if host.has(unit_path(role))]
    if booted and units:
        yield host.run("systemctl", "disable", *units)
        # receivers first, while the driver still accepts their reports
        for name in sorted(units, key=lambda name: ("receiver" not in name, "agent" not in name)):
            yield host.run("systemctl", "stop", name.replace("@.", "@*."))
    others = [UNITS[role] for role in ROLES if role not in roles and host.has(unit_path(role))]
    files = tuple(file for file in wanted.files if not (others and file.path == SYSUSERS))
    yield from host.take_away(replace(wanted, files=files))
    if booted:
        yield host.run("systemctl", "daemon-reload")


def _checked_configuration(given: Path) -> str:
    """Return the content of ``given``. Raises SettingsError."""
    try:
        return given.read_bytes().decode()
    except OSError as error:
        raise SettingsError(f"--configuration: {given}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"--configuration: {given} is not UTF-8 text ({error}): save it as UTF-8") from None


def _checked_settings(source: Path | None, uninstall: bool) -> Settings | None:
    """Return the settings in the configuration ``source``; of the example without one; None if ``uninstall`` can't read them.

    They are checked before any change: a release that can't read the configuration must not replace one that can.
    Raises SettingsError.
    """
    try:
        settings = load(source or EXAMPLE, {})
    except SettingsError:
        if not uninstall:
            raise
        return None
    if source is not None and not uninstall and (problem := other_token_file(settings)):
        raise SettingsError(f"{source}: {problem}. Nothing was changed", "security.token_file")
    return settings


def _checked_tokens(given: Path) -> str:
    """Return the content of ``given``, if services can read it. Raises SettingsError, which never contains a token."""
    try:
        text = given.read_bytes().decode("ascii")
    except UnicodeDecodeError:
        raise SettingsError(f"--tokens: {given} is not ASCII text") from None
    parse_tokens(text, f"--tokens: {given}")
    return text


def _require_visible(command: str) -> None:
    for path in dict.fromkeys((command, os.path.realpath(Path(command).with_name("python")))):
        if not os.path.exists(path):
            raise UsageError(
                f"{path} does not exist: install the wheel into a virtual environment, for example /opt/forebay"
            )
        hidden = next((folder for folder in _HIDDEN if path.startswith(f"{folder}/")), None)
        if hidden is not None:
            raise UsageError(
                f"{path} is in {hidden}, which the services can't see: create the virtual environment elsewhere, for example "
                "in /opt/forebay, from a Python outside these folders"
            )


def _reason_for_roles(present: Sequence[Role], host: Host) -> str:
    """Return the sentence about the roles of a call without --role."""
    folder = host.at(UNIT_FOLDER)
    if present:
        return f"roles: {', '.join(present)}, because their units are in {folder}; add another one with --role"
    return f"roles: {', '.join(ROLES)}, because {folder} has no unit of Forebay; choose some of them with --role"


def _next_steps(done: Sequence[Step], roles: Sequence[Role], program: str, host: Host) -> str:
    """Return the commands that start new units, and those that restart the others after an upgrade."""
    written = {step.what for step in done if step.outcome == "written"}
    if not any(glob.glob(str(host.at(f"{UNIT_FOLDER}/*.wants/{UNITS[role].replace('@', '@*')}"))) for role in roles):
        written |= {unit_path(role) for role in roles}  # none is enabled: an earlier call ended before it printed this
    new = [_instance(role) for role in roles if unit_path(role) in written]
    others = [_instance(role) for role in ROLES if role in roles and unit_path(role) not in written]
    check = f"{program} --config {CONFIGURATION} validate"
    steps = [check]
    if new:
        steps = [
            f"edit {host.at(CONFIGURATION)} and {host.at(TOKENS)}",
            check,
            f"systemctl enable --now {' '.join(new)}",
        ]
    if others:
        steps.append(
            f"after an upgrade, one after another: {', '.join(f'systemctl restart {unit}' for unit in others)}"
        )
    return f"next: {'; '.join(steps)}"


def _instance(role: Role) -> str:
    return UNITS[role].replace("@.service", "@1")
