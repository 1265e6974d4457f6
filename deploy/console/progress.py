"""The progress of a long command, shown only on a terminal, and on stderr: data on stdout stays as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


@contextmanager
def progress_bar(title: str, total: int | None, unit_bytes: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a bar while open. Yields a function that takes the amount done since its last call, in the unit of ``total``.

    ``total``: None if it is unknown. Any thread may call the function.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    figures = (DownloadColumn(), TransferSpeedColumn()) if unit_bytes else (MofNCompleteColumn(),)
    title_column = TextColumn("{task.description}", markup=False)
    with _on_stderr(title_column, BarColumn(), *figures, TimeRemainingColumn()) as shown:
        task = shown.add_task(title, total=total)
        yield lambda done: shown.advance(task, done)


@contextmanager
def spinner(title: str) -> Iterator[None]:
    """Show ``title`` and the time since the start while open, for work without a known amount."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    with _on_stderr(SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()) as shown:
        shown.add_task(title, total=None)
        yield


def _on_stderr(*columns: ProgressColumn) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
