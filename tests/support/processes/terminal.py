"""A command in a pseudo-terminal, whose screen a test reads as a person would."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import pyte

#: maximum wait for an expected screen; never asserted on
PATIENCE_SECONDS = 60.0
#: an escape sequence without an effect, after the command's last byte
_END = b"\x1b[0;0m"


class Terminal:
    """Runs ``command`` in a terminal of the given size. ``raw``: everything that it wrote."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        width: int = 100,
        height: int = 32,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self._screen)
        self._changed = threading.Condition()
        self._ended = False
        self.raw = b""
        self._own, theirs = pty.openpty()
        self._set_size(width, height)
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        # the terminal controls its session, so that it gets the signals of a terminal
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command],
            stdin=theirs, stdout=theirs, stderr=theirs,
            env={**inherited, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(environment or {})},
        )  # fmt: skip
        self._theirs = theirs  # kept open, so that its attributes can be read after the command's end
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._theirs)
        self._reader.join(PATIENCE_SECONDS)
        os.close(self._own)

    @property
    def lines(self) -> list[str]:
        with self._changed:
            return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def echoes(self) -> bool:
        """Whether the terminal prints what is typed, as before the command."""
        return bool(termios.tcgetattr(self._theirs)[3] & termios.ECHO)

    def type(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def resize(self, width: int, height: int) -> None:
        """Change the size, as a person drags the window; the command gets SIGWINCH."""
        with self._changed:
            self._screen.resize(height, width)
            self._set_size(width, height)

    def wait(self, shown: Callable[[str], object], what: str) -> str:
        """Return the screen's text as soon as ``shown`` holds for it."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: shown("\n".join(line.rstrip() for line in self._screen.display)) or self._ended,
                PATIENCE_SECONDS,
            )
        text = self.text
        assert found and shown(text), f"{what} was not shown:\n{text}\nended: {self._ended}"
        return text

    def end(self) -> int:
        """Return the exit code of the command, when the test has read all that it wrote."""
        code = self.process.wait(PATIENCE_SECONDS)
        os.write(self._theirs, _END)  # what the command wrote comes before it
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended or self.raw.endswith(_END), PATIENCE_SECONDS)
        return code

    def _set_size(self, width: int, height: int) -> None:
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._own, 65_536)
            except OSError:  # no process has the other end open
                data = b""
            with self._changed:
                self.raw += data
                self._stream.feed(data)
                self._ended = not data
                self._changed.notify_all()
            if not data:
                return
