"""A booted machine with this tree's wheel in ``/opt/forebay``, as ``forebay install`` expects it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.support.processes.booted import Booted, NotBootedError, require_booting
from tests.support.run.wheel import DEPENDENCIES, build_wheel

FOREBAY = "/opt/forebay/bin/forebay"
DRIVER, AGENT, RECEIVER = "forebay-driver.service", "forebay-agent.service", "forebay-receiver@r0.service"
DATA = "/var/lib/forebay"


@contextmanager
def machine_with_the_wheel(
    folder: Path, name: str, folders: Mapping[str, Path] = {}, pandas: bool = True
) -> Iterator[Booted]:
    """``folders``: as for ``Booted``. Without ``pandas`` every process starts a second sooner: pyarrow imports it wherever it
    finds it. Skips the test where this machine lets no systemd boot."""
    require_booting(missing)
    build_wheel(folder)
    python, seen = _python_of_the_machine()
    with ExitStack() as opened:
        try:
            booted = opened.enter_context(Booted(folder, name, {**seen, "/opt/wheel": folder / "wheel-own", **folders}))
        except NotBootedError as error:
            # in CI too: that is the machine's to allow, and what is missing then can't be installed
            pytest.skip(f"NOT TESTED: this machine lets no systemd boot: {error}")
        # where it was built with a shared library, it looks for that at its old place first, which the services can't see
        booted.write("/etc/ld.so.conf.d/00-python.conf", "/opt/python/lib\n")
        booted.run("ldconfig")
        booted.run(python, "-m", "venv", "--without-pip", "/opt/forebay")
        site = booted.run("sh", "-c", "echo /opt/forebay/lib/python3*/site-packages").stdout.strip()
        booted.write(f"{site}/dependencies.pth", "/opt/dependencies\n")
        if not pandas:
            booted.write(f"{site}/pandas.py", 'raise ImportError("not needed")\n')
        booted.run(
            "sh", "-c",
            "/opt/forebay/bin/python -m pip install --quiet --no-index --no-deps --ignore-installed /opt/wheel/*.whl",
        )  # fmt: skip
        yield booted


def override(machine: Booted, unit: str, *directives: str) -> None:
    """In place of what was overridden before."""
    machine.write(f"/etc/systemd/system/{unit}.d/test.conf", "[Service]\n" + "\n".join(directives) + "\n")
    machine.run("systemctl", "daemon-reload")


def _python_of_the_machine() -> tuple[str, dict[str, Path]]:
    """Python as the services can see it: this one, put elsewhere if it is in a user's home; and the folders for that."""
    folders = {"/opt/dependencies": DEPENDENCIES}
    base = Path(sys.base_prefix).resolve()
    if not str(base).startswith(("/root/", "/home/", "/tmp/")):
        return os.path.realpath(sys.executable), folders
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"/opt/python/bin/{name}", {**folders, "/opt/python": base}
