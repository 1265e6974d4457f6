"""Ends a long run of a tool so that it still removes its networks and mounts."""

from __future__ import annotations

import signal


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt in the main thread on SIGTERM and SIGINT. A shell lets its background processes ignore SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
