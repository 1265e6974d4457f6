"""Runs a command that dies with its parent: ``python tether.py PARENT_PID COMMAND…``.

The kernel kills the process when the thread that started it ends (``PR_SET_PDEATHSIG``), so a supervisor that was
killed leaves nobody behind who would hold its ports. The setting survives the exec. Kept free of imports beyond the
standard library: it is started once for each child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before we could ask
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.stderr.write(f"can't start {sys.argv[2]}: {error.strerror}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
