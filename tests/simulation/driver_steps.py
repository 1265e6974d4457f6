"""What can happen next to a process of a driver: the next step of its decision loop and of its tasks, and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from driver.journal.state import ADOPTER
from tests.simulation.scheduler import Step
from tests.simulation.shells import Stalled
from tests.simulation.upstream import KAFKA_STEPS

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess


class DriverSteps:
    """The possible steps of one driver process."""

    def __init__(self, driver: DriverProcess) -> None:
        self._driver = driver
        self._offered: dict[str, Step] = {}

    def _step(
        self, name: str, action: Callable[..., Any], *arguments: Any, weight: int, numbers: range | None = None
    ) -> Step:
        """Return the step ``name`` of this process, which is made once: what it does depends on its name alone."""
        step = self._offered.get(name)
        if step is None:
            run = partial(action, *arguments) if arguments else action
            step = self._offered[name] = Step(f"{self._driver.name} {name}", run, weight, numbers)
        step.weight = weight
        return step

    def steps(self) -> Iterator[Step]:
        driver = self._driver
        step = driver.next_step
        if isinstance(step, Stalled):
            if step.is_over:
                yield self._step("goes-on", driver.advance, weight=40)
        elif step != "decide" or driver.queue:
            yield self._step(step, driver.advance, weight=40)
        for task, name in driver.task_next.items():
            if isinstance(name, Stalled):
                if name.is_over:
                    yield self._step(f"{task}:goes-on", driver.advance_task, task, weight=20)
            elif self._task_due(task, name):
                yield self._step(f"{task}:{name}", driver.advance_task, task, weight=self._weight(task, name))
        if driver.is_renewal_due:
            yield self._step("renew", driver.renew, weight=3)

    def _weight(self, task: str, name: str) -> int:
        """Little can happen before a driver admits claims, so what it needs for that is likely."""
        if task == "housekeeping":
            return 3 if self._driver.housekeeping.admission.copied else 200
        return 3 if name == "begin" else 20

    def fault_steps(self) -> Iterator[Step]:
        driver = self._driver
        yield self._step("kill", driver.kill, weight=2)
        if driver.leading and not driver.world.journal.is_stalled:
            yield self._step("renew", driver.renew, weight=2)
        yield self._step("pause", driver.pause, weight=3)
        if driver.next_step in ("claim", "snapshot", "open", "append", "sync", "snapshot-again"):
            yield self._step(
                f"{driver.next_step}-crash", driver.crash_in, driver.advance, weight=8, numbers=range(1, 8)
            )
        if driver.next_step == "sync":
            yield self._step("sync-fails", driver.fail_in, "sync", weight=4)
            if not driver.world.journal.appendable:
                for lands in ("now", "late"):
                    yield self._step(f"sync-lands-{lands}", driver.fail_in, "sync", lands, weight=3)
        for task, name in driver.task_next.items():
            if name == "read" and task.startswith("job"):
                yield self._step(f"{task}:read-without-wal", driver.read_without_wal, task, weight=200)
            if name in KAFKA_STEPS:
                yield self._step(f"{task}:{name}-fails", driver.fail_task, task, weight=4)
        if driver.next_step == "append":
            yield self._step("append-fails", driver.fail_in, "append", weight=4)

    def _task_due(self, task: str, name: str) -> bool:
        """Rounds that would find nothing are not begun, so that traces stay short."""
        driver = self._driver
        if name in ("read", "read-window") and driver.world.wal.is_stalled:
            return False  # what reads blocks is no thread that could wait in a request
        if name != "begin" or not driver.leading:
            return True
        state = driver.tracker.state
        if task == "timer":
            return driver.workers.is_timer_due(state)
        if task == "query":
            return state.created
        if task.startswith("job"):
            return driver.workers.is_job_due(state)
        if task == "housekeeping":
            return driver.housekeeping.is_due(state)
        if task == "adopt":
            return any(p.fault is not None or p.owner == ADOPTER for p in state.partitions.values())
        return bool(
            not driver.cleaner._actions.empty()
            or state.blocks
            or driver.world.wal.has_any(f"{driver.world.stream}/blocks")
        )
