"""A step in a forked child of this process."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

_SECONDS_MAX = 60


def exit_code_of_child(step: Callable[[], int]) -> int:
    """Run ``step`` in a forked child. Return its result; 99, after its traceback, if it raised; minus SIGALRM if it hung."""
    child = os.fork()
    if not child:
        code = 99
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the child even if it waits in native code
            signal.alarm(_SECONDS_MAX)
            code = step()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
