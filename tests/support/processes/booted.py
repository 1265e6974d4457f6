"""A machine that systemd boots, for tests of units: this machine's files below a layer that is thrown away.

The root is an overlay over ``/`` in a separate mount namespace. ``systemd-nspawn`` starts it with a network of loopback alone.
All of it is in a separate namespace for processes. The kernel ends the first process of that namespace with the test's process,
and the others with it; systemd-nspawn alone would leave a machine running. Its control groups are below a separate one;
otherwise two machines at the same time would have the same ones. Needs root and the packages systemd and systemd-container
(``python -m tests.support.processes.booted`` installs them).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from forebay.process.tether import tethered
from tests.support.servers import debian

#: maximum wait of a test for an expected event; never asserted on
PATIENCE_SECONDS = 120.0
_TICK_SECONDS = 0.1
_GROUP = "forebay-machine-"
_PACKAGES = ("systemd", "systemd-sysv", "systemd-container")
_BOOT = """
set -e
while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs"; shift; done
shift
mount -t tmpfs -o mode=0755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
# what this machine does by the hour is none of the test's
ln -sf /dev/null "$1/root/etc/systemd/system/timers.target"
echo "$2" > "$1/root/etc/hostname"
shift 2
exec "$@"
"""


def require_booting(missing: Callable[[str], None]) -> None:
    """Calls ``missing`` with the reason if no machine can be booted here."""
    if os.geteuid() != 0:
        missing("units are run by a systemd of the test's own, which needs root")
    if shutil.which("systemd-nspawn") is None or not Path("/lib/systemd/systemd").exists():
        missing("systemd-nspawn is not here: python -m tests.support.processes.booted")
    if lacks := debian.lacks_of_root():
        missing(f"units are run by a systemd of the test's own, which needs more: {lacks}")


class NotBootedError(Exception):
    """This machine refuses a part of it: mounts, namespaces, control groups."""


class Booted:
    """Entering boots, or raises NotBootedError; leaving kills. ``folders``: path in the machine → folder of this one, to be read
    there."""

    def __init__(self, folder: Path, name: str, folders: Mapping[str, Path]) -> None:
        self._folder = folder / "machine"
        self._name = name
        self._folders = dict(folders)
        self._log = folder / "boot.log"
        self._groups: list[Path] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0

    def __enter__(self) -> Booted:
        self._folder.mkdir()
        try:
            self._groups = _own_groups()
        except OSError as error:
            raise NotBootedError(f"there is no control group to be had: {error}") from error
        command = [
            "systemd-nspawn", "--quiet", "--directory", str(self._folder / "root"), "--machine", self._name,
            "--register=no", "--keep-unit", "--private-network", "--console=pipe",
            *(f"--bind-ro={source}:{target}" for target, source in self._folders.items()),
            "--boot", "systemd.unit=basic.target",
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                tethered([
                    "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                    "sh", "-c", _BOOT, "boot", *map(str, self._groups), "--", str(self._folder), self._name, *command,
                ]),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            self.wait(self._is_up, "the machine to boot")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            machine = self.processes()
            self._process.kill()  # and with it the machine
            self._process.wait()
            await_end(machine)
        for group in self._groups:
            _remove(group)

    def _is_up(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            raise NotBootedError(f"it ended with {code}: {self._log.read_text(errors='replace')[-3000:]}")
        for init in self.processes()[1:]:
            self._init = init
            if self.run("systemctl", "is-active", "basic.target", check=False).stdout.strip() == "active":
                return True
        return False

    def processes(self) -> list[int]:
        """systemd-nspawn and the machine's first process, as far as they run yet, by their ids out here."""
        assert self._process is not None
        outer = _children(self._process.pid)
        return [*outer, *(inner for pid in outer for inner in _children(pid))]

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs ``command`` in the machine as its root, with nothing of this process's environment."""
        done = subprocess.run(
            ["nsenter", f"--target={self._init}", "--all", "--root", "--", "env", "--chdir=/", *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"},
        )  # fmt: skip
        if check and done.returncode != 0:
            raise AssertionError(
                f"{shlex.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.journal()}"
            )
        return done

    def write(self, path: str, text: str) -> None:
        """Writes a file of the machine as its root."""
        self.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" > "$1"', "write", path, text)

    def read(self, path: str) -> str:
        return self.run("cat", path).stdout

    def property(self, unit: str, name: str) -> str:
        """What systemd says of ``unit``: ``ActiveState``, ``NRestarts``, ``StatusText``, ``Result``, …"""
        return self.run("systemctl", "show", unit, f"--property={name}", "--value").stdout.strip()

    def journal(self) -> str:
        """The end of what the units said."""
        command = [
            "nsenter",
            f"--target={self._init}",
            "--all",
            "--root",
            "--",
            "journalctl",
            "--no-pager",
            "--lines=120",
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def wait(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds:g} s without success for: {what}\n{self.journal()}")
            time.sleep(_TICK_SECONDS)


def _own_groups() -> list[Path]:
    """A control group of its own in every tree in which systemd keeps processes, named by the test's process; what killed ones
    have left is removed."""
    groups = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        places = {"": ("unified", "."), "name=systemd": ("systemd",)}.get(controllers, ())
        for root in (Path("/sys/fs/cgroup", place) for place in places):
            if (root / "cgroup.procs").exists():
                here = root / path.lstrip("/")
                for left in here.glob(f"{_GROUP}*"):
                    if not Path(f"/proc/{left.name.removeprefix(_GROUP)}").exists():
                        with suppress(
                            OSError
                        ):  # its processes are just ending, or another test removes it: the next one's
                            _remove(left)
                group = here / f"{_GROUP}{os.getpid()}"
                group.mkdir()
                groups.append(group)
                break
    return groups


def _remove(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        os.rmdir(folder)


def await_end(processes: Sequence[int]) -> None:
    """Returns when none of ``processes`` runs; one that was not asked to end counts as ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := [pid for pid in processes if _runs(pid)]:
        if time.monotonic() > deadline:
            raise AssertionError(f"processes {left} run still")
        time.sleep(_TICK_SECONDS)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:  # it has ended
        return []


def install() -> None:
    """What is missing, where that is allowed."""
    if shutil.which("systemd-nspawn") is None or not Path("/lib/systemd/systemd").exists():
        debian.install("units are tested", *_PACKAGES)


if __name__ == "__main__":
    sys.exit(debian.main(install))
