"""The files of one host as ``forebay install`` looks at them and changes them."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec

from deploy.commands.setup.installation import File, Folder, Installation
from forebay.model.errors import StoreError, UsageError

#: mode of folders above those of an installation: every user may enter them
PARENT_MODE = 0o755
_Result = TypeVar("_Result")


class Step(msgspec.Struct, frozen=True):
    """One step of an installation. ``outcome``: made | written | replaced | kept | as it is | removed | run | left."""

    outcome: str
    what: str
    detail: str = ""


class Host:
    """The files of a host below ``prefix``. With ``change`` False, all steps are reported and none is carried out."""

    def __init__(self, prefix: Path, change: bool) -> None:
        self._prefix = prefix
        self._change = change
        #: whether these are the files of the running system
        self.is_system = prefix.resolve() == Path("/")

    def at(self, path: str) -> Path:
        """Return the place of the host's ``path`` on this machine."""
        return self._prefix / path.lstrip("/")

    def has(self, path: str) -> bool:
        """Return whether the host has a file or folder ``path``. Raises UsageError if this user may not look for it."""
        return self._status(path) is not None

    def put(self, wanted: Installation) -> Iterator[Step]:
        """Make folders and files, and yield each step when it is done. May be repeated. Raises StoreError, UsageError."""
        for folder in wanted.folders:
            yield self._make(folder)
        for folder in wanted.outside:
            if not self.has(folder.path):
                yield self._make(folder)
        yield from self._write(wanted.files)

    def give(self, wanted: Installation, user: str) -> Iterator[Step]:
        """Make ``user`` of the host the owner of its folders and kept files, and of unused folders outside.

        Then yield the folders above them that ``user`` can't enter. Raises StoreError.
        """
        outside = [folder.path for folder in wanted.outside]
        unused = [path for path in outside if self._is_unused(path, outside)]
        paths = [folder.path for folder in wanted.folders] + [file.path for file in wanted.files if file.keep] + unused
        command = f"chown {user}:{user} {' '.join(map(shlex.quote, paths))}"
        if not self._change:
            yield Step("run", command)
            return
        owner, group = self._ids(user)
        for path in paths:
            self._tried(path, partial(os.chown, self.at(path), owner, group, follow_symlinks=False))
        yield Step("run", command)
        folders = [folder.path for folder in wanted.folders] + outside
        yield from self._closed(folders, user, owner, group)

    def _is_unused(self, path: str, planned: Sequence[str]) -> bool:
        """Whether a folder is absent, or holds nothing except folders of ``planned`` that are unused too."""
        try:
            names = [name for name in os.listdir(self.at(path)) if name != "lost+found"]  # of a new file system
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            return False
        except OSError as error:
            raise self._failed(path, error) from None
        below = [f"{path.rstrip('/')}/{name}" for name in names]
        return all(
            any(f"{one}/".startswith(f"{child}/") for one in planned) and self._is_unused(child, planned)
            for child in below
        )

    def _closed(self, folders: Iterable[str], user: str, owner: int, group: int) -> Iterator[Step]:
        """Yield each folder above ``folders`` whose mode keeps ``user`` out, with the command that opens it."""
        for path in dict.fromkeys(
            str(above) for folder in folders for above in reversed(PurePosixPath(folder).parents)
        ):
            status = self._status(path) if path != "/" else None
            if status is None:
                continue
            letter, bit = "u", stat.S_IXUSR
            if status.st_uid != owner:
                letter, bit = ("g", stat.S_IXGRP) if status.st_gid == group else ("o", stat.S_IXOTH)
            if not status.st_mode & bit:
                detail = (
                    f"mode {stat.S_IMODE(status.st_mode):04o}: the services of user {user} can't reach what is in it; "
                    f"run chmod {letter}+x {shlex.quote(str(self.at(path)))}"
                )
                yield Step("left", path, detail)

    def _ids(self, user: str) -> tuple[int, int]:
        """Return the numbers of ``user`` and its group. Raises StoreError if the host has no such user."""
        if self.is_system:
            try:
                entry = pwd.getpwnam(user)
            except KeyError:
                raise self._no_user(user) from None
            return entry.pw_uid, entry.pw_gid
        # other entries may hold bytes of any encoding
        lines = self._tried("/etc/passwd", self.at("/etc/passwd").read_bytes).decode("ascii", "replace").splitlines()
        for fields in (line.split(":") for line in lines):
            if fields[0] == user and len(fields) > 3 and fields[2].isdecimal() and fields[3].isdecimal():
                return int(fields[2]), int(fields[3])
        raise self._no_user(user)

    def _no_user(self, user: str) -> StoreError:
        return StoreError(
            f"{self.at('/etc/passwd')} has no user {user}, although systemd-sysusers succeeded: create the user by hand"
        )

    def take_away(self, wanted: Installation) -> Iterator[Step]:
        """Remove all files except those with ``keep``, and yield what is removed and what is kept."""
        for file in reversed(wanted.files):
            if file.keep or not self.has(file.path):
                continue
            if self._change:
                self._tried(file.path, self.at(file.path).unlink)
            yield Step("removed", file.path)
        for folder in (*wanted.folders, *wanted.outside):
            if self.has(folder.path):
                yield Step("kept", folder.path, "with its content; remove it yourself when it is no longer needed")

    def run(self, *command: str) -> Step:
        """Run a command of the system. Raises StoreError with what the command printed."""
        if self._change:
            try:
                done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            except OSError as error:
                raise StoreError(f"cannot run {command[0]}: {error.strerror}") from None
            if done.returncode != 0:
                raise StoreError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
        return Step("run", " ".join(command))

    def _make(self, folder: Folder) -> Step:
        path = self.at(folder.path)
        status = self._status(folder.path)
        there = status is not None and stat.S_ISDIR(status.st_mode)
        if status is not None and there and stat.S_IMODE(status.st_mode) == folder.mode:
            return Step("as it is", folder.path)
        if self._change:

            def make() -> None:
                _make_parents(path)
                path.mkdir(folder.mode, exist_ok=True)
                path.chmod(folder.mode)

            self._tried(folder.path, make)
        return Step("replaced" if there else "made", folder.path, f"mode {folder.mode:04o}")

    def _write(self, files: Sequence[File]) -> Iterator[Step]:
        """Write all files beside their places, then rename all of them, so that a full disk leaves no host with some units."""
        steps: list[Step] = []
        staged: list[tuple[File, Path]] = []
        try:
            for file in files:
                step = self._compared(file)
                steps.append(step)
                if self._change and step.outcome in ("written", "replaced"):
                    staged.append((file, self._tried(file.path, partial(_stage, self.at(file.path), file))))
            for file, temporary in staged:
                self._tried(file.path, partial(os.replace, temporary, self.at(file.path)))
        except BaseException:
            for _, temporary in staged:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
            raise
        yield from steps

    def _compared(self, file: File) -> Step:
        """Return the step that gives the host ``file``."""
        there = self._tried(file.path, self.at(file.path).read_bytes) if self.has(file.path) else None
        if there == file.content.encode():
            return Step("as it is", file.path)
        if there is not None and file.keep:
            return Step("kept", file.path, "this host's own")
        return Step("written" if there is None else "replaced", file.path, f"mode {file.mode:04o}")

    def _status(self, path: str) -> os.stat_result | None:
        try:
            return self.at(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._failed(path, error) from None

    def _tried(self, path: str, action: Callable[[], _Result]) -> _Result:
        try:
            return action()
        except OSError as error:
            raise self._failed(path, error) from None

    def _failed(self, path: str, error: OSError) -> StoreError | UsageError:
        """Return the error for ``path``. An ordinary user may look at some folders of an installed host only as root."""
        if isinstance(error, PermissionError) and not self._change and os.geteuid() != 0:
            return UsageError(f"{self.at(path)}: this user may not read it: run this command as root, with `sudo`")
        return StoreError(f"{self.at(path)}: {error.strerror or error}; the later steps were not carried out")


def _make_parents(path: Path) -> None:
    """Make the missing folders above ``path``, and let every user enter them, whatever the umask."""
    if path.parent.exists():
        return
    _make_parents(path.parent)
    path.parent.mkdir(PARENT_MODE)
    path.parent.chmod(PARENT_MODE)


def _stage(path: Path, file: File) -> Path:
    """Write the file beside its place. It never has a wider mode than ``file.mode``, not even while it is written."""
    _make_parents(path)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(descriptor, file.mode)  # whatever the umask
            stream.write(file.content.encode())
            stream.flush()
            os.fsync(descriptor)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
