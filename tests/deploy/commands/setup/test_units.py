"""The unit files of ``forebay install``: restarts, times for a stop, and systemd's own judgement."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.commands.setup.installation import EXAMPLE, ROLES, UNITS, Role, unit
from deploy.main import main
from driver.decision_loop.stopping import GRACE_SECONDS
from driver.service import CLOSE_SECONDS as DRIVER_CLOSE_SECONDS
from executor_agent.main import CLOSE_SECONDS as AGENT_CLOSE_SECONDS
from executor_agent.main import STOP_MARGIN_SECONDS
from forebay.settings.reading.load import load
from receiver.service import CLOSE_SECONDS as RECEIVER_CLOSE_SECONDS
from tests.conftest import missing

PROGRAM = "/opt/forebay/bin/forebay"
#: better is less; the unit files must not be worse
EXPOSURE_MAX = 2.0


def directives(role: Role) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit(role))
    return parser["Service"]


@pytest.mark.parametrize("role", ROLES)
def test_failure_that_a_restart_can_not_fix_is_not_restarted(role: Role) -> None:
    """INV-4: a fenced service stays down."""
    service = directives(role)
    assert service["RestartPreventExitStatus"].split() == ["2", "4"]
    assert service["Restart"] == "on-failure" and service["Type"] == "notify"


def seconds(text: str) -> float:
    return sum(float(part[:-3]) * 60 if part.endswith("min") else float(part[:-1]) for part in text.split())


def test_a_stop_has_the_time_that_the_defaults_give_it() -> None:
    settings = load(EXAMPLE, {})
    needed = {
        "driver": settings.driver.stop_timeout + GRACE_SECONDS + DRIVER_CLOSE_SECONDS,
        "agent": settings.receiver.drain_timeout + STOP_MARGIN_SECONDS + AGENT_CLOSE_SECONDS,
        "receiver": settings.receiver.drain_timeout + RECEIVER_CLOSE_SECONDS,
    }
    for role in ROLES:
        assert seconds(directives(role)["TimeoutStopSec"]) > needed[role], role


@pytest.mark.parametrize("role", ROLES)
def test_systemd_takes_the_unit_and_calls_it_safe(role: Role, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze is not here: apt-get install systemd")
    assert main(["install", "--prefix", str(tmp_path), "--program", PROGRAM, "--yes"]) == 0
    program = tmp_path / PROGRAM.lstrip("/")
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    shutil.copytree("/usr/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    name = UNITS[role].replace("@.", "@1.")
    verified = analyze(tmp_path, "verify", name)
    assert (verified.returncode, verified.stderr) == (0, ""), verified.stderr
    judged = analyze(tmp_path, "security", "--offline=true", f"--threshold={EXPOSURE_MAX * 10:.0f}", name)
    assert judged.returncode == 0, judged.stdout[-2000:]


def analyze(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", f"--root={root}", *arguments], capture_output=True, text=True, check=False
    )
