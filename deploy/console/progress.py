"""The progress bar of a long command, shown only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(title: str, total: int | None, unit_bytes: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a bar while open. Yields a function that takes the amount done since its last call, in the unit of ``total``.

    ``total``: None if it is unknown. Any thread may call the function.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    figures = (DownloadColumn(), TransferSpeedColumn()) if unit_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn(title, markup=False), BarColumn(), *figures, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=total)
        yield lambda done: shown.advance(task, done)


@contextmanager
def spinner(title: str) -> Iterator[None]:
    """Show ``title`` and the time since the start while open, for work without a known amount; nothing if not on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn(title, markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        shown.add_task(title, total=None)
        yield
