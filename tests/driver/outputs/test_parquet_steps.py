"""Two drivers write one batch to Parquet files, each suspended or killed between any two calls: the batch is whole or absent.

The folders are real. Each call to them is a step, and so is each file of a folder that is deleted.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driver.outputs import ParquetOutput, parquet
from driver.outputs.parquet import MARKER
from driver.outputs.run import OutputRun, decoded
from driver.spark import frames
from forebay.model.errors import FencedError, ForebayError, StoreError
from forebay.model.identifiers import numbered
from tests.support.processes.output_process import PIECES, Turn, batch_of, expected, rows_of
from wal.storage import Folders, local_folders

FIRST, REPLAY, NEXT = Turn(1), Turn(1, replay=1), Turn(2)
SEEDS = 20
#: of each so many pairs of steps, one is tried; the sequence begins one later with each step of the older driver
STRIDE, KILLS_STRIDE = 11, 17


class KilledError(BaseException):
    pass


class SparkError(Exception):
    pass


class Driver:
    """Writes one run in a thread that stops before each step."""

    def __init__(self, folder: Path, epoch: int, turn: Turn, spark: bool) -> None:
        self.steps = 0
        self.error: BaseException | None = None
        self.ended = False
        self._folder = folder
        self._batch = batch_of(turn, numbered(1, epoch))
        self._killed = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.frame = Frame(turn, self._step) if spark else None
        self._turn = turn
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._stopped.acquire(timeout=60)

    def go(self, steps: int = 1_000) -> Driver:
        for _ in range(steps):
            if self.ended:
                break
            self.steps += 1
            self._go.release()
            assert self._stopped.acquire(timeout=60)
            check_whole(self._folder)
        return self

    def kill(self) -> None:
        self._killed = True
        self.go(1)
        self._thread.join(60)

    def _step(self) -> None:
        self._stopped.release()
        assert self._go.acquire(timeout=60)
        if self._killed:
            raise KilledError

    def _run(self) -> None:
        try:
            output = ParquetOutput(f"file://{self._folder}")
            output._folders = Stepped(output._folders, self._step)
            output.write(self._batch, self.frame or rows_of(self._turn))
        except BaseException as error:
            self.error = error
        self.ended = True
        self._stopped.release()


class Stepped:
    def __init__(self, folders: Folders, step: Callable[[], None]) -> None:
        self.url = folders.url
        self._folders, self._step = folders, step

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._step()
            return getattr(self._folders, name)(*arguments)

        return call

    def delete_folder(self, path: str) -> None:
        for folder, _, names in os.walk(Path(self.url.removeprefix("file://"), path)):
            for name in names:
                self._step()
                Path(folder, name).unlink(missing_ok=True)
        self._step()
        self._folders.delete_folder(path)


class Frame:
    """A DataFrame whose tasks write as Hadoop's FileOutputCommitter: they create folders, and a task can outlive its job."""

    sparkSession = toLocalIterator = None  # noqa: N815  (Spark's names)

    def __init__(self, turn: Turn, step: Callable[[], None]) -> None:
        self._turn, self._step = turn, step
        self._folder: Path | None = None

    def write(self, folder: Path) -> int:
        self._folder = folder
        temporary = folder / "_temporary" / "0"
        self._in_step(lambda: temporary.mkdir(parents=True, exist_ok=True))
        for number, rows in enumerate(rows_of(self._turn)):
            self._in_step(partial(self._write_part, f"a-{number}", number, rows))
            self._in_step(partial(_rename, temporary / "_temporary" / f"a-{number}", temporary / f"task-{number}"))
        for done in sorted(self._in_step(lambda: list(temporary.glob("task-*")))):
            for part in sorted(done.iterdir()):
                self._in_step(partial(_rename, part, folder / part.name))
        self._in_step(lambda: shutil.rmtree(folder / "_temporary", ignore_errors=True))
        return len(expected([self._turn]))

    def task_after_the_end(self) -> None:
        """A second attempt of a task that writes on, whatever became of its job."""
        if self._folder is not None:
            self._write_part("late", 0, next(rows_of(self._turn)))

    def _write_part(self, attempt: str, number: int, rows: pa.RecordBatch) -> None:
        assert self._folder is not None
        folder = self._folder / "_temporary" / "0" / "_temporary" / attempt
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_batches([rows]), folder / f"part-{number:05}.parquet")

    def _in_step(self, act: Callable[[], Any]) -> Any:
        self._step()
        try:
            return act()
        except OSError as error:
            raise SparkError(str(error)) from error


