"""The memory that this process can still take, as the machine and its control groups limit it."""

from __future__ import annotations

import re
from pathlib import Path

_MACHINE = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_KIBIBYTE = 1024


def free_bytes(machine: Path = _MACHINE, own_group: Path = _OWN_GROUP, groups: Path = _GROUPS) -> int:
    """Return the free memory in bytes, including page cache that the kernel can drop: the least of the machine's, and of each
    control group (version 2) that holds this process and has a limit. 0 where the machine's is not known."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", _text(machine), re.MULTILINE)
    free = int(found[1]) * _KIBIBYTE if found is not None else 0
    own = re.search(r"^0::/(.*)$", _text(own_group), re.MULTILINE)
    group = groups / own[1] if own is not None else groups
    while group.is_relative_to(groups):
        free = min(free, _left_in(group, free))
        group = group.parent
    return free


def _left_in(group: Path, otherwise: int) -> int:
    limit, used = _text(group / "memory.max").strip(), _text(group / "memory.current").strip()
    if not limit.isdecimal() or not used.isdecimal():  # "max": no limit
        return otherwise
    pages = re.findall(r"^(?:in)?active_file (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
    return max(0, int(limit) - int(used) + sum(map(int, pages)))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
