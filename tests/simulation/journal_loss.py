"""The loss of the whole journal, and its rebuild from the WAL, which may be killed at each step."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING

from forebay.model.errors import CorruptionError, FencedError, StoreError
from recovery import rebuild
from tests.simulation.options import STREAM, TOPIC
from tests.simulation.scheduler import Step, as_fault
from tests.support.stores.forgetful import Crash, ForgetfulStorage

if TYPE_CHECKING:
    from tests.simulation.world import World

#: how often a run may lose the journal
LOSSES_MAX = 2


class JournalLoss:
    """Loses the journal, and rebuilds it. ``count``: how often the journal was lost. ``rebuilding``: the rebuild that runs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.count = 0
        self.rebuilding: Generator[str, None, rebuild.RebuildPlan] | None = None

    def loss_steps(self) -> Iterator[Step]:
        if self._is_possible():
            yield as_fault(Step("lose journal", self._lose, 1, range(2)))

    def rebuild_steps(self, faults: bool) -> Iterator[Step]:
        if self.rebuilding is not None:
            yield Step("rebuild step", self._go_on, 40)
            if faults:
                yield as_fault(Step("rebuild kill", self.kill, 4))
                for name, disk in (("journal", self._world.journal), ("wal", self._world.wal)):
                    yield as_fault(Step(f"rebuild crash {name}", partial(self._crash, disk), 8, range(1, 12)))
        elif self._world.invariants.lost:
            yield Step("rebuild", self._rebuild, 10)

    def _is_possible(self) -> bool:
        """A topic that was recreated before any process read its new id leaves blocks of an unknown topic."""
        again = self._world.kafka.topics[TOPIC].incarnation > 1
        return (
            not again
            and not self._world.invariants.lost
            and self.count < LOSSES_MAX
            and self._world.invariants.has_copy()
        )

    def _lose(self, history_survives: int) -> None:
        """Lose the whole journal, perhaps except the history.

        Running drivers die with their disk; a paused one does not notice.
        """
        for driver in self._world.drivers:
            if not driver.paused:
                driver.kill()
        self.count += 1
        for path in self._world.journal.paths(""):
            if not (history_survives and f"{STREAM}/history/" in path):
                self._world.journal.forget(path)
        self._world.journal.late.clear()
        self.kill()

    def _rebuild(self) -> None:
        self.rebuilding = rebuild.steps(
            self._world.journal,
            self._world.wal,
            stream=STREAM,
            topic_ids=lambda topics: {topic: self._world.kafka.topic_id(topic) for topic in topics},
            owner="rebuild",
            wall_ms=self._world.wall_ms,
            now=lambda: self._world.now,
            new_uid=self._world.new_uid,
            segment_bytes=1_000_000,
            compose=self._world.kinds.rebuilt,
        )

    def _go_on(self) -> None:
        assert self.rebuilding is not None
        try:
            next(self.rebuilding)
        except (StopIteration, FencedError, StoreError):
            self.rebuilding = None
        except CorruptionError:  # a host lost what was not synced since it was read: the operator repeats the command
            self.rebuilding = None

    def _crash(self, disk: ForgetfulStorage, at: int) -> None:
        disk.crash_at_step = disk.steps + at
        try:
            self._go_on()
        except Crash:
            self.kill()
        disk.crash_process()

    def kill(self) -> None:
        if self.rebuilding is not None:
            self.rebuilding.close()
            self.rebuilding = None
