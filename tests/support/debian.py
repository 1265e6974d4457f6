"""Packages of the distribution that tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

from forebay.errors import UsageError


def main(act: Callable[[], object]) -> int:
    """What a module of these does when it is run, with the exit code of it."""
    try:
        act()
    except UsageError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


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
