"""A failpoint acts at its place, before the thread that reached it does anything else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from forebay.process.tether import tethered

_ROUNDS = 20
#: a thread that writes a byte after each stop, beside a main thread that waits as a receiver's does
_PROCESS = f"""
import os, threading
from forebay.process import failpoints

def work():
    for _ in range({_ROUNDS}):
        failpoints.arm("receiver.before-report=stop")
        failpoints.hit("receiver.before-report")
        os.write(1, b"!")

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_a_stop_holds_the_thread_that_came_to_it_and_not_only_the_process_a_moment_later() -> None:
    """Otherwise a report that was to come late is now and then sent before the process stands still."""
    with subprocess.Popen(
        tethered([sys.executable, "-c", _PROCESS]), stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        went_on = 0
        for number in range(_ROUNDS):
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), status
            went_on += (process.stdout.read() or b"").count(b"!") - (number > 0)
            process.send_signal(signal.SIGCONT)
        assert went_on == 0
        assert process.wait() == 0
