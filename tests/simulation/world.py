"""Everything in one run: Kafka, two disks, the network, processes; what may happen next, and what must hold."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from driver.background.adoption import Adopter, AdoptionThread
from driver.decision_loop.loop import DriverLoop
from driver.journal.block_index import Place
from driver.journal.history import HistoryWriter
from driver.journal.log import opening as journal
from driver.journal.receiver_limits import IdLimits
from driver.journal.retention_clock import RetentionClock
from driver.tracker import Tracker
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock, ManualClock
from receiver.machine import ReceiverMachine
from recovery import rebuild
from tests.simulation.calm import CalmRounds
from tests.simulation.coverage import Coverage
from tests.simulation.damage import Damage
from tests.simulation.decoded import DecodedBlocks
from tests.simulation.driver_process import DriverProcess
from tests.simulation.faults import Faults
from tests.simulation.faulty import FaultyStorage
from tests.simulation.hosts import hosts_of, loss_steps
from tests.simulation.invariants import Invariants
from tests.simulation.journal_loss import JournalLoss
from tests.simulation.kafka import Kafka
from tests.simulation.kafka_steps import KafkaSteps
from tests.simulation.kafka_tier import KafkaTier
from tests.simulation.network import Network
from tests.simulation.network_steps import NetworkSteps
from tests.simulation.operators import Operator
from tests.simulation.options import MORE_FAULTS, STREAM, TOPIC, Options
from tests.simulation.receiver_process import ReceiverProcess
from tests.simulation.recovering import Recovering
from tests.simulation.scheduler import Choice, Step, TraceMismatch, as_fault, draw, find
from tests.support.stores.forgetful import ForgetfulStorage
from wal.segments.writer import LogWriter

if TYPE_CHECKING:
    from tests.simulation.uploads import Bucket

#: simulated duration of a step
STEP_SECONDS = 0.005
_ALL_THERE_IS = 1 << 40
_MORE_FAULTS = frozenset(MORE_FAULTS)


@dataclass(frozen=True, slots=True)
class Kinds:
    """What the world is built of. ``mistakes.py`` replaces parts by mistaken ones."""

    machine: Callable[..., ReceiverMachine] = ReceiverMachine
    tracker: Callable[..., Tracker] = Tracker
    opening: Callable[..., Any] = journal.opening_steps
    driver: type[DriverProcess] = DriverProcess
    receiver: type[ReceiverProcess] = ReceiverProcess
    history: type[HistoryWriter] = HistoryWriter
    rebuilt: Callable[..., rebuild.RebuildPlan] = rebuild.rebuilt
    writer: type[LogWriter] = LogWriter  # of the receivers
    adopter: type[Adopter] = Adopter
    adoption: type[AdoptionThread] = AdoptionThread
    loop: type[DriverLoop] = DriverLoop
    kafka_tier: type[KafkaTier] = KafkaTier
    retention_clock: Callable[..., Clock] = RetentionClock


@dataclass(slots=True)
class Query:
    """The checkpoint of a query over the intake, and what it read.

    It outlives drivers, and the query starts anew with each. ``planned``: the end of a batch that is not finished.
    ``read``: the rows of its first run.
    """

    runs: int = 0
    finished: dict[TopicPartition, Place] | None = None
    planned: dict[TopicPartition, Place] | None = None
    read: list[str] | None = None
    rows: int = 0
    losses: int = 0  # journals that were lost when its cursor was opened


class HostClock:
    """A host's clock: it runs fast or slow by ``drift``, a share, and its wall time may be off by ``off_ms()``."""

    def __init__(self, clock: ManualClock, off_ms: Callable[[], int], drift: float = 0.0) -> None:
        self._clock = clock
        self._off_ms = off_ms
        self._drift = drift

    def wall_ms(self) -> int:
        drifted_ms = self._clock.monotonic() * 1000 * self._drift
        return max(0, int(self._clock.wall_ms() + drifted_ms) + self._off_ms())

    def monotonic(self) -> float:
        return self._clock.monotonic() * (1 + self._drift)


