"""``forebay install``: put user, folders, configuration, tokens and units on one host, or remove the units."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import msgspec

from deploy.commands.setup.installation import (
    CONFIGURATION,
    EXAMPLE,
    ROLES,
    SYSUSERS,
    TOKENS,
    UNIT_FOLDER,
    UNITS,
    USER,
    File,
    Folder,
    Installation,
    Role,
    first_configuration,
    new_tokens,
    plan_installation,
)
from deploy.console.invocation import FINE, Invocation, changing_options, example, pass_invocation, shared_options
from forebay.model.errors import SettingsError, StoreError, UsageError
from forebay.security.roles import parse_tokens
from forebay.settings.reading.load import load

#: folders that the units hide from the services, which therefore can't run a program in them
_HIDDEN = ("/root", "/home", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  nothing is written there


class Step(msgspec.Struct, frozen=True):
    """One step of an installation. ``outcome``: made | written | replaced | kept | as it is | removed | run | left."""

    outcome: str
    what: str
    detail: str = ""


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


class Host:
    """The files of a host below ``prefix``. With ``change`` False, all steps are reported and none is carried out."""

    def __init__(self, prefix: Path, change: bool) -> None:
        self._prefix = prefix
        self._change = change

    def at(self, path: str) -> Path:
        """Return the place of the host's ``path`` on this machine."""
        return self._prefix / path.lstrip("/")

    def put(self, wanted: Installation) -> Iterator[Step]:
        """Make folders and files, and yield each step when it is done. May be repeated. Raises StoreError."""
        for folder in wanted.folders:
            yield self._make(folder)
        for folder in wanted.outside:
            if not self.at(folder.path).exists():
                yield self._make(folder)
        for file in wanted.files:
            yield self._write(file)

    def give(self, wanted: Installation, user: str) -> Iterator[Step]:
        """Make ``user`` of the host the owner of its folders and kept files, and of empty folders outside.

        Raises StoreError.
        """
        empty = [folder.path for folder in wanted.outside if not self._has_content(folder)]
        paths = [folder.path for folder in wanted.folders] + [file.path for file in wanted.files if file.keep] + empty
        if self._change:
            owner, group = self._ids(user)
            for path in paths:
                self._tried(path, partial(os.chown, self.at(path), owner, group, follow_symlinks=False))
        yield Step("run", f"chown {user}:{user} {' '.join(paths)}")

    def _has_content(self, folder: Folder) -> bool:
        path = self.at(folder.path)
        return path.is_dir() and any(path.iterdir())

    def _ids(self, user: str) -> tuple[int, int]:
        lines = (self._tried("/etc/passwd", self.at("/etc/passwd").read_text) or "").splitlines()
        found = next((line.split(":") for line in lines if line.startswith(f"{user}:")), None)
        if found is None:
            raise StoreError(
                f"{self.at('/etc/passwd')} has no user {user}, although systemd-sysusers succeeded: create the user by hand"
            )
        return int(found[2]), int(found[3])

    def take_away(self, wanted: Installation) -> Iterator[Step]:
        """Remove all files except those with ``keep``, and yield what is removed and what is kept."""
        for file in reversed(wanted.files):
            if file.keep or not self.at(file.path).exists():
                continue
            if self._change:
                self._tried(file.path, self.at(file.path).unlink)
            yield Step("removed", file.path)
        for folder in (*wanted.folders, *wanted.outside):
            if self.at(folder.path).exists():
                yield Step("kept", folder.path, "with its content; remove it yourself when it is no longer needed")

    def run(self, *command: str) -> Step:
        """Run a command of the system. Raises StoreError with what the command printed."""
        if self._change:
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                raise StoreError(f"cannot run {command[0]}: {error.strerror}") from None
            if done.returncode != 0:
                raise StoreError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
        return Step("run", " ".join(command))

    def _make(self, folder: Folder) -> Step:
        path = self.at(folder.path)
        there = path.is_dir()
        if there and stat.S_IMODE(path.stat().st_mode) == folder.mode:
            return Step("as it is", folder.path)
        if self._change:

            def make() -> None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir(folder.mode, exist_ok=True)
                path.chmod(folder.mode)

            self._tried(folder.path, make)
        return Step("replaced" if there else "made", folder.path, f"mode {folder.mode:04o}")

    def _write(self, file: File) -> Step:
        path = self.at(file.path)
        there = self._tried(file.path, lambda: path.read_text(encoding="utf-8")) if path.exists() else None
        if there == file.content:
            return Step("as it is", file.path)
        if there is not None and file.keep:
            return Step("kept", file.path, "this host's own")
        if self._change:
            self._tried(file.path, lambda: _replace(path, file))
        return Step("written" if there is None else "replaced", file.path, f"mode {file.mode:04o}")

    def _tried(self, path: str, action: Callable[[], str | None]) -> str | None:
        try:
            return action()
        except OSError as error:
            raise StoreError(
                f"{self.at(path)}: {error.strerror or error}; the later steps were not carried out"
            ) from None


