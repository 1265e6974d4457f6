"""SIGTERM and SIGINT, for services that finish work before they end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signals(stop: Callable[[], None], again: Callable[[], None] | None = None) -> Iterator[None]:
    """While open, the first SIGTERM or SIGINT calls ``stop``, and each later one of either calls ``again``.

    ``again``: None ends the process immediately. Both are called in a separate thread. Open it in the main thread.

    Python runs a signal handler between two instructions of the main thread. A signal that arrives just before that thread waits
    in a system call is handled when the call returns, which may be never. The byte that Python's C handler writes
    (:func:`signal.set_wakeup_fd`) does not depend on the main thread.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)

    def handle(_: int, __: FrameType | None) -> None:
        if again is None:  # works even if no thread of this process can run
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)

    def listen() -> None:
        asked = False
        with open(reads, "rb", buffering=0) as pipe:
            while arrived := pipe.read(1):
                if arrived[0] not in STOP_SIGNALS:
                    continue
                if not asked:
                    asked = True
                    stop()
                elif again is not None:
                    again()
                else:
                    os._exit(128 + arrived[0])

    woken_before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    handled_before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    threading.Thread(target=listen, name="stop signals", daemon=True).start()
    try:
        yield
    finally:
        for number, before in handled_before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(woken_before)
        os.close(writes)