class World:
    """The processes, the hosts, Kafka and the stores of one run, and the steps that they offer next."""

    def __init__(self, options: Options, kinds: Kinds | None = None) -> None:
        self.options = options
        self.kinds = kinds or Kinds()
        self.stream = STREAM
        self.clock = ManualClock(1_000_000)
        self.kafka = Kafka({TOPIC: options.partitions}, options.cooperative)
        self.network = Network()
        self.journal = FaultyStorage("forgetful://journal", self.clock.advance, not options.journal_objects)
        self.wal = FaultyStorage("forgetful://wal", self.clock.advance, not options.wal_objects)
        self.bucket = _bucket(self.wal) if options.wal_part_bytes else None
        self.hosts = hosts_of(self)
        self.receivers: dict[str, ReceiverProcess] = {}  # the newest process of each id
        self.zombies: list[ReceiverProcess] = []  # older ones that live, paused or not
        self.drivers: list[DriverProcess] = []  # those that live
        self.calm = False
        self.steps_with_faults = 0  # once they have ended
        self.taken: list[str] = []
        self.coverage = Coverage()
        self.reached: Counter[str] = Counter()  # what happened: kinds of decided events, and what has no event
        self._uids = itertools.count(1)
        self._started: dict[str, int] = {}
        self._drivers_started = 0
        self.read_from_kafka = 0  # blocks
        self.query = Query()
        self.decoded = DecodedBlocks()
        self.faults = Faults(self)
        self.invariants = Invariants(self)
        self.kafka_steps = KafkaSteps(self)
        self.network_steps = NetworkSteps(self)
        self.operator = Operator(self)
        self.journal_loss = JournalLoss(self)
        self.damage = Damage(self)
        self.recovering = Recovering(self)
        self._calm = CalmRounds(self)
        self._offered = self._always_the_same()

    def _always_the_same(self) -> dict[str, Step]:
        """Return the steps that differ in nothing whenever they are offered, by label."""
        steps = [
            Step("time", self._pass_time, 4, range(1, 30)),
            Step("start driver", self.start_driver, 10),
            as_fault(Step("crash driver-host", self._crash_driver_host, 1, range(1000))),
            as_fault(Step("crash receiver-host", self._crash_receiver_host, 1, range(1000))),
            as_fault(Step("journal omits", self._omit, 2, range(1000))),
        ]
        receivers = [f"r{number}" for number in range(1, self.options.receivers + 1)]
        steps += [Step(f"start {name}", partial(self.start_receiver, name), 8) for name in receivers]
        for name, disk in (("journal", self.journal), ("wal", self.wal)):
            reserve_bytes = getattr(self.options, f"{name}_reserve_bytes")
            weight = 6 * self.options.quiet if reserve_bytes else 1
            steps.append(as_fault(Step(f"{name} full", partial(self._fill, disk), weight, range(reserve_bytes or 600))))
            steps.append(Step(f"{name} has-space", partial(self._free, disk), 6))
        return {step.label: step for step in steps}

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def clock_of(self, process: str) -> HostClock:
        """Return the clock of the host on which the process runs."""
        drift = self.options.drift_of(process.partition(".")[0])  # the processes of a receiver run on one host
        return HostClock(self.clock, lambda: self.faults.clocks.get(process, 0), drift)

    @property
    def wall_ms(self) -> int:
        return self.clock.wall_ms()

    @property
    def id_limits(self) -> IdLimits:
        """In the end only ids of ended processes are forgotten: two live processes would supersede each other in turns."""
        if not self.options.ids_kept:
            return IdLimits()
        return IdLimits(
            kept=self.options.ids_kept, silent_seconds=600.0 if self.calm else self.options.ids_silent_seconds
        )

    def new_uid(self) -> int:
        return next(self._uids)

    def clear_failures(self, disk: ForgetfulStorage) -> None:
        """A fault that was armed for one step, and that the step did not meet, no longer acts."""
        disk._failures.clear()

    # ---- running -----------------------------------------------------------------------------------------------------

    def step(self, random: Random) -> str:
        """Take one step, drawn by ``random``. Raises InvariantViolation."""
        choice = draw(self.steps(), random, self.options.quiet)
        self.perform(choice)
        return choice.label

    def perform(self, choice: Choice) -> None:
        """Take the step that was chosen. Raises InvariantViolation."""
        self.take_step(choice.label, choice.run)

    def take(self, label: str) -> None:
        """Take the step ``label``. Raises TraceMismatch if it cannot happen now, InvariantViolation."""
        choice = find(self.steps(), label)
        if choice is None:
            possible = ", ".join(step.label for step in self.steps())
            raise TraceMismatch(f"step {len(self.taken)}, {label!r}, is not possible; these are: {possible}")
        self.take_step(label, choice.run)

    def take_if_possible(self, label: str) -> None:
        """Take the step ``label`` if it can happen now. Raises InvariantViolation."""
        choice = find(self.steps(), label)
        if choice is not None:
            self.take_step(label, choice.run)

    def can(self, label: str) -> bool:
        return find(self.steps(), label) is not None

    def take_step(self, label: str, run: Callable[[], None]) -> None:
        self.taken.append(label)
        self.coverage.step = len(self.taken)
        run()
        for driver in self.drivers:
            if driver.killed or driver.ended is not None:
                self.drivers = [d for d in self.drivers if d.alive]
                break
        if self.zombies:
            self.zombies = [r for r in self.zombies if r.alive]
        self.clock.advance(STEP_SECONDS)
        self.invariants.check()

    def settle(self) -> None:
        """End all faults and run until all is taken in and completed. Raises InvariantViolation."""
        self.calm, self.steps_with_faults = True, len(self.taken)
        self._calm.settle()

    def warm_up(self) -> None:
        """Let the stream run without faults before they begin. Raises InvariantViolation."""
        self._calm.warm_up()
        self.taken.clear()

    # ---- what can happen next ----------------------------------------------------------------------------------------

    def steps(self) -> list[Step]:
        if self.calm:
            return [step for group in self._calm.groups() for step in group()]
        return list(self._steps())

    def processes(self) -> Iterator[ReceiverProcess]:
        yield from self.zombies
        yield from (process for process in self.receivers.values() if process.alive)

    def _steps(self) -> Iterator[Step]:
        faults, offered = self.options.faults, self._offered
        yield offered["time"]
        for host in self.hosts.values():
            yield from host.steps()
        if "host" in faults:
            yield from map(as_fault, loss_steps(self))
            for host in self.hosts.values():
                yield from host.fault_steps()
        for process in self.processes():
            if process.paused:
                yield Step(f"{process.name} wake", process.wake, 2)
                continue
            yield from process.steps()
            if "receiver" in faults:
                yield from map(as_fault, process.fault_steps())
        for driver in self.drivers:
            if driver.paused:
                yield Step(f"{driver.name} wake", driver.wake, 3)
                continue
            yield from driver.steps()
            if "driver" in faults:
                yield from map(as_fault, driver.fault_steps())
        for number in range(1, self.options.receivers + 1):
            name = f"r{number}"
            if name not in self.receivers or not self.receivers[name].alive:
                yield offered[f"start {name}"]
            elif "receiver" in faults and self.receivers[name].paused and not self.zombies:
                yield as_fault(Step(f"start {name}", partial(self.start_receiver, name), 2))  # beside its own zombie
        if not self.drivers:
            yield offered["start driver"]
        elif "driver" in faults and len(self.drivers) < self.options.drivers_at_once:
            yield as_fault(Step("start driver", self.start_driver, 2))
        yield from self.network_steps.steps("network" in faults)
        yield from self.kafka_steps.group_steps()
        yield from self.kafka_steps.steps()
        if "kafka" in faults:
            yield from self.operator.steps()
        yield from self.operator.reset_steps()
        if "replay" in faults:
            yield from self.operator.replay_steps()
        if "host" in faults:
            yield offered["crash driver-host"]
            yield offered["crash receiver-host"]
        yield from self.late_steps()
        if "journal" in faults:
            yield from self.journal_loss.loss_steps()
        yield from self.journal_loss.rebuild_steps("journal" in faults)
        if not _MORE_FAULTS.isdisjoint(faults):
            yield from self.faults.steps()
        if "disk" in faults:
            for name, disk in (("journal", self.journal), ("wal", self.wal)):
                yield offered[f"{name} {'full' if disk.capacity_bytes is None else 'has-space'}"]
            if not self.journal.omitted and self._is_listed():
                yield offered["journal omits"]

    def late_steps(self) -> Iterator[Step]:
        """Objects that were sent, and whose sender got an error or died."""
        for name, disk in (("journal", self.journal), ("wal", self.wal)):
            for at in range(len(disk.late)):
                yield Step(f"{name} lands-late {at}", partial(self._land, disk, at), 2)

    def _land(self, disk: ForgetfulStorage, at: int) -> None:
        path = disk.land(at)
        if disk is self.wal and path:
            self.invariants.landed(path)

    # ---- the steps ---------------------------------------------------------------------------------------------------

    def _pass_time(self, tenths: int) -> None:
        self.clock.advance(tenths / 10)

    def start_receiver(self, name: str) -> None:
        before = self.receivers.get(name)
        if before is not None and before.alive:
            self.zombies.append(before)
        self._started[name] = self._started.get(name, 0) + 1
        number = self._started[name]
        receiver_id = f"{name}-{number % self.options.ids}" if self.options.ids else name
        self.receivers[name] = self.kinds.receiver(self, receiver_id, number)
        self.receivers[name].start()

    def start_driver(self) -> None:
        self._drivers_started += 1
        self.drivers.append(self.kinds.driver(self, self._drivers_started))

    def _crash_driver_host(self, seed: int) -> None:
        """All drivers die, and the journal's disk loses unsynced bytes."""
        for driver in self.drivers:
            driver.kill()
        self.journal_loss.kill()
        self.journal.crash_host(Random(seed))
        self.invariants.hosts_crashed()

    def _crash_receiver_host(self, seed: int) -> None:
        """All receivers die, and the WAL's disk loses unsynced bytes."""
        for process in list(self.processes()):
            process.kill()
        self.wal.crash_host(Random(seed))
        self.invariants.hosts_crashed()

    def _fill(self, disk: ForgetfulStorage, room_bytes: int) -> None:
        disk.capacity_bytes = _ALL_THERE_IS
        free = disk.free_bytes()
        assert free is not None
        disk.capacity_bytes = _ALL_THERE_IS - free + room_bytes

    def _free(self, disk: ForgetfulStorage) -> None:
        disk.capacity_bytes = None

    def _listed(self) -> list[str]:
        """What a driver finds by listing the journal's store, except the history, whose loss the audit shows."""
        return [path for path in self.journal.paths(STREAM) if "/epoch" in path]

    def _is_listed(self) -> bool:
        """Return whether :meth:`_listed` has any path."""
        return any("/epoch" in path and path.startswith(f"{STREAM}/") for path in self.journal.names())

    def _omit(self, which: int) -> None:
        """One listing leaves one object out."""
        found = self._listed()
        self.journal.omitted = found[-1 - which % len(found)]
        self.reached["omitted"] += 1


def _bucket(storage: FaultyStorage) -> Bucket:
    from tests.simulation.uploads import Bucket  # imports s3fs

    return Bucket(storage)
