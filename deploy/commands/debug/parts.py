"""The parts of a bundle: versions, environment, answers of services, journal, processes, logs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec

from deploy.commands.recovery.journal import JournalInspection, inspect_journal
from deploy.supervision.run_lock import holder, lock_path
from driver.spark.java.check import check_java
from forebay.http.client import Client
from forebay.http.driver_client import DriverClient
from forebay.model.errors import ForebayError, SettingsError, StoreError
from forebay.security.access import Access
from forebay.settings.redaction import shown_value
from forebay.settings.schema import Settings

#: name in the bundle → path of the driver's answer
DRIVER_ANSWERS = {
    "status.json": "/v1/status",
    "overview.json": "/v1/overview",
    "lag.json": "/v1/lag",
    "settings-of-driver.json": "/v1/settings",
    "partitions.json": "/v1/partitions?limit=1000",
    "receivers.json": "/v1/receivers?limit=1000",
    "hosts.json": "/v1/hosts?limit=1000",
    "cursors.json": "/v1/cursors?limit=1000",
    "batches.json": "/v1/batches?limit=200",
    "series.json": "/v1/series?points_max=1500",
    "wal.json": "/v1/wal",
    "states.json": "/v1/states",
    "journal-of-driver.json": "/v1/journal",
    "listeners.json": "/v1/listeners",
    "direct.json": "/v1/direct",
    "threads-of-driver.json": "/v1/threads",
}
AGENT_ANSWERS = {"status-of-agent.json": "/v1/status", "threads-of-agent.json": "/v1/threads"}
#: prefixes of environment variables that matter to a stream
_VARIABLES = (
    "FOREBAY", "SPARK", "PYSPARK", "PYTHON", "JAVA", "HADOOP", "KAFKA", "AWS", "GOOGLE", "AZURE", "KRB5", "LANG", "LC_",
    "TZ", "PATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY",
)  # fmt: skip
_ANSWER_SECONDS = 5.0
#: maximum of one log file's end
LOG_BYTES_MAX = 2_000_000
_JOURNAL_LINES = 20_000
_COMMAND_SECONDS = 20.0


def versions() -> dict[str, object]:
    packages = {found.metadata["Name"]: found.version for found in distributions() if found.metadata["Name"]}
    try:
        java: object = check_java()._asdict()
    except (SettingsError, StoreError) as error:
        java = str(error)
    return {
        "python": sys.version,
        "executable": sys.executable,
        "platform": platform.platform(),
        "java": java,
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


def environment(variables: Mapping[str, str]) -> dict[str, object]:
    """Return the variables that matter to a stream, without secrets."""
    chosen = {name: text for name, text in sorted(variables.items()) if name.upper().startswith(_VARIABLES)}
    return {name: shown_value(name, text) for name, text in chosen.items()}


def answers_of_driver(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield name and maker of each answer of the driver that leads."""

    def answer(path: str) -> msgspec.Raw:
        with closing(DriverClient.of(settings, _ANSWER_SECONDS)) as client:
            return client.get(path, msgspec.Raw)

    for name, path in DRIVER_ANSWERS.items():
        yield name, lambda path=path: answer(path)