def _replace(path: Path, file: File) -> None:
    """Write the file atomically. It never has a wider mode than ``file.mode``, not even while it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(descriptor, file.mode)  # whatever the umask
        stream.write(file.content)
        stream.flush()
        os.fsync(descriptor)
    os.replace(temporary, path)


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
    help="Service of this host; repeatable [default: all].",
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
    roles = roles or ROLES
    host = Host(prefix, yes)
    real = prefix.resolve() == Path("/")
    if real and yes and os.geteuid() != 0:
        raise UsageError("install changes the system: run it as root, or add --prefix DIR to only look at the files")
    command = program or str(Path(sys.prefix) / "bin" / "forebay")
    if not os.path.isabs(command) or any(sign in command for sign in " \t\"'%$\\"):
        raise UsageError(f"--program {command}: write an absolute path without spaces, quotes, %, $ and \\")
    if real and not uninstall:
        _require_visible(command)
    there = host.at(CONFIGURATION)
    try:
        # before any change: a release that can't read the configuration must not replace one that can
        settings = load(there if there.exists() else given or EXAMPLE, {})
    except SettingsError:
        if not uninstall:
            raise
        settings = None
    configuration = given.read_text(encoding="utf-8") if given is not None else first_configuration()
    tokens = _checked_tokens(given_tokens) if given_tokens is not None else new_tokens(roles)
    wanted = plan_installation(roles, command, settings, configuration, tokens)
    booted = real and Path("/run/systemd/system").exists()
    steps = _uninstalled(host, wanted, roles, booted) if uninstall else _installed(host, wanted, booted)
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
        invocation.say(_next_steps(roles, command, host))
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
    units = [UNITS[role] for role in roles if host.at(f"{UNIT_FOLDER}/{UNITS[role]}").exists()]
    if booted and units:
        yield host.run("systemctl", "disable", *units)
        # receivers first, while the driver still accepts their reports
        for name in sorted(units, key=lambda name: ("receiver" not in name, "agent" not in name)):
            yield host.run("systemctl", "stop", name.replace("@.", "@*."))
    others = [UNITS[role] for role in ROLES if role not in roles and host.at(f"{UNIT_FOLDER}/{UNITS[role]}").exists()]
    files = tuple(file for file in wanted.files if not (others and file.path == SYSUSERS))
    yield from host.take_away(replace(wanted, files=files))
    if booted:
        yield host.run("systemctl", "daemon-reload")


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


def _next_steps(roles: Sequence[Role], program: str, host: Host) -> str:
    units = " ".join(UNITS[role].replace("@.service", "@1") for role in ROLES if role in roles)
    return (
        f"next: edit {host.at(CONFIGURATION)} and {host.at(TOKENS)}; {program} --config {CONFIGURATION} validate; "
        f"systemctl enable --now {units}. After an upgrade: systemctl restart, one unit after another"
    )
