"""Packages of the Linux distribution that tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from forebay.model.errors import UsageError


def main(act: Callable[[], object]) -> int:
    """What a module of these does when it is run, with the exit code of it."""
    try:
        act()
    except UsageError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def lacks_of_root() -> str:
    """Say what a chroot lacks for tests with mounts and namespaces of their own; empty if nothing."""
    lacks = []
    mounts = Path("/proc/self/mountinfo")
    if not mounts.exists():
        lacks.append("/proc is not mounted")
    elif not any(line.split()[4] == "/" for line in mounts.read_text().splitlines()):
        lacks.append("its root folder is not a mount point (mount --rbind ROOT ROOT before chroot)")
    if not Path("/sys/class/net").exists():
        lacks.append("/sys is not mounted")
    return "this looks like a chroot: " + ", ".join(lacks) if lacks else ""


def install(what_for: str, *packages: str) -> None:
    """By apt-get. Raises UsageError where that can't be, or fails."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise UsageError(f"{what_for} with {', '.join(packages)}: install them as root")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        try:
            subprocess.run(["apt-get", *arguments], check=True, env=environment, stdout=sys.stderr)
        except subprocess.CalledProcessError as error:
            raise UsageError(f"{what_for} with {', '.join(packages)}: {error}") from None
