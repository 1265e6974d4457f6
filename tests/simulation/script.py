"""What the scripts of the fixed traces are made of: a world whose steps are chosen by name, and recorded."""

from __future__ import annotations

from collections.abc import Callable

from driver.journal.state_parts import OpenFault
from tests.simulation.options import Options
from tests.simulation.scheduler import OPTIONAL
from tests.simulation.world import World

#: maximum number of steps in which a script must find a step that it needs
PATIENCE_STEPS = 400


class Script:
    """A world, and the steps that were taken in it."""

    def __init__(self, **options: object) -> None:
        fixed = {"partitions": 1, "receivers": 1, "snapshot_events": 1_000, "drivers_at_once": 3}
        self.options = Options(**{**fixed, **options})  # type: ignore[arg-type]
        self.world = World(self.options)
        self.steps: list[str] = []

    def do(self, *labels: str) -> None:
        for label in labels:
            self.world.take(label)
            self.steps.append(label)

    def perhaps(self, *labels: str) -> None:
        """Record steps that only the mistaken code may offer."""
        for label in labels:
            if self.world.can(label):
                self.world.take(label)
            self.steps.append(f"{OPTIONAL}{label}")

    def run(
        self, *whose: str, until: Callable[[], object], without: tuple[str, ...] = (), optional: bool = False
    ) -> None:
        """Take all steps of the named processes, without faults, until ``until``.

        ``optional``: the mistaken code may not offer all of them.
        """
        for _ in range(PATIENCE_STEPS):
            if until():
                return
            possible = [
                step.label
                for step in self.world.steps()
                if not step.fault
                and step.numbers is None
                and any(self._is(step.label, name) for name in whose)
                and not step.label.startswith(without)
            ]
            # rounds that may find nothing to do yet wait until there is nothing else
            busy = [label for label in possible if not label.endswith((" tick", " adopt:begin"))]
            ticks = [label for label in possible if label not in busy]
            labels = busy[:1] if busy else ["time 3", *ticks]
            if optional:
                self.perhaps(*labels)
            else:
                self.do(*labels)
        raise AssertionError(f"never came: {self.steps[-20:]}")

    def _is(self, label: str, name: str) -> bool:
        """Return the process's own steps and those of its messages."""
        return label.startswith(name) or f" {name}/" in label

    def open_driver(self, name: str) -> None:
        self.do("start driver", f"{name} claim", f"{name} read", f"{name} snapshot", f"{name} open")

    def begin(self, *receivers: str) -> None:
        """Start one driver that leads and knows the partitions, and receivers that own theirs."""
        self.open_driver("d1")
        self.run(*LOOP, "d1 housekeeping", until=self._created)
        self.run(*LOOP, until=lambda: not any(map(self.world.can, LOOP)))
        for receiver in receivers:
            self.do(f"start {receiver}")
        names = [f"{receiver}.1" for receiver in receivers]
        if names:
            self.run(*names, *LOOP, until=lambda: self.reading() == self.options.partitions)

    def _created(self) -> bool:
        state = self.world.invariants.durable
        if state is None or not state.created or not (state.copies or self.options.copies):
            return False
        return self.world.drivers[0].has_discovered

    def reading(self) -> int:
        return sum(len(process.source.reading) for process in self.world.receivers.values())

    def position(self, key: str = "t/0") -> int:
        state = self.world.invariants.durable
        return state.partitions[key].position if state is not None else -1

    def fault(self, key: str = "t/0") -> OpenFault | None:
        state = self.world.invariants.durable
        return state.partitions[key].fault if state is not None else None

    def incarnations(self, key: str = "t/0") -> int:
        state = self.world.invariants.durable
        return len(state.partitions[key].incarnations) if state is not None else 0

    def completed(self) -> int:
        state = self.world.invariants.durable
        return state.batches_completed if state is not None else 0

    def waiting(self) -> bool:
        """Return whether a block is in no batch."""
        state = self.world.invariants.durable
        return state is None or bool(state.waiting)

    def covered(self) -> bool:
        """Return whether both snapshot copies have everything that is released."""
        state = self.world.invariants.durable
        return state is not None and len(state.copies) == 2 and bool(state.released) and not state.uncovered

    def sent(self, label: str) -> bool:
        """Return whether this message is on its way."""
        return label in self.world.network.exchanges


#: the decision loop of the first driver
LOOP = ("d1 decide", "d1 append", "d1 sync", "d1 check", "d1 release", "d1 snapshot-again", "d1 drop")
RECEIVER = ("r1.1",)
#: a search of the WAL for records that Kafka lost
ADOPT = "d1 adopt"
CLEAN = tuple(f"d1 clean:{name}" for name in ("begin", "answered", "copy", "copied", "prune", "deleted", "list"))
