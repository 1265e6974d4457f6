"""Forks of the imported commands behave as processes of ``forebay``, and end with the process that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.support.processes import forked

ROOT = Path(__file__).resolve().parents[2]
_OWNER = """
import os, sys, threading
from pathlib import Path
from tests.suite.test_forked import agent
print(agent(Path(sys.argv[1])).pid, flush=True)
threading.Event().wait()
"""
CONFIGURATION = """
stream = "s"
[kafka]
topics = ["t"]
"bootstrap.servers" = "127.0.0.1:1"
[wal]
url = "file://{folder}/wal"
[driver]
url = "http://127.0.0.1:1"
journal = "file://{folder}/journal"
[agent]
url = "http://127.0.0.1:0"
blocks = "{folder}/blocks"
"""


def configured(folder: Path) -> dict[str, str]:
    (folder / "forebay.toml").write_text(CONFIGURATION.format(folder=folder))
    return {**os.environ, "FOREBAY_CONFIG": "forebay.toml"}


def agent(folder: Path) -> forked.Forked:
    """Start an agent whose driver does not run; its log is in the file ``log``. Return it when it serves."""
    environment = configured(folder)
    with (folder / "log").open("ab") as log:
        process = forked.server().start(
            ["agent"], folder=folder, environment=environment, out=log.fileno(), error=log.fileno()
        )
    deadline = time.monotonic() + 60
    while " serves " not in (folder / "log").read_text():
        assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
        threading.Event().wait(0.01)
    return process


def test_fork_has_its_own_environment_folder_output_and_exit_code(tmp_path: Path) -> None:
    before = forked.cpu_seconds()
    environment = configured(tmp_path)
    shown = forked.run(["config", "show", "--json"], folder=tmp_path, environment=environment, seconds=60)
    assert shown.returncode == 0 and str(tmp_path) in shown.stdout, shown.stderr
    environment["FOREBAY__DRIVER__URL"] = "nowhere"
    refused = forked.run(["config", "show"], folder=tmp_path, environment=environment, seconds=60)
    assert (refused.returncode, refused.stdout) == (2, "") and "nowhere" in refused.stderr
    assert forked.cpu_seconds() > before


def test_fork_ends_by_the_signal_it_is_sent(tmp_path: Path) -> None:
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        process = agent(tmp_path)
        assert process.poll() is None and os.getsid(process.pid) == process.pid
        process.send_signal(number)
        assert process.wait(60) == code
        (tmp_path / "log").unlink()


def test_fork_is_killed_with_the_process_that_started_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        descriptor = os.pidfd_open(int(owner.stdout.readline()))
        owner.kill()
        assert select.select([descriptor], [], [], 60)[0], "it ends"
        os.close(descriptor)


def test_standard_input_of_a_fork_is_open_and_empty(tmp_path: Path) -> None:
    """Otherwise the first file or socket that it opens becomes descriptor 0."""
    process = agent(tmp_path)
    assert os.readlink(f"/proc/{process.pid}/fd/0") == os.devnull
    process.kill()
    process.wait(30)


def test_fork_whose_process_id_was_used_before_has_an_exit_code_of_its_own() -> None:
    """A long run has more forks than the system has process ids."""
    server = forked.server()
    earlier, later = (forked.Forked(server, os.getpid(), number) for number in (-1, -2))
    server._codes[-1] = 7
    assert earlier.poll() == 7 and later.poll() is None
