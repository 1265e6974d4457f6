"""The archive of ``forebay debug bundle``."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from forebay.model.errors import UsageError
from forebay.process.os_errors import failure
from forebay.settings.redaction import redacted, shown_value

_ABOUT = """\
Diagnosis of a Forebay stream.

Passwords, tokens, keys and credentials in URLs were replaced by (hidden). The command read no blocks. But logs and errors hold
what your job prints and raises, which may be records. The files also hold names of hosts, topics and folders, and offsets. Read
them before you pass them on.

contents.json names each file, its size, and what could not be collected.
"""


class Part(msgspec.Struct, frozen=True):
    """One file of the archive. ``error``: why it could not be collected; the file is then missing."""

    name: str
    bytes: int
    error: str = ""


class Bundle:
    """Collects texts without secrets, and writes them to one archive. ``secrets``: texts that must not be in any file."""

    def __init__(self, secrets: Collection[str]) -> None:
        self._secrets = secrets
        self._files: dict[str, bytes] = {}
        self.parts: list[Part] = []

    def add(self, name: str, make: Callable[[], object]) -> Exception | None:
        """Add the file ``name`` with what ``make`` returns: a text as it is, anything else as JSON.

        If ``make`` fails, the list of contents has the error instead, and the error is returned: one part that fails must not
        prevent the others.
        """
        try:
            made = make()
            text = redacted(made, self._secrets) if isinstance(made, str) else _json(self._cleaned(made))
        except Exception as error:  # of any library that a part asks; it is shown
            reason = redacted(f"{type(error).__name__}: {error}", self._secrets)
            self.parts.append(Part(name, 0, reason))
            return error
        data = text.encode("utf-8", "backslashreplace")
        self._files[name] = data
        self.parts.append(Part(name, len(data)))
        return None

    def _cleaned(self, made: object) -> Any:
        """Return ``made`` as plain values without secrets. Each text in it is searched alone, so that JSON stays JSON."""

        def cleaned(name: str, value: Any) -> Any:
            if isinstance(value, dict):
                return {redacted(key, self._secrets): cleaned(key, inner) for key, inner in value.items()}
            if isinstance(value, list):
                return [cleaned(name, inner) for inner in value]
            if not isinstance(value, str):
                return value
            # "key" is the name of a setting in Forebay's answers
            return redacted(value if name == "key" else shown_value(name, value), self._secrets)

        return cleaned("", msgspec.json.decode(msgspec.json.encode(made)))

    def write(self, path: Path, folder: str, time_seconds: float) -> None:
        """Write the archive, which only this user can read. ``folder``: above all files. Raises UsageError if ``path`` exists."""
        files = {"README.txt": _ABOUT.encode(), "contents.json": _json(self.parts).encode(), **self._files}
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise UsageError(f"{path} exists: choose another name with --output") from None
        except OSError as error:
            raise failure(
                f"{path} can't be written", error, "choose another place with --output", kind=UsageError
            ) from None
        try:
            with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                for name, data in files.items():
                    member = tarfile.TarInfo(f"{folder}/{name}")
                    member.size, member.mode, member.mtime = len(data), 0o600, int(time_seconds)
                    archive.addfile(member, io.BytesIO(data))
        except OSError as error:
            path.unlink(missing_ok=True)
            raise failure(
                f"{path} can't be written", error, "choose another place with --output", kind=UsageError
            ) from None


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