def _rename(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def place_in(folder: Path) -> Path:
    return folder / f"batch={FIRST.batch_id}"


def marker_in(folder: Path) -> OutputRun | None:
    path = place_in(folder) / MARKER
    return decoded(path.read_bytes(), "") if path.exists() else None


def check_whole(folder: Path) -> None:
    """What a reader finds at any moment."""
    place = place_in(folder)
    assert not place.exists() or (len(list(place.glob("*.parquet"))), marker_in(folder) is not None) == (PIECES, True)


def check_end(folder: Path, turn: Turn, epoch: int, spark: bool) -> None:
    """The driver that leads repeats the run until it succeeds, as the driver's retries do, and goes on with the next batch."""
    for _ in range(3):
        leading = Driver(folder, epoch, turn, spark).go()
        if leading.error is None:
            break
        assert isinstance(leading.error, (ForebayError, SparkError)), repr(leading.error)
    assert leading.error is None
    assert Driver(folder, epoch, NEXT, False).go().error is None
    found = [
        tuple(row.values())
        for part in sorted(place_in(folder).glob("*.parquet"))
        for row in pq.read_table(part, columns=["number", "place", "replay"], partitioning=None).to_pylist()
    ]
    assert sorted(found) == expected([turn])
    assert [list(workshop.iterdir()) for workshop in (folder / "_forebay").iterdir()] == [[]]


@pytest.fixture(params=[False, True], ids=["rows", "frame"])
def spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    def write(frame: Any, url: str, _: Sequence[str]) -> int:
        assert isinstance(frame, Frame)
        return frame.write(Path(url.removeprefix("file://")))

    monkeypatch.setattr(frames, "write_parquet", write)
    monkeypatch.setattr(local_folders, "_sync", lambda path: None)
    monkeypatch.setattr(parquet, "_FILE_BYTES", 1)
    return bool(request.param)


@pytest.fixture(params=[FIRST, REPLAY], ids=["first", "replay"])
def turn(request: pytest.FixtureRequest) -> Turn:
    return Turn(*request.param)


@pytest.fixture
def folders(tmp_path: Path, turn: Turn, spark: bool) -> Iterator[Path]:
    """New folders; before a replay with what its first run wrote."""

    def new() -> Iterator[Path]:
        for number in range(10_000):
            folder = tmp_path / str(number)
            if turn.replay:
                assert Driver(folder, 1, FIRST, False).go().error is None
            yield folder
            shutil.rmtree(folder)

    return new()


def steps_of(folder: Path, turn: Turn, spark: bool, epoch: int) -> int:
    """How many steps a write has, after an older driver that is suspended just before its end."""
    older = Driver(folder, epoch - 1, turn, spark)
    newer = Driver(folder, epoch, turn, spark).go()
    assert newer.error is None
    older.kill()
    return newer.steps


def test_driver_suspended_at_each_step_never_moves_in_part_of_a_batch(
    folders: Iterator[Path], turn: Turn, spark: bool
) -> None:
    """INV-3, INV-4: the older driver is suspended, the newer one goes some steps on, then each continues to its end."""
    steps = steps_of(next(folders), turn, spark, 3)
    for stopped in range(steps):
        for gone in range(1 + stopped % STRIDE, steps + 12, STRIDE):
            folder = next(folders)
            older = Driver(folder, 2, turn, spark).go(stopped)
            newer = Driver(folder, 3, turn, spark).go(gone)
            if older.frame is not None:
                older.frame.task_after_the_end()
            older.go()
            assert older.error is None or isinstance(older.error, (StoreError, FencedError, SparkError)), older.error
            newer.go()
            assert newer.error is None or isinstance(newer.error, (StoreError, SparkError)), newer.error
            check_end(folder, turn, 3, spark)


def test_drivers_that_take_turns_at_random_never_move_in_part_of_a_batch(
    folders: Iterator[Path], turn: Turn, spark: bool
) -> None:
    for seed in range(SEEDS):
        draw = random.Random(seed)
        folder = next(folders)
        drivers = [Driver(folder, epoch, turn, spark) for epoch in (2, 3)]
        while running := [driver for driver in drivers if not driver.ended]:
            one = draw.choice(running).go(draw.choice((1, 1, 3, 8)))
            if one.frame is not None and draw.random() < 0.1:
                one.frame.task_after_the_end()
        check_end(folder, turn, 3, spark)


def test_drivers_killed_at_each_step_leave_a_batch_that_the_next_one_writes_once(
    folders: Iterator[Path], turn: Turn, spark: bool
) -> None:
    """INV-3."""
    steps = steps_of(next(folders), turn, spark, 3)
    for first in range(1, steps):
        for second in range(1 + first % KILLS_STRIDE, steps + 12, KILLS_STRIDE):
            folder = next(folders)
            for epoch, killed in ((2, first), (3, second)):
                driver = Driver(folder, epoch, turn, spark).go(killed)
                if not driver.ended:
                    driver.kill()
            check_end(folder, turn, 4, spark)
