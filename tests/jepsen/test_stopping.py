"""A long run that is stopped removes what it has made."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from tests.support.processes.stopping import interrupt_on_signals

interrupt_on_signals()
with ExitStack() as stack:
    stack.callback(Path(sys.argv[1]).touch)
    print("runs", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_a_run_of_the_background_after_its_clean_up(tmp_path: Path, number: signal.Signals) -> None:
    command = [
        "sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", RUN, str(tmp_path / "removed"),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode
    assert (tmp_path / "removed").exists()
