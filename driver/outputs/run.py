"""Which run of a batch an output holds, and whether another one is to be written: decisions on values alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forebay.model.errors import FencedError, StoreError, UsageError
from forebay.model.values import check_name
from forebay.model.wire import WIRE_NAMES

if TYPE_CHECKING:
    from driver.batches.batch import Batch


class Run(msgspec.Struct, frozen=True, kw_only=True, rename=WIRE_NAMES):
    """The marker that an output keeps with its data: the run of a batch that it holds. ``epoch``: the journal's, of the
    driver that wrote it. Two runs are the same if stream, output, lineage, replay and batch id are, whoever wrote them.
    ``newest``: in a marker that took the place of another (:meth:`after`), id of the newest batch whose first run is in."""

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
        """Runs of one line follow each other by batch id. Batches that run for the first time are one line, since their ids
        ascend over all lineages; each replay is another, and no replay outlives its journal."""
        return (self.timeline, self.replay) if self.replay else (0, 0)

    @property
    def words(self) -> str:
        replayed = f" in replay {self.replay}" if self.replay else ""
        return f"batch {self.batch_id} (number {self.number}){replayed}"

    def after(self, last: Run | None) -> Run:
        """The marker that takes the place of ``last``. That of a replay still tells which first runs are in: one that was
        committed before the replay and not completed, since its driver was killed, runs again after it."""
        before = last.newest if last is not None else 0
        return msgspec.structs.replace(self, newest=before if self.replay else self.batch_id)

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()


def decoded(text: str | bytes, place: str) -> Run:
    """Raises StoreError if ``text``, found at ``place``, is no marker."""
    try:
        return msgspec.json.decode(text, type=Run)
    except msgspec.DecodeError as error:
        raise StoreError(f"{place} is no marker of Forebay ({error}): another program wrote there") from None


def run_of(batch: Batch, output: str) -> Run:
    """Raises UsageError if the batch comes from a driver that runs several at once, or the output has written it in this very
    run: what comes second would be taken for written already."""
    if batch.concurrent:
        raise UsageError(
            f"output {output!r} commits batches in order: set driver.concurrent_jobs = 1, or write without an output helper"
        )
    if any(written.output == output for written in batch.noted):
        raise UsageError(
            f"output {output!r} writes a batch once, and this one was given to it before: give each output a name of its own, "
            "or write all rows at once"
        )
    return Run(
        stream=batch.stream,
        output=output,
        timeline=batch.timeline,
        replay=batch.replay,
        number=batch.number,
        batch_id=batch.id,
        epoch=batch.epoch,
    )


def check_output_name(name: str) -> str:
    """Returns ``name``. Raises UsageError if it can't name an output."""
    try:
        return check_name("output", name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def reason_to_skip(run: Run, last: Run | None) -> str:
    """Why ``run`` is not to be written over ``last``, the newest that the output holds; "" if it is.

    A run is skipped if it is the last one, or an older one of the same line: batches are committed in order, so it is in. A
    run of another line is written: a replay after what it replays, and after a replay what is newer than all before it.
    Raises FencedError if a newer driver wrote the last one (INV-4).
    """
    if last is None:
        return ""
    if last.epoch > run.epoch:
        raise FencedError(
            f"output {run.output!r} was written by a newer driver of stream {run.stream!r} (epoch {last.epoch}, this is "
            f"{run.epoch}); if the journal was put back on purpose, remove the output's marker"
        )
    same_line = last.line == run.line
    written_id = last.batch_id if same_line else 0 if run.replay else last.newest
    if written_id < run.batch_id:
        return ""
    if written_id == run.batch_id:
        return f"{run.words} is written already"
    later = last.words if same_line else f"batch {written_id}"
    return f"{later} is written already, and batches are written in order"
