"""The progress of ``forebay demo``: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import Any

import click


class Screen:
    """Shows the progress on stderr: with ``bars`` as bars, otherwise as lines. ``total``: number of records."""

    def __init__(self, total: int, bars: bool) -> None:
        self._total = total
        self._bars = bars
        self._said: tuple[int, ...] = (0, 0, 0)  # progress in fifths at the last printed line
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Screen:
        if self._bars:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description:>10}"),
                BarColumn(40),
                MofNCompleteColumn(),
                TextColumn("{task.fields[more]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._tasks = {
                name: self._progress.add_task(name, total=self._total, more="")
                for name in ("loaded", "taken in", "completed")
            }
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, event: str) -> None:
        """Print an event as one line."""
        if self._progress is not None:
            self._progress.console.print(event, markup=False, highlight=False)
        else:
            click.echo(f"demo | {event}", err=True)

    def show(self, loaded: int, taken_in: int, completed: int, batches: int) -> None:
        """Show the numbers of records loaded, taken in and completed, and of completed batches."""
        if self._progress is not None:
            for name, count in (("loaded", loaded), ("taken in", taken_in), ("completed", completed)):
                self._progress.update(
                    self._tasks[name], completed=count, more=f"{batches} batches" if name == "completed" else ""
                )
            return
        fifths = tuple(5 * count // self._total for count in (loaded, taken_in, completed))
        if fifths != self._said:
            self._said = fifths
            self.say(f"{loaded} records loaded, {taken_in} taken in, {completed} completed in {batches} batches")
