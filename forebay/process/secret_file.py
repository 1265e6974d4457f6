"""Secret files, which are refused if other users can access them; and folders that only this user can access."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from forebay.model.errors import SettingsError
from forebay.model.identifiers import NAME_RULE, is_name
from forebay.process.os_errors import failure

#: prefix of a file that systemd passes to a unit by LoadCredential=NAME:…, as in ``token_file = "credential:NAME"``
CREDENTIAL = "credential:"
_DIRECTORY_VARIABLE = "CREDENTIALS_DIRECTORY"
#: maximum bytes of a secret file
BYTES_MAX = 4_000_000


def check_secret_path(written: str) -> str:
    """Return ``written`` if it is an absolute path or ``credential:NAME``. Raises ValueError otherwise."""
    if written.startswith(CREDENTIAL):
        if not is_name(written.removeprefix(CREDENTIAL)):  # the error does not show it: it may be the secret itself
            raise ValueError(f'"{CREDENTIAL}NAME": {NAME_RULE}')
    elif not os.path.isabs(written):
        raise ValueError('write an absolute path, or "credential:NAME" for a file that systemd passes')
    return written


def secret_path(key: str, written: str, environment: Mapping[str, str] | None = None) -> Path:
    """Return the path of the file that setting ``key`` names. Raises SettingsError if systemd passes no such credential."""
    if not written.startswith(CREDENTIAL):
        return Path(written)
    directory = (os.environ if environment is None else environment).get(_DIRECTORY_VARIABLE, "")
    if not directory:
        raise SettingsError(
            f"{key}: {written}: systemd passed no credentials (${_DIRECTORY_VARIABLE} is not set): start this process as a unit "
            f"with LoadCredential={written.removeprefix(CREDENTIAL)}:FILE, or write the file's path"
        )
    return Path(directory, written.removeprefix(CREDENTIAL))


def read_secret(key: str, path: Path) -> str:
    """Return the text of the file that setting ``key`` names.

    Raises SettingsError, which shows none of it; StoreError if a new attempt may succeed, as after an I/O error.
    """
    try:
        # opening a pipe without a writer must not wait
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SettingsError(f"{key}: {path} is not a file")
            if status.st_mode & 0o007:
                raise SettingsError(f"{key}: all users can read or write {path}: run `chmod o= {path}`")
            data = file.read(BYTES_MAX + 1)
    except IsADirectoryError:
        raise SettingsError(f"{key}: {path} is not a file") from None
    except OSError as error:
        raise failure(f"{key}: cannot read {path}", error) from None
    if len(data) > BYTES_MAX:
        raise SettingsError(f"{key}: {path} has more than {BYTES_MAX} bytes: name another file")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise SettingsError(f"{key}: {path} is not ASCII text") from None


def make_private_folder(folder: str | Path) -> None:
    """Create ``folder`` and its missing parents, for this user only (0700). An existing folder keeps its mode.

    Raises FileExistsError if a file has that path, OSError.
    """
    path = Path(folder)
    if path.is_dir():
        return
    make_private_folder(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
