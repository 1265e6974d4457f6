"""``forebay config``: the settings in force and their origins, without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from forebay.model.errors import UsageError
from forebay.settings.in_force import DEFAULT, SettingInForce, in_force
from forebay.settings.reading.similar import did_you_mean
from forebay.settings.redaction import HIDDEN
from forebay.settings.toml_text import toml_text

if TYPE_CHECKING:
    from rich.console import Group


@click.group(epilog=example("forebay config show", "forebay config show driver.batch_interval"))
@shared_options
def config() -> None:
    """Show the settings in force, and where each one comes from."""


@config.command(
    short_help="Show each setting with its value and origin.",
    epilog=example(
        "forebay config show", "forebay config show kafka --set", "forebay config show --json wal.retention"
    ),
)
@click.argument("key", metavar="[KEY]", default="")
@click.option("--set", "only_set", is_flag=True, help="Leave out the settings that have their default.")
@shared_options
@pass_invocation
def show(invocation: Invocation, key: str, only_set: bool) -> int:
    """Show each setting in force: its value as in forebay.toml, and the file or environment variable that sets it.

    KEY is a key, such as driver.batch_interval, or the beginning of keys, such as driver. Passwords, tokens and other secrets
    are not shown.
    The command reads the configuration of this process; `GET /v1/settings` returns that of the running driver.
    """
    every = list(in_force(invocation.settings()))
    chosen = [one for one in every if one.key.startswith(key)]
    if not chosen:
        meant = did_you_mean(key, [one.key for one in every])
        raise UsageError(f"there is no setting {key}; {meant}`forebay config show` lists all")
    found = [one for one in chosen if not only_set or one.origin != DEFAULT]
    invocation.write(found, lambda: [_table(found)])
    return FINE


def _table(found: list[SettingInForce]) -> Group:
    from deploy.console.table import table

    return table(
        "Settings in force",
        ("key", "value", "from"),
        [(one.key, _text(one.value), one.origin) for one in found],
    )


def _text(value: object) -> str:
    """Return ``value`` as forebay.toml writes it, except what is unset or hidden."""
    return "(unset)" if value is None else HIDDEN if value == HIDDEN else toml_text(value)
