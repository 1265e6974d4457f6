"""Which process a pid means, and whether it has ended: said only where this process can be sure.

A pid is a number within a pid namespace of one running kernel. Containers on one machine, and containers or machines whose names
are the same, each have their own; so a pid is looked up only where boot and namespace are the same as here.
"""

from __future__ import annotations

import os
from pathlib import Path


def process_start(pid: int) -> str:
    """Boot, start time and pid namespace, which tell a process from every other one that ever had that pid; "" if there is none
    here, or it can't be seen."""
    start, here = _start_time(pid), _here()
    return f"{here[0]}/{start}/{here[1]}" if start and here is not None else ""


def boot_and_start(pid: int) -> str:
    """Return boot and start time of a process, in the form that every release writes into its lease; "" if it can't be seen."""
    start, boot = _start_time(pid), _boot()
    return f"{boot}/{start}" if start and boot else ""


def pid_namespace() -> str:
    """Return the pid namespace of this process; "" where ``/proc`` is not of that namespace."""
    here = _here()
    return here[1] if here is not None else ""


def is_here(started: str) -> bool:
    """Whether that process, of which :func:`process_start` said ``started``, has its pid in the pid namespace of this one."""
    boot, _, rest = started.partition("/")
    return bool(rest) and (boot, rest.partition("/")[2]) == _here()


def has_ended(pid: int, started: str) -> bool:
    """Whether this process is sure of it."""
    if not is_here(started):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, ValueError):
        pass  # another user's, say: it is there
    now = process_start(pid)
    return (now != "" and now != started) or _state(pid) in ("Z", "X")


def is_stopped(pid: int) -> bool:
    return _state(pid) in ("T", "t")


def _here() -> tuple[str, str] | None:
    """This kernel's boot and this process's pid namespace; None where ``/proc`` is not of that namespace."""
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
