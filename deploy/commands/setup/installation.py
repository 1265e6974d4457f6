"""The folders, files and units that ``forebay install`` puts on one host, planned without I/O on that host.

The unit files in ``deploy/systemd`` are complete. An installation changes only the path of the program in them, and adds the
folders outside ``/var/lib/forebay`` that the configuration names.
"""

from __future__ import annotations

import os.path
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from forebay.model.errors import SettingsError
from forebay.security import roles as security
from forebay.settings.schema import Settings
from forebay.settings.stores import local_path

Role = Literal["driver", "agent", "receiver"]
ROLES: tuple[Role, ...] = get_args(Role)
UNITS: dict[Role, str] = {
    "driver": "forebay-driver.service",
    "agent": "forebay-agent.service",
    "receiver": "forebay-receiver@.service",
}
USER = "forebay"
CONFIGURATION_FOLDER, DATA_FOLDER = "/etc/forebay", "/var/lib/forebay"
CONFIGURATION, TOKENS = f"{CONFIGURATION_FOLDER}/forebay.toml", f"{CONFIGURATION_FOLDER}/tokens"
UNIT_FOLDER = "/etc/systemd/system"
SYSUSERS = "/etc/sysusers.d/forebay.conf"
#: the token file as the units name it for their services
CREDENTIAL = "credential:tokens"
#: random bytes in a token
TOKEN_BYTES = 32
_DEPLOY = Path(__file__).parents[2]
#: the first configuration of a host
EXAMPLE = _DEPLOY / "examples" / "one-machine.toml"
#: path of the program in the unit files
_PROGRAM = "/opt/forebay/bin/forebay"
#: the line of the example without tokens, and its replacement on an installed host; systemd passes the file to the services
_NO_TOKENS, _TOKENS = f'#token_file = "{TOKENS}"', f'token_file = "{TOKENS}"'


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the host, with its mode."""

    path: str
    mode: int = 0o700


@dataclass(frozen=True, slots=True)
class File:
    """A file of the host.

    ``keep``: an existing file is never changed or removed, because people edit it. Other files are written again by an
    upgrade, and removed by an uninstallation.
    """

    path: str
    content: str
    mode: int = 0o644
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Installation:
    """Folders and files in the order in which they are made; they are removed in the opposite order.

    ``outside``: folders elsewhere that the configuration names; they are made if absent, and never changed.
    """

    folders: tuple[Folder, ...]
    outside: tuple[Folder, ...]
    files: tuple[File, ...]


def plan_installation(
    roles: Iterable[Role], program: str, settings: Settings | None, configuration: str, tokens: str
) -> Installation:
    """Return the installation of a host for ``roles``.

    ``settings``: of the configuration that the host has or will have; None if it can't be read. ``configuration`` and
    ``tokens``: first content of these files. Units come last, so that everything that a unit needs exists before it.
    """
    roles = [role for role in ROLES if role in set(roles)]
    outside = folders_outside(settings) if settings is not None else []
    return Installation(
        (Folder(CONFIGURATION_FOLDER), Folder(DATA_FOLDER)),
        tuple(map(Folder, outside)),
        (
            File(CONFIGURATION, configuration, 0o600, keep=True),
            File(TOKENS, tokens, 0o600, keep=True),
            File(SYSUSERS, f'u {USER} - "Forebay" {DATA_FOLDER}\n'),
            *(File(unit_path(role), unit(role, program, outside)) for role in roles),
        ),
    )


def unit_path(role: Role) -> str:
    """Return the path of the unit file of ``role``."""
    return f"{UNIT_FOLDER}/{UNITS[role]}"


def unit(role: Role, program: str = _PROGRAM, writable: Sequence[str] = ()) -> str:
    """Return the unit file of ``role`` for a program at ``program``; ``writable``: more folders that it may write to."""
    text = (_DEPLOY / "systemd" / UNITS[role]).read_text(encoding="utf-8")
    text = text.replace(_PROGRAM, program)
    paths = "".join(f"ReadWritePaths={_word(f'-{path}')}\n" for path in writable)
    return text.replace("ProtectSystem=strict\n", f"ProtectSystem=strict\n{paths}")


def _word(text: str) -> str:
    """Return ``text`` as one word of a unit file. Raises SettingsError for characters that a unit can't contain."""
    if not text.isprintable():
        raise SettingsError(
            f"{text!r}: a systemd unit can't name a folder with unprintable characters: choose another folder"
        )
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{plain}"' if any(sign in text for sign in " '\"\\") else plain


def folders_outside(settings: Settings) -> list[str]:
    """Return the local folders outside ``/var/lib/forebay`` that services write to; a folder comes before those in it."""
    urls = [settings.wal.url, settings.driver.journal, settings.dead_letters.url or ""]
    found = {path for url in urls if (path := local_path(url)) is not None} | {settings.agent.blocks}
    if settings.spark.class_archive is not None:
        found.add(settings.spark.class_archive)
    return sorted(path for path in found if path != DATA_FOLDER and not path.startswith(f"{DATA_FOLDER}/"))


def other_token_file(settings: Settings) -> str | None:
    """Return what is wrong if the configuration does not name the token file that the units give to the services."""
    named = settings.security.token_file
    if named == CREDENTIAL or (named is not None and os.path.normpath(named) == TOKENS):
        return None
    reason = (
        f"security.token_file is {'not set' if named is None else named}, but the units give each service {TOKENS}, "
        f"and commands must use the same tokens: write {_TOKENS} below [security]"
    )
    return reason if named is None else f"{reason}, and move the tokens there"


def first_configuration() -> str:
    """Return the first configuration of a host: the example for one machine, with tokens."""
    return EXAMPLE.read_text(encoding="utf-8").replace(_NO_TOKENS, _TOKENS)


def new_tokens(roles: Iterable[Role], new: Callable[[], str] = lambda: secrets.token_urlsafe(TOKEN_BYTES)) -> str:
    """Return the first token file of a host: a new token for each role on the driver's host, elsewhere only a comment."""
    if "driver" not in set(roles):
        return "# role token: copy the lines for this host's roles from the driver's host\n"
    lines = [f"{role} {new()}\n" for role in security.ROLES]
    return "# role token: give each host the lines that it needs, and restart its services\n" + "".join(lines)
