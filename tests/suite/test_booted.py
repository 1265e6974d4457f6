"""A machine that systemd boots for tests ends with them, however they end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from forebay.process.tether import tethered
from tests.conftest import missing
from tests.support.processes.booted import Booted, NotBootedError, await_end, require_booting
from tests.support.run.wheel import ROOT

#: boots, tells the machine's processes, and waits to be killed
_OWNER = """
import json, sys
from pathlib import Path
from tests.support.processes.booted import Booted
with Booted(Path(sys.argv[1]), "left", {}) as machine:
    print(json.dumps(machine.processes()), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def booting() -> None:
    require_booting(missing)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Booted]:
    folder = tmp_path / "own"
    folder.mkdir()
    with ExitStack() as opened:
        try:
            machine = opened.enter_context(Booted(folder, "own", {}))
        except NotBootedError as error:
            pytest.skip(f"NOT TESTED: this machine lets no systemd boot: {error}")
        yield machine


def groups(process: int) -> set[str]:
    """Those of its control groups that are not everybody's."""
    lines = Path(f"/proc/{process}/cgroup").read_text().splitlines()
    return {line for line in lines if line.endswith("/init.scope")}


def test_machines_of_two_processes_share_no_control_group_and_end_with_their_process(
    machine: Booted, tmp_path: Path
) -> None:
    """With shared ones systemd waits, when it stops a unit, for the end of processes of the other machine's, until time is up."""
    other = subprocess.Popen(
        tethered([sys.executable, "-c", _OWNER, str(tmp_path)]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    with other:
        assert other.stdout is not None
        processes = json.loads(other.stdout.readline())
        own = machine.processes()
        assert len(processes) == len(own) == 2, "systemd-nspawn, and the machine's first process"
        assert groups(processes[1]) and groups(own[1])
        assert not groups(processes[1]) & groups(own[1])
        other.kill()
    await_end(processes)
    assert machine.property("basic.target", "ActiveState") == "active"
