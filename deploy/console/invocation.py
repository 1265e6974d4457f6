"""One call of the command: its shared options and configuration, what it prints, and its exit codes."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from forebay.model.errors import SettingsError
from forebay_start import find_first

if TYPE_CHECKING:
    from rich.console import Console, Group

    from forebay.settings.schema import Settings

FINE = 0
FINDINGS = 1
WRONG_USE = 2
UNREACHABLE = 3
FENCED = 4

#: end of the message of a dry run
NOTHING_CHANGED = "nothing was changed: add --apply to do it"

#: configuration files that are tried in this order if neither ``--config`` nor FOREBAY_CONFIG is given
_DEFAULT_FILES = (Path("forebay.toml"), Path("/etc/forebay/forebay.toml"))

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Invocation:
    """The shared options of this call, before or after the command's name. Data goes to stdout, messages to stderr."""

    def __init__(self) -> None:
        self.config: Path | None = None
        self.json = False

    @property
    def config_path(self) -> Path:
        """The configuration file: ``--config``, else FOREBAY_CONFIG, else ./forebay.toml, else /etc/forebay/forebay.toml.

        Raises SettingsError if there is none, or if this user may not read it.
        """
        named = self.config or os.environ.get("FOREBAY_CONFIG")
        if named:
            _is_readable(Path(named))
            return Path(named)
        for path in _DEFAULT_FILES:
            if _is_readable(path):
                return path
        raise SettingsError(
            f"no configuration: neither {' nor '.join(map(str, _DEFAULT_FILES))} exists; "
            "name a file with --config FILE or FOREBAY_CONFIG"
        )

    def settings(self) -> Settings:
        """Load the settings of the configuration file. Raises SettingsError."""
        from forebay.settings.reading.load import load

        return load(self.config_path)

    def say(self, message: str) -> None:
        """Print a message for a person, on stderr."""
        click.echo(message, err=True)

    def console(self) -> Console:
        """Return the console on stdout. Into a pipe it prints whole lines without colour."""
        from rich.console import Console

        # the width of a screen means nothing to the reader of a pipe
        return Console(highlight=False) if sys.stdout.isatty() else Console(width=200, no_color=True, highlight=False)

    def write(self, data: object, tables: Callable[[], list[Group]] = list) -> None:
        """Print data on stdout: with ``--json`` as one JSON document, otherwise as the tables that ``tables`` makes."""
        if self.json:
            import msgspec

            from forebay.model.text import printable_json

            click.echo(printable_json(msgspec.json.format(msgspec.json.encode(data), indent=2).decode()))
            return
        console = self.console()
        for made in tables():
            console.print(made)


def _is_readable(path: Path) -> bool:
    """Return whether there is a file ``path``. Raises SettingsError, with a user who may read it, if this user may not."""
    try:
        path.stat()
        if os.access(path, os.R_OK):
            return True
    except PermissionError:
        pass
    except OSError:
        return False
    owner = "root"
    for place in (path, *path.absolute().parents):
        with contextlib.suppress(OSError, KeyError):  # in a closed folder, or of a user without a name
            owner = place.owner()
            break
    raise SettingsError(
        f"{path}: this user may not read it: run `sudo -u {owner} {sys.prefix}/bin/forebay --config {path.absolute()} COMMAND`, "
        "or name another file with --config FILE or FOREBAY_CONFIG"
    )


def person(because: str = "") -> str:
    """Return the user of this command for the journal: ``user@host``, and ``because`` after a colon."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in a container
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}" + (f": {because}" if because else "")


def because_option(function: _Function) -> _Function:
    """Add ``--because TEXT``, also ``--cause``, to a command whose decision is recorded; it gets ``because: str``."""
    return click.option(
        "--because",
        "--cause",
        "because",
        metavar="TEXT",
        default="",
        help="Reason for the decision; it is recorded with your name.",
    )(function)


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


def shared_options(function: _Function) -> _Function:
    """Add ``--config`` and ``--json``, so that both may be given before or after the command."""

    def take_config(context: click.Context, _: click.Parameter, value: Path | None) -> None:
        if value is not None:
            context.ensure_object(Invocation).config = value

    def take_json(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.ensure_object(Invocation).json = True

    for decorate in (
        click.option(
            "--json", is_flag=True, expose_value=False, callback=take_json, help="Print data as one JSON document."
        ),
        click.option(
            "--config",
            metavar="FILE",
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=take_config,
            help="Configuration file [default: $FOREBAY_CONFIG, ./forebay.toml, /etc/forebay/forebay.toml].",
        ),
    ):
        function = decorate(function)
    return function


def example(*lines: str) -> str:
    """Return the epilog of a help text that shows calls of the command, one a line."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def changing_options(function: _Function) -> _Function:
    """Add ``--apply`` (also ``--yes``) and ``--dry-run``, the default, to a command that changes something.

    The command gets ``yes: bool``.
    """

    @click.option("--apply", "--yes", "yes", is_flag=True, help="Make the changes instead of only showing them.")
    @click.option("--dry-run", "dry_run", is_flag=True, help="Only show what would change [default].")
    @functools.wraps(function)
    def wrapper(*args: Any, yes: bool, dry_run: bool, **kwargs: Any) -> Any:
        if yes and dry_run:
            raise click.UsageError("--dry-run and --apply (or --yes) exclude each other")
        return function(*args, yes=yes, **kwargs)

    return wrapper  # type: ignore[return-value]


def job_folders(config_path: Path) -> list[Path]:
    """Return the folders where modules of a job are looked for first: the configuration's and the current one."""
    return list(dict.fromkeys([config_path.resolve().parent, Path.cwd()]))


def prepare_job_imports(config_path: Path) -> None:
    """Make modules in the configuration's folder and in the current one importable.

    This holds for this process and for the processes that it starts: Spark's Python workers import the job too.
    """
    find_first()
    folders = [str(folder) for folder in job_folders(config_path)]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*folders, *inherited]))
    # Spark's workers need the driver's Python version to read what the driver pickled
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
