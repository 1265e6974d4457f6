"""Keys of a terminal, and waking of the thread that waits for them."""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from deploy.commands.inspection.top.screen import Key

_KEYS: dict[str, Key] = {
    "q": "quit", "Q": "quit", "p": "pause", "P": "pause", " ": "pause", "\t": "right", "g": "home",
    "k": "up", "j": "down", "h": "left", "l": "right",
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1b[Z": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[5~": "page-up", "\x1b[6~": "page-down", "\x1b[H": "home", "\x1b[1~": "home", "\x1bOH": "home",
}  # fmt: skip
#: one key: a sequence, a sequence that is none, a character, or an Escape that begins no sequence
_ONE = re.compile(r"\x1b(?:\[[0-9;]*[^0-9;]|O.)|[^\x1b]|\x1b(?=[^\[O])", re.DOTALL)
_READ_BYTES = 1_024


class Keyboard:
    """The keys of the terminal at ``descriptor``. :meth:`wake` may be called from any thread and from a signal's handler."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._woken, self._waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = ""
        #: whether the terminal was closed
        self.closed = False

    def wake(self) -> None:
        """End a wait of :meth:`read`, or the next one."""
        with suppress(BlockingIOError, OSError):  # full: it wakes already; or closed
            os.write(self._waking, b"\0")

    def read(self, seconds: float) -> list[Key]:
        """Return the keys that were pressed. Waits at most ``seconds`` for a key or a call of :meth:`wake`."""
        ready, _, _ = select.select([self._descriptor, self._woken], [], [], seconds)
        if self._woken in ready:
            with suppress(BlockingIOError):
                while os.read(self._woken, _READ_BYTES):
                    pass
        if self._descriptor not in ready:
            return []
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except OSError:  # the terminal was closed
            data = b""
        self.closed = not data
        return self.keys(data.decode("utf-8", "replace"))

    def keys(self, text: str) -> list[Key]:
        """Return the keys of ``text``, which continues the text of the call before: a sequence may arrive in parts."""
        text = self._rest + text
        found, at = [], 0
        for one in _ONE.finditer(text):
            if one.start() != at:
                break
            found.append(_KEYS.get(one[0], "other"))
            at = one.end()
        self._rest = text[at:][-8:]
        return found

    def close(self) -> None:
        os.close(self._woken)
        os.close(self._waking)


@contextmanager
def keyboard(descriptor: int) -> Iterator[Keyboard]:
    """Yield the keyboard of a terminal: keys arrive without Enter and are not printed. A new size of the terminal wakes it."""
    before = termios.tcgetattr(descriptor)
    keys = Keyboard(descriptor)
    resized = signal.signal(signal.SIGWINCH, lambda *_: keys.wake())
    try:
        tty.setcbreak(descriptor)
        yield keys
    finally:
        signal.signal(signal.SIGWINCH, resized)
        with suppress(termios.error, OSError):  # the terminal was closed
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        keys.close()
