"""What ``forebay install`` puts on one host: a plan, made on values alone.

The unit files lie beside this module and are complete as they are; of them only the program's path changes, and the folders
outside ``/var/lib/forebay`` that the configuration names are added.
"""

from __future__ import annotations

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
#: what a host's configuration begins with
#: of randomness, in one token
TOKEN_BYTES = 32
EXAMPLE = Path(__file__).parent / "examples" / "one-machine.toml"
#: where the unit files say that the program is
_PROGRAM = "/opt/forebay/bin/forebay"
#: how the example leaves tokens out, and how an installed host names them: people's commands read the file, services are given
#: it by systemd
_NO_TOKENS, _TOKENS = f'#token_file = "{TOKENS}"', f'token_file = "{TOKENS}"'


@dataclass(frozen=True, slots=True)
class Folder:
    path: str
    mode: int = 0o700


@dataclass(frozen=True, slots=True)
class File:
    """``keep``: a person's own once it is there; else an upgrade writes it anew, and it goes with an uninstall."""

    path: str
    content: str
    mode: int = 0o644
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """In the order in which it is put there; taken away in the opposite one. ``outside``: folders that the configuration names
    elsewhere, which are made if they are absent and never changed."""

    folders: tuple[Folder, ...]
    outside: tuple[Folder, ...]
    files: tuple[File, ...]


def plan(roles: Iterable[Role], program: str, settings: Settings | None, configuration: str, tokens: str) -> Plan:
    """``settings``: of the configuration that this host has, or will have, if it can be read; ``configuration`` and ``tokens``:
    what these files begin with. Units come last, so that none is there without what it needs."""
    roles = [role for role in ROLES if role in set(roles)]
    outside = folders_outside(settings) if settings is not None else []
    return Plan(
        (Folder(CONFIGURATION_FOLDER), Folder(DATA_FOLDER)),
        tuple(map(Folder, outside)),
        (
            File(CONFIGURATION, configuration, 0o600, keep=True),
            File(TOKENS, tokens, 0o600, keep=True),
            File(SYSUSERS, f'u {USER} - "Forebay" {DATA_FOLDER}\n'),
            *(File(f"{UNIT_FOLDER}/{UNITS[role]}", unit(role, program, outside)) for role in roles),
        ),
    )


def unit(role: Role, program: str = _PROGRAM, writable: Sequence[str] = ()) -> str:
    """The unit file of ``role``, for a ``program`` elsewhere, that may write to ``writable`` folders too."""
    text = (Path(__file__).parent / "systemd" / UNITS[role]).read_text(encoding="utf-8")
    text = text.replace(_PROGRAM, program)
    paths = "".join(f"ReadWritePaths={_word(f'-{path}')}\n" for path in writable)
    return text.replace("ProtectSystem=strict\n", f"ProtectSystem=strict\n{paths}")


def _word(text: str) -> str:
    """``text`` as one word of a unit file. Raises SettingsError for signs that no unit can name."""
    if not text.isprintable():
        raise SettingsError(
            f"{text!r}: a unit can't name a folder with signs that can't be printed: choose another one"
        )
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{plain}"' if any(sign in text for sign in " '\"\\") else plain


def folders_outside(settings: Settings) -> list[str]:
    """The local folders that services write to and that are not in ``/var/lib/forebay``."""
    urls = [settings.wal.url, settings.driver.journal, settings.dead_letters.url or ""]
    found = [path for url in urls if (path := local_path(url)) is not None] + [settings.agent.blocks]
    return [path for path in dict.fromkeys(found) if path != DATA_FOLDER and not path.startswith(f"{DATA_FOLDER}/")]


def first_configuration() -> str:
    """What a host's configuration begins with: the example for one machine, with tokens."""
    return EXAMPLE.read_text(encoding="utf-8").replace(_NO_TOKENS, _TOKENS)


def new_tokens(roles: Iterable[Role], new: Callable[[], str] = lambda: secrets.token_urlsafe(TOKEN_BYTES)) -> str:
    """A line for each role of token on the driver's host; elsewhere nothing but the word where they come from."""
    if "driver" not in set(roles):
        return "# role token: copy the lines for this host's roles from the driver's host\n"
    lines = [f"{role} {new()}\n" for role in security.ROLES]
    return "# role token: give each host the lines that it needs, and restart its services\n" + "".join(lines)
