"""The output marker: which run of a batch an output holds, and whether another run is written. Decision logic, without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forebay.model.errors import FencedError, StoreError, UsageError
from forebay.model.identifiers import check_name
from forebay.model.wire import UNDECODABLE, WIRE_NAMES

if TYPE_CHECKING:
    from driver.batches.job.batch import Batch


class OutputRun(msgspec.Struct, frozen=True, kw_only=True, rename=WIRE_NAMES):
    """The marker that an output stores with its data: the run of a batch that it holds.

    ``epoch``: the journal epoch of the driver that wrote it. Two runs are the same if stream, output, timeline, replay and
    batch id are the same, even if different drivers wrote them. ``newest``: in a marker that replaced another one
    (:meth:`after`), the id of the newest batch whose first run is in the output.
    """

    stream: str
    output: str
    timeline: int
    replay: int
    number: int
    batch_id: int
    epoch: int
    newest: int = 0

    @property
    def line(self) -> tuple[int, int]:
        """The sequence to which the run belongs. The runs of a sequence have ascending batch ids. All first runs are one
        sequence, since batch ids ascend over all timelines. Each replay is another, and no replay outlives its journal."""
        return (self.timeline, self.replay) if self.replay else (0, 0)

    @property
    def label(self) -> str:
        replayed = f" in replay {self.replay}" if self.replay else ""
        return f"batch {self.batch_id} (number {self.number}){replayed}"

    def after(self, last: OutputRun | None) -> OutputRun:
        """Return the marker that replaces ``last``. The marker of a replay still names the newest first run: if that run was
        committed before the replay, and its driver was killed before it was completed, it runs again after the replay."""
        before = last.newest if last is not None else 0
        return msgspec.structs.replace(self, newest=before if self.replay else self.batch_id)

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()


def decoded(text: str | bytes, place: str) -> OutputRun:
    """Return the marker in ``text``, which was read at ``place``. Raises StoreError if it is no marker."""
    try:
        return msgspec.json.decode(text, type=OutputRun)
    except UNDECODABLE as error:
        raise StoreError(f"{place} is no marker of Forebay ({error}): another program wrote there") from None


def run_of(batch: Batch, output: str) -> OutputRun:
    """Return the run of ``batch`` for ``output``.

    Raises UsageError if the driver runs several batches at the same time, or if the output has already written the batch in
    this run: it would skip the second rows as already written.
    """
    if batch.concurrent:
        raise UsageError(
            f"output {output!r} commits batches in order: set driver.concurrent_jobs = 1, or write without an output helper"
        )
    if any(written.output == output for written in batch.noted):
        raise UsageError(
            f"output {output!r} writes a batch once, and has written this one before: give each output a different name, "
            "or write all rows in one call"
        )
    return OutputRun(
        stream=batch.stream,
        output=output,
        timeline=batch.timeline,
        replay=batch.replay,
        number=batch.number,
        batch_id=batch.id,
        epoch=batch.epoch,
    )


def check_output_name(name: str) -> str:
    """Return ``name``. Raises UsageError if an output can't have this name."""
    try:
        return check_name("output", name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def reason_to_skip(run: OutputRun, last: OutputRun | None) -> str:
    """Return why ``run`` is skipped, given the output's marker ``last``; "" if it is written.

    A run is skipped if it is the marker's run, or an older run of the same sequence: batches are committed in order, so its
    rows are in the output. A run of another sequence is written: a replay after the batches that it replays, and after a
    replay the batches newer than all before it. Raises FencedError if a newer driver wrote the marker (INV-4).
    """
    if last is None:
        return ""
    if last.epoch > run.epoch:
        raise FencedError(
            f"output {run.output!r} was written by a newer driver of stream {run.stream!r} (epoch {last.epoch:x}, this is "
            f"{run.epoch:x}); if you restored an older journal on purpose, remove the output's marker"
        )
    same_line = last.line == run.line
    written_id = last.batch_id if same_line else 0 if run.replay else last.newest
    if written_id < run.batch_id:
        return ""
    if written_id == run.batch_id:
        return f"{run.label} is written already"
    later = last.label if same_line else f"batch {written_id}"
    return f"{later} is written already, and batches are written in order"
