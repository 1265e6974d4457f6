"""The engine of batches as the scheduler sees it (:class:`Engine`), and a named job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from wal.reading import TierCounts

Job = Callable[[Batch], None]


@dataclass(frozen=True, slots=True)
class NamedJob:
    """A job with a name: one output of each batch. The journal identifies it by ``name``: an output with a new name counts as
    not done."""

    name: str
    function: Job


class Engine(Protocol):
    """Runs jobs. ``run`` may be called from several threads at the same time, each with another batch. ``start`` and ``stop`` may
    be repeated."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that can run at the same time, at least 1. Known after ``start``."""

    @property
    def application(self) -> tuple[str, str]:
        """Id and master of the Spark application that runs the tasks; ("", "") if there is none. Known after ``start``."""

    @property
    def ui_url(self) -> str:
        """URL of the Spark UI; "" if it is off. Known after ``start``."""

    def start(self) -> None: ...

    def warm(self) -> None:
        """Load what batches need, with made-up records, so that the first batch is as fast as later ones. Call after ``start``,
        from any thread. Ends early when :meth:`await_ready` or :meth:`stop` is called. What it raises does
        no harm to later batches."""

    def check(self) -> None:
        """Raise EngineLostError if the engine was started and can't run batches any more."""

    def await_ready(self, work: BatchWork) -> bool:
        """Return when the batch would not compete with :meth:`warm` for the same work, and whether that took a wait. No batch
        waits if the engine is not warmed, or is stopped."""

    def run(self, work: BatchWork, job: Job) -> TierCounts:
        """Call ``job`` with the batch. Return how many ranges were read from each tier.

        Raises what the job raises; UnreadableBlockError if a block that can't be read made it fail. The tasks of a failed job are
        cancelled. The next ``run`` of the batch begins only when all of them have ended, so that no late task of an old attempt
        overwrites the output of a new one.
        """

    def cancel(self) -> None:
        """Cancel the Spark tasks of the running jobs, which then fail. May be called from any thread."""

    def stop(self) -> None: ...
