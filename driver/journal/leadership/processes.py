"""Which process a pid names, and whether that process has ended. If this process can't be certain, it gives no answer.

A pid is a number within a pid namespace of one running kernel. Containers on one machine, and machines with the same name, have
different namespaces. So a pid is looked up only if boot and namespace are those of this process.
"""

from __future__ import annotations

import os
from pathlib import Path


def process_start(pid: int) -> str:
    """Return boot id, start time and pid namespace of a process. Together with the pid they identify it uniquely. Return "" if
    there is no such process here, or if it can't be seen."""
    start, here = _start_time(pid), _here()
    return f"{here[0]}/{start}/{here[1]}" if start and here is not None else ""


def boot_and_start(pid: int) -> str:
    """Return boot and start time of a process, in the form that all releases write into the lease; "" if it can't be seen."""
    start, boot = _start_time(pid), _boot()
    return f"{boot}/{start}" if start and boot else ""


def pid_namespace() -> str:
    """Return the pid namespace of this process; "" if ``/proc`` is of another namespace."""
    here = _here()
    return here[1] if here is not None else ""


def is_here(started: str) -> bool:
    """Whether the process for which :func:`process_start` returned ``started`` has its pid in this process's pid namespace."""
    boot, _, rest = started.partition("/")
    return bool(rest) and (boot, rest.partition("/")[2]) == _here()


def has_ended(pid: int, started: str) -> bool:
    """Whether the process has ended for certain. ``started``: as :func:`process_start` returned it."""
    if not is_here(started):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, ValueError):
        pass  # the process exists, perhaps another user's
    now = process_start(pid)
    return (now != "" and now != started) or _state(pid) in ("Z", "X")


def is_stopped(pid: int) -> bool:
    """Whether the process is suspended (SIGSTOP)."""
    return _state(pid) in ("T", "t")


def _here() -> tuple[str, str] | None:
    """This kernel's boot and this process's pid namespace; None if ``/proc`` is of another namespace."""
    try:
        if int(os.readlink("/proc/self")) != os.getpid():
            return None
        namespace = os.readlink("/proc/self/ns/pid")
    except (OSError, ValueError):
        return None
    boot = _boot()
    return (boot, namespace) if boot else None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    fields = _fields(pid)
    return fields[0] if fields else ""


def _start_time(pid: int) -> str:
    fields = _fields(pid)
    return fields[19] if fields and fields[0] != "Z" else ""