def answers_of_agent(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield name and maker of each answer of this machine's agent."""

    def answer(path: str) -> msgspec.Raw:
        with closing(Client(settings.agent.url, _ANSWER_SECONDS, Access.of(settings, "operator"))) as client:
            return client.get(path, msgspec.Raw)

    for name, path in AGENT_ANSWERS.items():
        yield name, lambda path=path: answer(path)


def journal(settings: Settings) -> JournalInspection:
    """Return the inspection of the journal in its store."""
    from wal.storage import open_storage

    wal = open_storage(settings.wal.url, settings.storage) if settings.has_wal else None
    return inspect_journal(open_storage(settings.driver.journal, settings.storage), wal, settings.stream)


# ---- processes -------------------------------------------------------------------------------------------------------


class Process(msgspec.Struct, frozen=True):
    """A process of Forebay, or a child of one, as the kernel shows it.

    ``threads``: thread id → name, state, and where it waits.
    """

    pid: int
    parent: int
    command: list[str]
    state: str
    memory_bytes: int
    open_files: int | None
    threads: dict[str, str]


def processes() -> list[Process]:
    """Return the processes of Forebay on this machine that this user may see, and their descendants."""
    every = {one.pid: one for path in Path("/proc").glob("[0-9]*") if (one := _process(path)) is not None}
    chosen = {pid for pid, one in every.items() if any(Path(word).name == "forebay" for word in one.command[:3])}
    grown = True
    while grown:
        more = {pid for pid, one in every.items() if one.parent in chosen} - chosen
        chosen |= more
        grown = bool(more)
    return [every[pid] for pid in sorted(chosen - {os.getpid()})]


def _process(path: Path) -> Process | None:
    """Return the process of a folder of /proc; None if it has ended, or belongs to another user."""
    try:
        status = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines() if ":" in line)
        command = (path / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
        threads = {task.name: _thread(task) for task in sorted((path / "task").iterdir())}
    except (OSError, ValueError):
        return None
    try:
        open_files: int | None = len(list((path / "fd").iterdir()))
    except OSError:
        open_files = None
    return Process(
        pid=int(path.name),
        parent=int(status.get("PPid", "0")),
        command=_without_secrets(command),
        state=status.get("State", "").strip(),
        memory_bytes=int(status.get("VmRSS", "0").split()[0]) * 1024,
        open_files=open_files,
        threads=threads,
    )


def _without_secrets(command: list[str]) -> list[str]:
    """Return a command line without values that follow an option with the name of a secret."""
    return [
        str(shown_value(command[at - 1] if at and command[at - 1].startswith("-") else "", word))
        for at, word in enumerate(command)
    ]


def _thread(task: Path) -> str:
    try:
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        waits = (task / "wchan").read_text().strip()
        return f"{(task / 'comm').read_text().strip()} {state} {waits}".rstrip()
    except OSError:
        return "ended"


# ---- logs ------------------------------------------------------------------------------------------------------------


def logs(settings: Settings, folder: Path | None) -> Iterator[tuple[str, Any]]:
    """Yield name and maker of the end of each log: of ``folder``, or of the folder that a running ``forebay up`` was given; and
    of the units of systemd, if this machine has them."""
    place = folder or _folder_of_up(settings)
    for path in sorted(place.glob("*.log")) if place is not None else ():
        yield f"logs/{path.name}", lambda path=path: _end(path)
    if shutil.which("journalctl") and any(Path("/etc/systemd/system").glob("forebay-*.service")):
        yield "logs/systemd.log", _systemd


def _folder_of_up(settings: Settings) -> Path | None:
    """Return the folder of the option ``--logs`` of this machine's ``forebay up``."""
    try:
        with holder(lock_path(settings.agent.blocks, settings.stream)) as found:
            if found is None:
                return None
            arguments = Path(f"/proc/{found.pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            base = Path(os.readlink(f"/proc/{found.pid}/cwd"))
    except (OSError, ForebayError):
        return None
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == "--logs":
            return base / (value if equals else arguments[at + 1] if at + 1 < len(arguments) else "")
    return None


def _end(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES_MAX))
        data = file.read(LOG_BYTES_MAX)
    cut = size > LOG_BYTES_MAX
    text = data.decode("utf-8", "replace")
    # a cut line may begin in the middle of a secret
    return f"(the last {LOG_BYTES_MAX} of {size} bytes)\n{text.partition(chr(10))[2]}" if cut else text


def _systemd() -> str:
    done = subprocess.run(
        ["journalctl", "--unit", "forebay-*", "--lines", str(_JOURNAL_LINES), "--no-pager", "--output", "short-iso"],  # noqa: S607  run by a person, with their PATH
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    if done.returncode:
        raise ForebayError(f"journalctl failed with exit code {done.returncode}: {done.stderr.strip()}")
    text = done.stdout
    # a cut line may begin in the middle of a secret
    return text if len(text) <= LOG_BYTES_MAX else text[-LOG_BYTES_MAX:].partition("\n")[2]
