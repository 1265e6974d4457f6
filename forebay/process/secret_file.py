"""Files that hold secrets: read whole, and refused where everybody could read them too. Folders for this user alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from forebay.model.errors import SettingsError
from forebay.model.values import check_name

#: what systemd gives a unit with LoadCredential=NAME:…, as in ``token_file = "credential:NAME"``
CREDENTIAL = "credential:"
_DIRECTORY_VARIABLE = "CREDENTIALS_DIRECTORY"
#: of one file
BYTES_MAX = 4_000_000


def check_secret_path(written: str) -> str:
    """Raises ValueError, in words, for what names no file: neither a whole path nor ``credential:NAME``."""
    if written.startswith(CREDENTIAL):
        check_name("credential", written.removeprefix(CREDENTIAL))
    elif not os.path.isabs(written):
        raise ValueError('write the whole path of a file, from / on, or "credential:NAME" for one that systemd gives')
    return written


def secret_path(key: str, written: str, environment: Mapping[str, str] | None = None) -> Path:
    """Where the file lies that setting ``key`` names. Raises SettingsError for a credential where systemd gives none."""
    if not written.startswith(CREDENTIAL):
        return Path(written)
    directory = (os.environ if environment is None else environment).get(_DIRECTORY_VARIABLE, "")
    if not directory:
        raise SettingsError(
            f"{key}: {written}: this process was given no credentials (${_DIRECTORY_VARIABLE} is not set): start it as a unit "
            f"with LoadCredential={written.removeprefix(CREDENTIAL)}:FILE, or write the file's path"
        )
    return Path(directory, written.removeprefix(CREDENTIAL))


def read_secret(key: str, path: Path) -> str:
    """The text of ``path``, which setting ``key`` names. Raises SettingsError, which shows nothing of it."""
    try:
        # what is no file, such as a pipe that nobody writes to, is not waited for
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SettingsError(f"{key}: {path} is no file")
            if status.st_mode & 0o007:
                raise SettingsError(f"{key}: {path} can be read or written by everybody: `chmod o= {path}`")
            data = file.read(BYTES_MAX + 1)
    except IsADirectoryError:
        raise SettingsError(f"{key}: {path} is no file") from None
    except OSError as error:
        raise SettingsError(f"{key}: {path} can't be read: {error.strerror}") from None
    if len(data) > BYTES_MAX:
        raise SettingsError(f"{key}: {path} has more than {BYTES_MAX} bytes: it can't be the file that was meant")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise SettingsError(f"{key}: {path} is no text of ASCII letters, digits and signs") from None


def make_private_folder(folder: str | Path) -> None:
    """Makes ``folder`` and what is missing above it, for this user alone (0700); one that is there stays as it is.

    Raises FileExistsError where a file stands in the way, OSError.
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
