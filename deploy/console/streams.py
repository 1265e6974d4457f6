"""The standard streams of the command: closed ones, and output that could not be written."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

import click


class _Null(io.FileIO):
    """``/dev/null``. ``written``: something was written to it."""

    def __init__(self) -> None:
        super().__init__(os.devnull, "w")
        self.written = False

    def write(self, data: Any) -> int:
        self.written = True
        return super().write(data) or 0


class Nowhere(io.TextIOWrapper):
    """Replaces a stream that was closed when the command was started. Text and bytes written to it are lost.

    ``is_output``: what is written is the command's own output, which it must not lose unnoticed.
    """

    def __init__(self) -> None:
        self.is_output = True
        self._null = _Null()
        super().__init__(io.BufferedWriter(self._null), encoding="utf-8", errors="replace")

    @property
    def lost(self) -> bool:
        """Whether output was written and flushed."""
        return self.is_output and self._null.written


def open_closed() -> None:
    """Open what was closed at the start, as by ``>&-``: Python has no such stream, and a later file could get its descriptor."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stdout is None:
        sys.stdout = Nowhere()
    if sys.stderr is None:
        sys.stderr = Nowhere()


def say(message: str) -> None:
    """Print ``message`` on stderr, if it can be written."""
    with suppress(OSError):
        click.echo(message, err=True)


def finish() -> str | None:
    """Write what stdout and stderr still hold. Return None if stdout took all of it; else a sentence, "" for a closed pipe.

    What can't be written is dropped, because Python would try it again when the process exits.
    """
    reason: str | None = None
    for stream in (sys.stderr, sys.stdout):
        if stream.closed:  # by a job
            continue
        try:
            stream.flush()
        except OSError as error:
            _drop(stream)
            if stream is sys.stdout:
                reason = "" if isinstance(error, BrokenPipeError) else error.strerror or str(error)
    if isinstance(sys.stdout, Nowhere) and sys.stdout.lost:
        reason = "it was closed when the command was started"
    return f"the output is incomplete: stdout can't be written: {reason}" if reason else reason


def _drop(stream: TextIO) -> None:
    with suppress(io.UnsupportedOperation):  # a stream without a descriptor, as in a notebook
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
