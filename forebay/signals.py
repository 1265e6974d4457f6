"""Being told to stop, for the services that let something finish first."""

from __future__ import annotations

import os
import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def told_to_stop() -> int:
    """From now on the first SIGTERM or SIGINT makes the descriptor that is returned readable, and a second one, whichever of
    the two, ends the process at once. For the main thread.

    A handler runs amid any line of that thread, user code included: it takes no lock, as an Event, a print or the start of
    a thread would.
    """
    told, tell = os.pipe()

    def handle(_: int, __: FrameType | None) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.write(tell, b"!")

    for number in STOP_SIGNALS:
        signal.signal(number, handle)
    return told
