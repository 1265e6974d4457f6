"""Rounds without faults, in which every process takes its steps in turn: before the faults begin, and after they have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.driver_process import DriverProcess
from tests.simulation.invariants import InvariantViolation
from tests.simulation.options import LONG_RETENTION_MS
from tests.simulation.receiver_process import ReceiverProcess
from tests.simulation.scheduler import Step

if TYPE_CHECKING:
    from tests.simulation.world import World

#: rounds after the faults have ended within which all must be taken in and completed
CALM_ROUNDS = 600
#: calm rounds in which files are still rotten
ROTTEN_ROUNDS = 10
#: rounds of clean-up with a long retention, after the wall clocks of all drivers have jumped ahead
AHEAD_ROUNDS = 40
#: how often the steps of one process are taken in a calm round
STEPS_IN_A_ROW = 5
#: pause between two rounds before the faults begin
WARM_SECONDS = 0.2
#: rounds in which a receiver must get a block to its store before the faults begin
ORPHAN_ROUNDS = 20
#: a receiver without other steps ticks in every such round; every other input tells it the time, too
TICK_ROUNDS = 4


class CalmRounds:
    """The rounds of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ahead_since: int | None = None  # round

    def settle(self) -> None:
        """End all faults and let every process take its steps, in turn.

        Raises InvariantViolation if not all is taken in and completed within ``CALM_ROUNDS``.
        """
        world = self._world
        world.faults.end_outages()
        if not world.options.stays_full:
            world.journal.capacity_bytes = world.wal.capacity_bytes = None
        heals_at = ROTTEN_ROUNDS
        for number in range(CALM_ROUNDS):
            if number == heals_at:
                world.faults.heal()
            for tp in world.invariants.unnoticed():  # a recreated topic is noticed by its records
                world.take_step(f"produce {tp} 1", partial(world.kafka_steps.produce, tp.partition, 1))
            is_settled = world.invariants.settled()
            if world.damage.is_due(last=is_settled and world.options.recovers):
                world.damage.act()
                heals_at = number + ROTTEN_ROUNDS
                if world.options.recovers:
                    world.recovering.recover()
            elif is_settled and not self._go_on_ahead(number):
                world.invariants.check_completed()
                return
            is_busy = self._round(number)
            world.clock.advance(0.1 if is_busy else 1.0)
        raise InvariantViolation(
            "progress", f"not settled after {CALM_ROUNDS} calm rounds: {world.invariants.unsettled()}"
        )

    def _go_on_ahead(self, number: int) -> bool:
        """Set the drivers' clocks ahead once, so that clean-up could delete early (INV-8). Return whether it has to go on."""
        if self._world.options.retention_ms < LONG_RETENTION_MS:
            return False
        if self._ahead_since is None:
            self._ahead_since = number
            self._world.faults.set_drivers_ahead()
        return number < self._ahead_since + AHEAD_ROUNDS

    def warm_up(self) -> None:
        """Let the stream run without faults before they begin. Raises InvariantViolation."""
        world = self._world
        for number in range(world.options.warm_rounds):
            self._produce(number)
            self._round(number)
            world.clock.advance(WARM_SECONDS)
        if world.options.orphan:
            self._leave_orphan()

    def _leave_orphan(self) -> None:
        """Kill a receiver between its sync and its report, and let Kafka lose the records of that block."""
        world = self._world
        for number in range(ORPHAN_ROUNDS):
            world.kafka_steps.produce(number % world.options.partitions, 2)
            self._round(number * TICK_ROUNDS, withheld="/report#")
            world.clock.advance(WARM_SECONDS)
            unreported = [process for process in world.processes() if process.has_unreported]
            for process in unreported:
                process.kill()
            for exchange in list(world.network.exchanges.values()):
                if unreported and "/report#" in exchange.label:
                    world.network.lose_request(exchange)
            if unreported and world.kafka_steps.lose_orphans():
                return

    def _produce(self, number: int) -> None:
        world = self._world
        for partition in range(world.options.partitions):
            if number % 4 == partition:
                world.kafka_steps.produce(partition, 3)

    def _round(self, number: int, withheld: str = "") -> bool:
        """Let every process take its steps, in turn. Return whether there were any but ticks.

        ``withheld``: part of the labels of messages that stay on their way.
        """
        is_busy = False
        for group in list(self.groups(withheld)):
            for again in range(STEPS_IN_A_ROW):
                if not self._take_all(group, no_ticks=bool(number % TICK_ROUNDS or again)):
                    break
                is_busy = True
        return is_busy

    def _take_all(self, group: Callable[[], Iterable[Step]], no_ticks: bool) -> bool:
        """Take the steps of a group, each once. Return whether there were any but ticks."""
        world = self._world
        steps = list(group())
        is_busy = is_changed = False
        for step in steps:
            is_tick = step.label.endswith(" tick")
            if is_tick and (is_busy or no_ticks):
                continue
            label = step.label
            run = next((now.run for now in group() if now.label == label), None) if is_changed else step.run
            if run is not None:
                world.take_step(label, run)
                is_busy, is_changed = is_busy or not is_tick, True
        return is_busy

    def groups(self, withheld: str = "") -> Iterator[Callable[[], Iterable[Step]]]:
        """End the faults: paused processes wake, dead ones start, messages arrive at the newest driver.

        Each group offers the steps of one part of the world as they are when it is called.
        """
        world = self._world
        for host in world.hosts.values():
            yield host.steps
        processes: list[ReceiverProcess | DriverProcess] = [*world.processes(), *world.drivers]
        for process in processes:
            yield partial(_steps_of, process)
        yield self._starts
        for exchange in list(world.network.exchanges.values()):
            if not withheld or withheld not in exchange.label:
                yield partial(world.network_steps.calm_steps, exchange)
        yield world.kafka_steps.calm_group_steps
        yield world.late_steps
        yield partial(world.journal_loss.rebuild_steps, False)
        yield world.operator.steps

    def _starts(self) -> Iterator[Step]:
        world = self._world
        for number in range(1, world.options.receivers + 1):
            name = f"r{number}"
            if name not in world.receivers or not world.receivers[name].alive:
                yield Step(f"start {name}", partial(world.start_receiver, name))
        if not world.drivers:
            yield Step("start driver", world.start_driver)


def _steps_of(process: ReceiverProcess | DriverProcess) -> Iterator[Step]:
    if not process.alive:
        return
    if process.paused:
        yield Step(f"{process.name} wake", process.wake)
    else:
        yield from process.steps()
