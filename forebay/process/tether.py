"""Runs a command that dies with its parent: ``python tether.py PARENT_PID SIGNAL COMMAND…``.

The kernel sends the signal when the thread that started the command ends (``PR_SET_PDEATHSIG``). So a killed supervisor leaves
no child behind that holds its ports. The setting survives the exec. This module imports only the standard library, since it
starts once for each child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tie(parent: int, number: int) -> None:
    """Let this process receive signal ``number`` when the thread of process ``parent`` that started it ends."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before the prctl
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    tie(int(sys.argv[1]), int(sys.argv[2]))
    try:
        os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606  the command of its own parent
    except OSError as error:
        sys.stderr.write(f"cannot start {sys.argv[3]}: {error.strerror}\n")
        sys.exit(2)


def tethered(command: Sequence[str], number: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return ``command`` as a command that receives signal ``number`` when the calling thread ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(number)), *command]


if __name__ == "__main__":
    main()
