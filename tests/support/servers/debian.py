"""Packages of the Linux distribution that tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from forebay.kafka.embedded.jars import cache_directory
from forebay.model.errors import UsageError

_FETCH_SECONDS = 300.0


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


def found(package: str, path: str) -> Path | None:
    """The program at ``path`` of ``package``: from PATH, or from the cache; None where there is none yet."""
    fetched = cache_directory() / package / path
    installed = shutil.which(Path(path).name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    return Path(installed) if installed else fetched if fetched.exists() else None


def unpacked(package: str, path: str, *more: str) -> Path:
    """The program at ``path`` of ``package``, which is unpacked into the cache if it is not installed. It starts no service.
    ``more``: packages that are unpacked with it; then all that these need and the machine lacks is unpacked too.
    Raises UsageError that says what failed."""
    program = found(package, path)
    if program is not None:
        return program
    target = cache_directory() / package
    work = target.with_name(f"{package}.{os.getpid()}")
    work.mkdir(parents=True)
    try:
        packages = [package]
        try:
            packages = _needed(package, work, *more) if more else packages
            _run(package, work, "apt-get", "download", *packages)
        except UsageError:
            if os.geteuid() != 0:
                raise
            _run(package, work, "apt-get", "update", "-qq")
            packages = _needed(package, work, *more) if more else packages
            _run(package, work, "apt-get", "download", *packages)
        for archive in work.glob("*.deb"):
            _run(package, work, "dpkg", "-x", archive.name, "unpacked")
        shutil.rmtree(target, ignore_errors=True)
        (work / "unpacked").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    program = found(package, path)
    if program is None:
        raise UsageError(f"the package {package} contains no {path}: install it, or name one on PATH")
    return program


def _needed(package: str, folder: Path, *more: str) -> list[str]:
    """Return what apt-get would install for these packages."""
    plan = _run(package, folder, "apt-get", "install", "--simulate", "--no-install-recommends", package, *more)
    return [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]


def _run(package: str, folder: Path, *command: str) -> str:
    """Return what it prints. Raises UsageError."""
    try:
        return subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=_FETCH_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or error
        raise UsageError(
            f"{package} can't be fetched ({' '.join(command)}: {str(output).strip()}): install {package}"
        ) from None
