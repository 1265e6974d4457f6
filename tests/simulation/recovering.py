"""``forebay recover --apply``, by an operator: over a rotten WAL, killed at each step, while drivers start and wake.

Once the faults of a run have ended, a recovery has steps of its own (``Options.recovers``), until it is finished. So it takes
none of the steps in which everything else happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from driver.journal.state import State
from forebay.kafka.consume.block_ranges import Wanted
from forebay.model.errors import ForebayError
from forebay.model.records import RangeRows
from recovery.copies import CopySources, KafkaCopies, WalCopies
from recovery.examination import Examination, examine, topic_ids
from recovery.plan import broken_blocks
from recovery.restoration import Restoration
from tests.simulation.options import STREAM
from tests.simulation.scheduler import Step, draw
from tests.simulation.shells import Task, pause, stepped
from tests.support.stores.forgetful import Crash, ForgetfulStorage
from wal.segments.writer import SegmentLimits

if TYPE_CHECKING:
    from tests.simulation.world import World

#: failpoint → the name of the step after it
PAUSES = {
    "recovery.after-write": "journal",
    "recovery.after-journal": "journalled",
    "recovery.after-aside": "delete",
    "recovery.after-delete": "deleted",
}


#: how often an operator begins a recovery in one run; the last one is not disturbed
RECOVERIES_MAX = 4
#: maximum number of steps of all these recoveries
STEPS_MAX = 120
#: weight of a step of the recovery beside kills and other drivers
STEP_WEIGHT = 40


class Recovering:
    """Runs ``recovery.restoration`` as ``deploy.commands.recovery`` does: it opens the journal, examines the WAL, and repairs it.

    The operator reads the plan first: a recovery begins to write only if it loses nothing.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._task: Task | None = None
        self._begun = 0
        self._is_over = False  # a recovery has finished, or the operator does not begin one

    def recover(self) -> None:
        """Take the steps of recoveries until one is finished. Raises InvariantViolation.

        Drivers are stopped or suspended first. While a recovery runs, another one may start, or a suspended one wakes.
        """
        random = Random(self._world.options.damage)
        for _ in range(STEPS_MAX):
            if self._is_over:
                return
            self._world.perform(draw(list(self._steps()), random, 1))
        self.kill()

    def _steps(self) -> Iterator[Step]:
        """What may happen now."""
        world = self._world
        running = [driver for driver in world.drivers if driver.running]
        if self._task is None:
            for driver in running:
                yield Step(f"recover stop {driver.name}", driver.kill)
                yield Step(f"recover suspend {driver.name}", driver.pause)
            if not running:
                yield Step("recover", self._begin)
            return
        yield Step("recover step", self._go_on, STEP_WEIGHT)
        if self._begun == RECOVERIES_MAX:
            return
        yield Step("recover kill", self.kill, 1)
        for name, disk in (("journal", world.journal), ("wal", world.wal)):
            yield Step(f"recover crash {name}", partial(self._crash, disk), 1, range(1, 12))
        if not running:
            yield Step("start driver", world.start_driver, 1)
        for driver in world.drivers:
            if driver.paused:
                yield Step(f"{driver.name} wake", driver.wake, 1)
            else:
                yield from driver.steps()

    def _begin(self) -> None:
        self._begun += 1
        self._task = stepped(self._run, PAUSES)

    def _run(self) -> None:
        world = self._world
        opening = world.kinds.opening(
            world.journal,
            STREAM,
            "recover",
            world.wall_ms,
            lambda: world.now,
            world.new_uid,
            segment_bytes=1_000_000,
            wal=world.wal,
        )
        try:
            while True:
                next(opening)
                pause("open")
        except StopIteration as end:
            led, state = end.value
        examined = examine(state, world.wal, STREAM, readers=1)
        pause("examined")
        sources = self._sources(examined, state)
        if any(sources.find(block)[0] is None for block in broken_blocks(examined)):
            self._is_over = True
            world.reached["recovery would lose"] += 1
            return
        limits = SegmentLimits(size_bytes=world.options.segment_bytes, age_seconds=float("inf"))
        restoration = Restoration(
            led, state, wal=world.wal, limits=limits, now=lambda: world.now, new_uid=world.new_uid
        )
        done = restoration.carry_out(examined, sources)
        restoration.close()
        self._is_over = True
        world.reached["recovery finished"] += 1
        world.reached["recovered"] += bool(done.outcomes)
        world.reached["set aside"] += any(segment.done for segment in done.damaged)

    def _sources(self, examined: Examination, state: State) -> CopySources:
        copies = [copy for segment in examined.segments for copy in segment.copies]
        ids = topic_ids(state, state.blocks.values())
        return CopySources(
            [WalCopies(self._world.wal, copies), KafkaCopies(self._read_ranges, topic_ids=ids, compression="zstd")]
        )

    def _read_ranges(self, wanted: Sequence[Wanted], headers: bool) -> list[RangeRows]:
        tier = self._world.kinds.kafka_tier(self._world.kafka, wanted)
        tier.ask()
        found = {rows.tp: rows.batches for rows in tier.fetch()}
        return [RangeRows(item.range.tp, found.get(item.range.tp, [])) for item in wanted]

    def _go_on(self) -> None:
        assert self._task is not None
        try:
            next(self._task)
        except StopIteration:
            self._task = None
        except (
            ForebayError,
            FileNotFoundError,
            MemoryError,
        ):  # the operator gets the error, and may repeat the command
            self._task = None

    def _crash(self, disk: ForgetfulStorage, at: int) -> None:
        disk.crash_at_step = disk.steps + at
        try:
            self._go_on()
        except Crash:
            self._task = None
        disk.crash_process()

    def kill(self) -> None:
        self._task = None
