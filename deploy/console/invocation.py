"""What every command shares: its two options, where data and words go, and how a mistake ends."""

from __future__ import annotations

import functools
import getpass
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from forebay.model.errors import SettingsError
from forebay.settings.load import load
from forebay.settings.schema import Settings
from forebay_start import find_first

if TYPE_CHECKING:
    from rich.console import Group

FINE = 0
FOUND = 1
WRONG_USE = 2
UNREACHABLE = 3
FENCED = 4

#: where the configuration is looked for if nobody names it, after FOREBAY_CONFIG
_DEFAULT_FILES = (Path("forebay.toml"), Path("/etc/forebay/forebay.toml"))

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Invocation:
    """The options of this call, wherever they stood on the line. Data goes to stdout, words to stderr."""

    def __init__(self) -> None:
        self.config: Path | None = None
        self.json = False

    @property
    def config_path(self) -> Path:
        """The configuration file: ``--config``, else FOREBAY_CONFIG, else ./forebay.toml, else the one in /etc.

        Raises SettingsError if there is none.
        """
        if self.config is not None:
            return self.config
        named = os.environ.get("FOREBAY_CONFIG")
        if named:
            return Path(named)
        for path in _DEFAULT_FILES:
            if path.exists():
                return path
        raise SettingsError(
            f"no configuration: neither {' nor '.join(map(str, _DEFAULT_FILES))} exists; "
            "name a file with --config FILE or FOREBAY_CONFIG"
        )

    def settings(self) -> Settings:
        """The settings of the configuration file. Raises SettingsError."""
        return load(self.config_path)

    def say(self, words: str) -> None:
        """Words for a person."""
        click.echo(words, err=True)

    def write(self, data: object, tables: Callable[[], list[Group]] = list) -> None:
        """Data: as one JSON document with ``--json``, else as the tables that ``tables`` makes."""
        if self.json:
            click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2).decode())
            return
        from rich.console import Console

        # a pipe gets whole lines: what reads them does not care for the width of a screen
        console = Console() if sys.stdout.isatty() else Console(width=200, no_color=True)
        for made in tables():
            console.print(made)


def person(because: str = "") -> str:
    """Who runs this command, for the journal: ``user@host``, and why."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in a container
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}" + (f": {because}" if because else "")


def because_option(function: _Function) -> _Function:
    """Adds ``--because WORDS`` to a command whose decision is journalled; it gets ``because: str``."""
    return click.option(
        "--because", metavar="WORDS", default="", help="Why, in a few words: kept in the journal with your name."
    )(function)


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


def shared_options(function: _Function) -> _Function:
    """Adds ``--config`` and ``--json``, so that both are taken before and after the command."""

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
            help="The configuration [default: $FOREBAY_CONFIG, ./forebay.toml, /etc/forebay/forebay.toml].",
        ),
    ):
        function = decorate(function)
    return function


def example(*lines: str) -> str:
    """The epilog that shows how a command is called, a line each."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def changing_options(function: _Function) -> _Function:
    """Adds ``--dry-run``, the default, and ``--apply`` to a command that changes something; it gets ``yes: bool``. ``--yes`` is
    the same as ``--apply``."""

    @click.option("--apply", "--yes", "yes", is_flag=True, help="Do it; without it, only say what would be done.")
    @click.option("--dry-run", "dry_run", is_flag=True, help="Only say what would be done [default].")
    @functools.wraps(function)
    def wrapper(*args: Any, yes: bool, dry_run: bool, **kwargs: Any) -> Any:
        if yes and dry_run:
            raise click.UsageError("--dry-run and --apply (or --yes) exclude each other")
        return function(*args, yes=yes, **kwargs)

    return wrapper  # type: ignore[return-value]


def job_folders(config_path: Path) -> list[Path]:
    """Where the modules of a job are looked for first: the configuration's folder and the current one."""
    return list(dict.fromkeys([config_path.resolve().parent, Path.cwd()]))


def prepare_job_imports(config_path: Path) -> None:
    """Lets ``module:function`` be imported: the configuration's folder and the current one, for this process and for
    those it starts (Spark's Python workers import the job too)."""
    find_first()
    folders = [str(folder) for folder in job_folders(config_path)]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*folders, *inherited]))
    # Spark's workers must be of the same Python as the driver, or nothing that it pickled can be read
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
