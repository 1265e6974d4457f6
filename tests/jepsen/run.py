"""A run: the world, the load, the faults of a seed, then an end without faults, and the checker."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.jepsen.faults import KINDS, Step, Waits, compatible
from tests.jepsen.load import Load
from tests.jepsen.observer import Observer
from tests.jepsen.story import Story
from tests.jepsen.world import DRIVERS, World

_TICK_SECONDS = 0.1
#: maximum wait of a fault for a condition, and of the run for its beginning and end
_PATIENCE_SECONDS, _START_SECONDS, _END_SECONDS = 45.0, 300.0, 240.0
_CHECKER = Path(__file__).with_name("checker.py")


@dataclass
class _Active:
    step: Step
    waits: Waits
    until: float = 0.0
    condition: Callable[[], bool] | None = None


@dataclass
class Nemesis:
    """Begins the faults of a plan at their time, or as soon as those that run allow it, and moves them on."""

    world: World
    steps: Sequence[Step]
    story: Story
    _next: int = 0
    _active: list[_Active] = field(default_factory=list)
    done: int = 0

    def tick(self) -> None:
        for active in list(self._active):
            self._advance(active)
        if self._next < len(self.steps):
            step = self.steps[self._next]
            if self.story.seconds >= step.at and compatible(step, [active.step for active in self._active]):
                self._next += 1
                self.story.write(f"{step}, for {step.seconds:g} s")
                active = _Active(step, KINDS[step.kind].run(self.world, step))
                self._active.append(active)
                self._advance(active)
        self.story.doing = ", ".join(str(active.step) for active in self._active) or "no fault"

    @property
    def quiet(self) -> bool:
        return not self._active

    def no_more(self) -> None:
        self._next = len(self.steps)

    def _advance(self, active: _Active) -> None:
        while True:
            now = time.monotonic()
            if now < active.until and not (active.condition and active.condition()):
                return
            try:
                wait = next(active.waits)
            except StopIteration:
                self._active.remove(active)
                self.done += 1
                self.story.write(f"end of {active.step}")
                return
            active.condition = wait if callable(wait) else None
            active.until = now + (_PATIENCE_SECONDS if callable(wait) else wait)


@dataclass
class Run:
    """``world`` with its load. :meth:`faults` until a time, then :meth:`finish`."""

    world: World
    story: Story
    load: Load
    observer: Observer
    on_tick: Callable[[], None] = lambda: None

    def tick(self) -> None:
        self.world.services.tend()
        self.load.check()
        self.on_tick()
        time.sleep(_TICK_SECONDS)

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.tick()
        return True

    def begin(self) -> None:
        """Until a first batch is completed."""
        self.load.start()
        begun = self.wait(lambda: any(self.observer.completed().values()), _START_SECONDS)
        assert begun, f"no batch in {_START_SECONDS:g} s: {self.observer.errors}; see the logs in {self.world.folder}"
        self.story.write("batches are completed")

    def faults(self, steps: Sequence[Step], seconds: float) -> int:
        """Make the faults, and return their number, when ``seconds`` have passed since the story began and all have ended."""
        nemesis = Nemesis(self.world, steps, self.story)

        def over() -> bool:
            nemesis.tick()
            if self.story.seconds >= seconds:
                nemesis.no_more()
            return self.story.seconds >= seconds and nemesis.quiet

        assert self.wait(over, seconds + 10 * _PATIENCE_SECONDS), "a fault does not end"
        return nemesis.done

    def finish(self) -> bool:
        """End the load, complete everything, stop all processes in order, and return whether the checker found nothing."""
        self.story.doing = "the end"
        ends = self.load.stop()
        self.story.write(f"load stopped: {self.load.acked} acknowledged, {self.load.refused} refused")
        ends = {place: end for place, end in ends.items() if place not in self.world.brokers.unclean}

        def complete() -> bool:
            completed, status = self.observer.completed(), self.observer.latest
            return (
                status is not None
                and not status["waiting_blocks"]
                and all(completed.get(place, 0) >= end for place, end in ends.items())
                and all(p["position"] == p["completed"] for p in status["partitions"])
                and all(p["lag"] == 0 for p in status["partitions"])
            )

        if not self.wait(complete, _END_SECONDS):
            self.story.write(f"NOT COMPLETE after {_END_SECONDS:g} s: {self.observer.latest}")
        self.story.write("all is completed" if complete() else "the end without completion")
        names = sorted(self.world.shape.services, key=lambda name: ("receiver" not in name, name in DRIVERS, name))
        self._stop([name for name in names if "receiver" in name])
        self._stop([name for name in names if "receiver" not in name])
        self.world.services.kill_all()
        self.world.write_evidence()
        checked = subprocess.run([sys.executable, str(_CHECKER), str(self.world.folder)], check=False)
        return checked.returncode == 0

    def _stop(self, names: Sequence[str]) -> None:
        services = self.world.services
        for name in names:
            services.held.add(name)
            services[name].stop()
        self.wait(lambda: all(services[name].stopped() for name in names), _PATIENCE_SECONDS)
