"""Everything in one run: Kafka, two disks, the network, processes; what may happen next, and what must hold."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import msgspec

from driver.background.adoption import Adopter, AdoptionThread
from driver.decision_loop.loop import DriverLoop
from driver.decisions.replay import Horizon, RewindTo, needed
from driver.journal import history
from driver.journal import opening as journal
from driver.journal.block_index import Place
from driver.journal.events import IncarnationStart
from driver.journal.history import HistoryWriter
from driver.journal.receiver_limits import IdLimits
from driver.journal.state import ADOPTER, Partition
from driver.tracker import Tracker
from driver.tracker.requests import BeginReplay, EndHold, HoldForReset, Request, Reset
from forebay import messages as m
from forebay.model.errors import CorruptionError, FencedError, NewerVersionError, StoreError
from forebay.model.units import Duration, Size
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock
from forebay.settings.schema import ReceiverSettings
from receiver.machine import ReceiverMachine
from recovery import rebuild
from tests.simulation.coverage import Coverage
from tests.simulation.driver_process import DriverProcess, Waiting
from tests.simulation.faults import Faults
from tests.simulation.faulty import FaultyStorage
from tests.simulation.hosts import Host, hosts_of, loss_steps
from tests.simulation.invariants import Invariants, InvariantViolation
from tests.simulation.kafka import Kafka
from tests.simulation.kafka_tier import KafkaTier
from tests.simulation.network import COPIES_MAX, Exchange, Network
from tests.simulation.receiver_process import ReceiverProcess
from tests.simulation.scheduler import Step, TraceMismatch, draw, find
from tests.support.forgetful import Crash, ForgetfulStorage
from wal.segments.writer import LogWriter

STREAM = "sim"
TOPIC = "t"
#: simulated duration of a step
STEP_SECONDS = 0.005
#: rounds after the faults have ended within which all must be taken in and completed
CALM_ROUNDS = 600
#: calm rounds in which files are still rotten
ROTTEN_ROUNDS = 10
#: how often the steps of one process are taken in a calm round
STEPS_IN_A_ROW = 5
#: pause between two rounds before the faults begin
WARM_SECONDS = 0.2
#: a receiver that has other steps ticks in every such round
TICK_ROUNDS = 4
#: kinds of faults that a run may have
#: weight of the fault that loses the journal, and how often it may occur
LOSSES_MAX = 2
FAULTS = ("receiver", "driver", "host", "network", "disk", "kafka", "journal", "replay")
#: kinds of faults of stores, clocks and messages; a run has few of them, so that each shows its own effects
MORE_FAULTS = ("rot", "store", "clock", "odd")
#: maximum number of records produced in one run
RECORDS_MAX = 400
#: maximum number of replays requested in one run
REPLAYS_MAX = 4
_ALL_THERE_IS = 1 << 40
_MORE_FAULTS = frozenset(MORE_FAULTS)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from run to run; part of a trace."""

    partitions: int = 2
    receivers: int = 2
    cooperative: bool = False
    on_gap: str = "record"
    retention_ms: int = 0
    retention_bytes: int = 0
    max_queued_batches: int = 2
    tasks: int = 2
    snapshot_events: int = 12
    segment_bytes: int = 2_000
    drivers_at_once: int = 2
    journal_objects: bool = False  # kept as whole objects
    wal_objects: bool = False
    journal_reserve_bytes: int = 0  # 0: none
    wal_reserve_bytes: int = 0
    stays_full: bool = False  # a full disk is not enlarged when the faults end: completed batches must free it
    faults: tuple[str, ...] = FAULTS
    concurrent_jobs: int = 1
    window_batches: int = 0
    empty_batches: bool = False
    resets: bool = False  # an operator begins new incarnations; not drawn, since that excludes what dead writers left
    queries: bool = False  # one reads the intake by a cursor
    copies: int = 0  # number of hosts with a copy of each block; 0: there is a WAL
    ids: int = 0  # number of ids that the processes of one receiver take in turn, as pods do; 0: one
    #: number of ids from which on the driver forgets those without a heartbeat for ``ids_silent_seconds``; 0: never
    ids_kept: int = 0
    ids_silent_seconds: float = 0.0
    #: what makes a batch: "interval" (the timer), or a free worker: "late" (once an interval has ended), "continuous"
    trigger: str = "interval"
    warm_rounds: int = 0  # rounds without faults before the first step
    one_host_name: bool = False  # all receivers' hosts have the same name
    quiet: int = 5  # factor on the weight of each step that is no fault

    @classmethod
    def drawn(cls, seed: int) -> Options:
        """Draw some faults alone, some together: each may hide effects of others."""
        random = Random(seed)
        return cls(
            partitions=random.choice((1, 2, 3)),
            receivers=random.choice((1, 2, 2, 3)),
            cooperative=random.random() < 0.5,
            on_gap=random.choice(("record", "stop")),
            retention_ms=random.choice((0, 0, 2_000)),
            retention_bytes=random.choice((0, 0, 3_000)),
            max_queued_batches=random.choice((1, 2, 4)),
            tasks=random.choice((1, 2, 3)),
            snapshot_events=random.choice((3, 12, 1_000)),
            segment_bytes=random.choice((1, 6_000, 100_000)),
            drivers_at_once=random.choice((1, 2, 2, 3)),
            faults=tuple(fault for fault in FAULTS if random.random() < (0.3 if fault == "journal" else 0.7)),
            quiet=random.choice((5, 20, 60)),
            journal_objects=random.random() < 0.4,
            wal_objects=random.random() < 0.5,
            journal_reserve_bytes=random.choice((0, 600)),
            wal_reserve_bytes=random.choice((0, 600)),
            concurrent_jobs=random.choice((1, 1, 2, 3)),
            window_batches=random.choice((0, 0, 1, 2)),
            empty_batches=random.random() < 0.2,
            queries=random.random() < 0.4,
            trigger=random.choice(("interval", "late", "late", "continuous")),
            warm_rounds=random.choice((0, 5, 10)),
        )

    @classmethod
    def faulty(cls, seed: int) -> Options:
        """As :meth:`drawn`, with faults of stores, clocks and messages, without rebuilds, which lose what is damaged."""
        drawn, random = cls.drawn(seed), Random(seed)
        more = tuple(fault for fault in MORE_FAULTS if random.random() < 0.5) or (random.choice(MORE_FAULTS),)
        faults = tuple(fault for fault in drawn.faults if fault != "journal" and random.random() < 0.6)
        return msgspec.structs.replace(drawn, faults=(*faults, *more), one_host_name=random.random() < 0.3)

    @classmethod
    def without_wal(cls, seed: int) -> Options:
        """As :meth:`drawn`, with one copy or two in place of the WAL. A lost journal could not be rebuilt."""
        drawn = cls.drawn(seed)
        faults = tuple(fault for fault in drawn.faults if fault != "journal")
        return msgspec.structs.replace(
            drawn, copies=1 + seed % 2, queries=False, wal_objects=False, wal_reserve_bytes=0, faults=faults
        )

    @classmethod
    def forgetting(cls, seed: int) -> Options:
        """As :meth:`drawn`, with receivers whose ids change, and a driver that forgets ids as soon as it may."""
        random = Random(seed)
        return msgspec.structs.replace(
            cls.drawn(seed),
            receivers=random.choice((2, 3)),
            retention_ms=0,
            segment_bytes=1,  # a segment for each block: clean-up deletes all that is completed
            window_batches=0,
            queries=False,
            max_queued_batches=4,
            faults=tuple(fault for fault in FAULTS if random.random() < 0.5),
            ids=random.choice((0, 2, 3, 1_000)),
            ids_kept=random.choice((1, 2)),
            ids_silent_seconds=random.choice((0.0, 0.0, 1.0)),
            quiet=random.choice((20, 60)),
        )


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
    """A host's clock: its wall time may be off by ``off_ms()``."""

    def __init__(self, clock: ManualClock, off_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._off_ms = off_ms

    def wall_ms(self) -> int:
        return max(0, self._clock.wall_ms() + self._off_ms())

    def monotonic(self) -> float:
        return self._clock.monotonic()


class World:
    def __init__(self, options: Options, kinds: Kinds | None = None) -> None:
        self.options = options
        self.kinds = kinds or Kinds()
        self.stream = STREAM
        self.clock = ManualClock(1_000_000)
        self.kafka = Kafka({TOPIC: options.partitions}, options.cooperative)
        self.network = Network()
        self.journal = FaultyStorage("forgetful://journal", self.clock.advance, not options.journal_objects)
        self.wal = FaultyStorage("forgetful://wal", self.clock.advance, not options.wal_objects)
        self.receiver_settings = ReceiverSettings(
            block_interval=Duration(0.2),
            block_size=Size(120),
            memory=Size(2_000),
            drain_timeout=Duration(8.0),
            heartbeat_interval=Duration(15.0),
            report_timeout=Duration(2.0),
            reclaim_delay=Duration(0.3),
            local_copies=False,
        )
        self.hosts = hosts_of(self)
        self.receivers: dict[str, ReceiverProcess] = {}  # the newest process of each id
        self.zombies: list[ReceiverProcess] = []  # older ones that live, paused or not
        self.drivers: list[DriverProcess] = []  # those that live
        self.rebuilding: Generator[str, None, rebuild.RebuildPlan] | None = None
        self.losses = 0
        self.calm = False
        self.steps_with_faults = 0  # once they have ended
        self.taken: list[str] = []
        self.coverage = Coverage()
        self.reached: Counter[str] = Counter()  # what happened: kinds of decided events, and what has no event
        self._uids = itertools.count(1)
        self._started: dict[str, int] = {}
        self._drivers_started = 0
        self._produced = 0
        self._replays = 0
        self.read_from_kafka = 0  # blocks
        self.query = Query()
        self.faults = Faults(self)
        self.invariants = Invariants(self)
        self._partition_steps = [self._steps_of(number) for number in range(options.partitions)]

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def clock_of(self, process: str) -> HostClock:
        """Return the clock of the host on which the process runs."""
        return HostClock(self.clock, lambda: self.faults.clocks.get(process, 0))

    @property
    def wall_ms(self) -> int:
        return self.clock.wall_ms()

    @property
    def id_limits(self) -> IdLimits:
        """In the end only ids of ended processes are forgotten: two live processes would supersede each other in turns."""
        if not self.options.ids_kept:
            return IdLimits()
        return IdLimits(self.options.ids_kept, 600.0 if self.calm else self.options.ids_silent_seconds)

    def new_uid(self) -> int:
        return next(self._uids)

    def clear_failures(self, disk: ForgetfulStorage) -> None:
        """A fault that was armed for one step, and that the step did not meet, no longer acts."""
        disk._failures.clear()

    # ---- running -----------------------------------------------------------------------------------------------------

    def step(self, random: Random) -> str:
        """Take one step, drawn by ``random``. Raises InvariantViolation."""
        choice = draw(self.steps(), random, self.options.quiet)
        self._take(choice.label, choice.run)
        return choice.label

    def take(self, label: str) -> None:
        """Take the step ``label``. Raises TraceMismatch if it cannot happen now, InvariantViolation."""
        choice = find(self.steps(), label)
        if choice is None:
            possible = ", ".join(step.label for step in self.steps())
            raise TraceMismatch(f"step {len(self.taken)}, {label!r}, is not possible; these are: {possible}")
        self._take(label, choice.run)

    def can(self, label: str) -> bool:
        return find(self.steps(), label) is not None

    def _take(self, label: str, run: Callable[[], None]) -> None:
        self.taken.append(label)
        self.coverage.step = len(self.taken)
        run()
        if not all(driver.alive for driver in self.drivers):
            self.drivers = [d for d in self.drivers if d.alive]
        if self.zombies:
            self.zombies = [r for r in self.zombies if r.alive]
        self.clock.advance(STEP_SECONDS)
        self.invariants.check()

    def settle(self) -> None:
        """End all faults and let every process take its steps, in turn.

        Raises InvariantViolation if not all is taken in and completed within ``CALM_ROUNDS``.
        """
        self.calm, self.steps_with_faults = True, len(self.taken)
        self.faults.end_outages()
        if not self.options.stays_full:
            self.journal.capacity_bytes = self.wal.capacity_bytes = None
        for number in range(CALM_ROUNDS):
            if number == ROTTEN_ROUNDS:
                self.faults.heal()
            for tp in self.invariants.unnoticed():  # a recreated topic is noticed by its records
                self._take(f"produce {tp} 1", partial(self._produce, tp.partition, 1))
            if self.invariants.settled():
                self.invariants.check_completed()
                return
            is_busy = self._calm_round(number)
            self.clock.advance(0.1 if is_busy else 1.0)
        raise InvariantViolation(
            "progress", f"not settled after {CALM_ROUNDS} calm rounds: {self.invariants.unsettled()}"
        )

    def warm_up(self) -> None:
        """Let the stream run without faults before they begin. Raises InvariantViolation."""
        for number in range(self.options.warm_rounds):
            self._warm_produce(number)
            self._calm_round(number)
            self.clock.advance(WARM_SECONDS)
        self.taken.clear()

    def _warm_produce(self, number: int) -> None:
        for partition in range(self.options.partitions):
            if number % 4 == partition:
                self._produce(partition, 3)

    def _calm_round(self, number: int) -> bool:
        """Let every process take its steps, in turn. Return whether there were any but ticks."""
        is_busy = False
        for group in list(self._calm_groups()):
            for again in range(STEPS_IN_A_ROW):
                if not self._take_all(group, no_ticks=bool(number % TICK_ROUNDS or again)):
                    break
                is_busy = True
        return is_busy

    def _take_all(self, group: Callable[[], Iterable[Step]], no_ticks: bool) -> bool:
        """Take the steps of a group, each once. Return whether there were any but ticks.

        ``no_ticks``: a receiver that has other steps need not tick, since every input tells it the time.
        """
        labels = [step.label for step in group()]
        is_busy = False
        for label in labels:
            is_tick = label.endswith(" tick")
            if is_tick and (is_busy or no_ticks) and len(labels) > 1:
                continue
            choice = find(group(), label)
            if choice is not None:
                self._take(label, choice.run)
                is_busy = is_busy or not is_tick
        return is_busy

    # ---- what can happen next ----------------------------------------------------------------------------------------

    def steps(self) -> list[Step]:
        if self.calm:
            return [step for group in self._calm_groups() for step in group()]
        return list(self._steps())

    def _processes(self) -> Iterator[ReceiverProcess]:
        yield from self.zombies
        yield from (process for process in self.receivers.values() if process.alive)

    def _steps(self) -> Iterator[Step]:
        faults = self.options.faults
        yield Step("time", self._pass_time, 4, range(1, 30))
        for host in self.hosts.values():
            yield from host.steps()
        if "host" in faults:
            yield from map(_fault, loss_steps(self))
        for process in self._processes():
            if process.paused:
                yield Step(f"{process.name} wake", process.wake, 2)
                continue
            yield from process.steps()
            if "receiver" in faults:
                yield from map(_fault, process.fault_steps())
        for driver in self.drivers:
            if driver.paused:
                yield Step(f"{driver.name} wake", driver.wake, 3)
                continue
            yield from driver.steps()
            if "driver" in faults:
                yield from map(_fault, driver.fault_steps())
        for number in range(1, self.options.receivers + 1):
            name = f"r{number}"
            if name not in self.receivers or not self.receivers[name].alive:
                yield Step(f"start {name}", partial(self._start_receiver, name), 8)
            elif "receiver" in faults and self.receivers[name].paused and not self.zombies:
                yield _fault(Step(f"start {name}", partial(self._start_receiver, name), 2))  # beside its own zombie
        if not self.drivers:
            yield Step("start driver", self._start_driver, 10)
        elif "driver" in faults and len(self.drivers) < self.options.drivers_at_once:
            yield _fault(Step("start driver", self._start_driver, 2))
        yield from self._network_steps("network" in faults)
        yield from self._group_steps()
        yield from self._kafka_steps()
        if "replay" in faults:
            yield from self._replay_steps()
        if "host" in faults:
            yield _fault(Step("crash driver-host", self._crash_driver_host, 1, range(1000)))
            yield _fault(Step("crash receiver-host", self._crash_receiver_host, 1, range(1000)))
        yield from self._late_steps()
        if "journal" in faults and self._can_lose_journal():
            yield _fault(Step("lose journal", self._lose_journal, 1, range(2)))
        yield from self._rebuild_steps("journal" in faults)
        if not _MORE_FAULTS.isdisjoint(faults):
            yield from self.faults.steps()
        if "disk" in faults:
            for name, disk in (("journal", self.journal), ("wal", self.wal)):
                if disk.capacity_bytes is None:
                    reserve_bytes = getattr(self.options, f"{name}_reserve_bytes")
                    weight = 3 * self.options.quiet if reserve_bytes else 1
                    yield _fault(Step(f"{name} full", partial(self._fill, disk), weight, range(reserve_bytes or 600)))
                else:
                    yield Step(f"{name} has-space", partial(self._free, disk), 6)
            if not self.journal.omitted and self._listed():
                yield _fault(Step("journal omits", self._omit, 2, range(1000)))

    def _can_lose_journal(self) -> bool:
        """A topic that was recreated before any process read its new id leaves blocks of an unknown topic."""
        again = self.kafka.topics[TOPIC].incarnation > 1
        return not again and not self.invariants.lost and self.losses < LOSSES_MAX and self.invariants.has_copy()

    def _rebuild_steps(self, faults: bool) -> Iterator[Step]:
        if self.rebuilding is not None:
            yield Step("rebuild step", self._go_on_rebuilding, 40)
            if faults:
                yield _fault(Step("rebuild kill", self._kill_rebuild, 4))
                for name, disk in (("journal", self.journal), ("wal", self.wal)):
                    yield _fault(Step(f"rebuild crash {name}", partial(self._crash_rebuild, disk), 8, range(1, 12)))
        elif self.invariants.lost:
            yield Step("rebuild", self._rebuild, 10)

    def _late_steps(self) -> Iterator[Step]:
        """Objects that were sent, and whose sender got an error or died."""
        for name, disk in (("journal", self.journal), ("wal", self.wal)):
            for at in range(len(disk.late)):
                yield Step(f"{name} lands-late {at}", partial(self._land, disk, at), 2)

    def _land(self, disk: ForgetfulStorage, at: int) -> None:
        path = disk.land(at)
        if disk is self.wal and path:
            self.invariants.landed(path)

    def _network_steps(self, faults: bool) -> Iterator[Step]:
        serving = [d for d in self.drivers if d.leading]
        for exchange in list(self.network.exchanges.values()):
            label = exchange.label
            if exchange.copies:
                for driver in serving:
                    yield Step(f"deliver {label} {driver.name}", partial(self._deliver, exchange, driver), 20)
                if faults:
                    yield _fault(Step(f"lose {label}", partial(self.network.lose_request, exchange), 6))
                    if exchange.made < COPIES_MAX:
                        yield _fault(Step(f"repeat {label}", partial(self.network.repeat_request, exchange), 6))
            sender = self._sender(exchange)
            if sender is None or not sender.running:
                continue
            for number in exchange.answers:
                yield Step(f"answer {label} {number}", partial(self._answer, exchange, number), 25)
                if faults:
                    step = Step(f"lose-answer {label} {number}", partial(self.network.lose_answer, exchange, number), 6)
                    yield _fault(step)
            if not exchange.given_up:
                lost = not exchange.copies and not exchange.answers and not exchange.at_driver
                if lost or faults:
                    step = Step(f"give-up {label}", partial(self.network.give_up, exchange), 20 if lost else 4)
                    yield step if lost else _fault(step)

    def _sender(self, exchange: Exchange) -> ReceiverProcess | Host | None:
        name = exchange.label.partition("/")[0]
        if name in self.hosts:
            return self.hosts[name]
        for process in (*self.receivers.values(), *self.zombies):
            if process.name == name:
                return process if process.alive else None
        return None

    def _group_steps(self) -> Iterator[Step]:
        group = self.kafka.group
        alive = {process.member: process for process in self._processes() if process.member is not None}
        for member in sorted(group.members):
            process = alive.get(member)
            if process is None or process.paused:
                yield Step(f"expire {member}", partial(group.leave, member), 8)
            elif "kafka" in self.options.faults:
                yield _fault(Step(f"expire {member}", partial(group.leave, member), 2))
        if "kafka" in self.options.faults and group.members and not group.rebalancing:
            yield _fault(Step("rebalance", group.rebalance, 4))

    def _kafka_steps(self) -> Iterator[Step]:
        topic = self.kafka.topics[TOPIC]
        has_faults = "kafka" in self.options.faults
        for partition in range(topic.partitions):
            steps = self._partition_steps[partition]
            log = topic.log(partition)
            if self._produced < RECORDS_MAX:
                yield steps["produce"]
            if not has_faults:
                continue
            if log.high and self._produced < RECORDS_MAX:
                yield steps["end-transaction"]
            if log.high - log.low > 2:
                yield steps["compact"]
                yield steps["retain"]
            if self._unread(partition):
                yield steps["outlive-orphan" if self._is_orphaned(partition) else "outlive"]
        if "kafka" in self.options.faults:
            if topic.incarnation < 3 and not self.losses:
                yield _fault(Step("recreate", topic.recreate, 1))
            yield from self._operator_steps()
        for driver in self.drivers:
            if self.options.resets and driver.leading and not driver.paused:
                for held in driver.tracker.state.partitions.values():
                    yield from self._reset_steps(driver, held.tp)

    def _steps_of(self, partition: int) -> dict[str, Step]:
        """What may happen to a partition in Kafka, by name."""
        where = f"{TOPIC}/{partition}"
        outlive = partial(self._outlive, partition)
        return {
            "produce": Step(f"produce {where}", partial(self._produce, partition), 5, range(1, 7)),
            "end-transaction": _fault(Step(f"end-transaction {where}", partial(self._end_transaction, partition), 4)),
            "compact": _fault(Step(f"compact {where}", partial(self._compact, partition), 2, range(1000))),
            "retain": _fault(Step(f"retain {where}", partial(self._retain, partition), 1, range(1, 100))),
            "outlive": _fault(Step(f"outlive {where}", outlive, 2, range(1, 101))),
            "outlive-orphan": _fault(Step(f"outlive {where}", outlive, 60 * self.options.quiet, range(1, 101))),
        }

    def _operator_steps(self) -> Iterator[Step]:
        """An operator accepts the gap that the status shows."""
        for driver in self.drivers:
            if not driver.leading or driver.paused:
                continue
            for key, partition in driver.tracker.state.partitions.items():
                if partition.fault is not None and not any(
                    isinstance(w.request, m.AcceptGapRequest) for w in driver.queue
                ):
                    yield Step(f"{driver.name} accept-gap {key}", partial(self._accept_gap, driver, key), 5)
                if partition.fault is not None and self.options.ids:
                    yield from self._fence_steps(driver, partition)

    def _fence_steps(self, driver: DriverProcess, partition: Partition) -> Iterator[Step]:
        """An operator says that a receiver whose id may never return was removed for good.

        The status shows what waits for it.
        """
        alive = {process.receiver_id for process in self._processes()}
        for writer in partition.writers:
            if writer.receiver_id not in alive and writer.receiver_id != ADOPTER:
                tp = partition.tp
                request = m.FenceRequest(topic=tp.topic, partition=tp.partition, receiver_id=writer.receiver_id)
                fence = partial(driver.queue.append, Waiting(request))
                yield Step(f"{driver.name} fence {tp} {writer.receiver_id}", fence, 2)

    def _reset_steps(self, driver: DriverProcess, tp: TopicPartition) -> Iterator[Step]:
        """Reset to the first offset: what ``driver.background.resetting`` requests from the decision loop, one by one."""
        start = IncarnationStart(tp.topic, tp.partition, self.kafka.log(tp).low, self.kafka.topic_id(tp.topic))
        asked: dict[str, Request] = {
            "hold-reset": HoldForReset((tp,)),
            "reset": Reset((start,), "reset to earliest", "simulated"),
            "let-go": EndHold((tp,)),
        }
        for name, request in asked.items():
            yield _fault(Step(f"{driver.name} {name} {tp}", partial(driver.queue.append, Waiting(request)), 1))

    def _replay_steps(self) -> Iterator[Step]:
        """An operator rewinds to one of the completed batches. This is refused if the WAL does not hold all of it."""
        for driver in self.drivers:
            if (
                driver.leading
                and not driver.paused
                and driver.tracker.state.completed_number
                and self._replays < REPLAYS_MAX
            ):
                weight = max(2, self.options.quiet // 2)
                yield _fault(Step(f"{driver.name} replay", partial(self._replay, driver), weight, range(1, 4)))

    def _calm_groups(self) -> Iterator[Callable[[], Iterable[Step]]]:
        """End the faults: paused processes wake, dead ones start, messages arrive at the newest driver.

        Each group offers the steps of one part of the world as they are when it is called.
        """
        for host in self.hosts.values():
            yield host.steps
        processes: list[ReceiverProcess | DriverProcess] = [*self._processes(), *self.drivers]
        for process in processes:
            yield partial(_calm_steps_of, process)
        yield self._calm_starts
        for exchange in list(self.network.exchanges.values()):
            yield partial(self._calm_network_steps, exchange)
        yield self._calm_group_steps
        yield self._late_steps
        yield partial(self._rebuild_steps, False)
        yield self._operator_steps

    def _calm_starts(self) -> Iterator[Step]:
        for number in range(1, self.options.receivers + 1):
            name = f"r{number}"
            if name not in self.receivers or not self.receivers[name].alive:
                yield Step(f"start {name}", partial(self._start_receiver, name))
        if not self.drivers:
            yield Step("start driver", self._start_driver)

    def _calm_network_steps(self, exchange: Exchange) -> Iterator[Step]:
        sender = self._sender(exchange)
        leading = [driver for driver in self.drivers if driver.leading]
        if exchange.copies and leading:
            step = partial(self._deliver, exchange, leading[-1])
            yield Step(f"deliver {exchange.label} {leading[-1].name}", step)
        if sender is None or not sender.running:
            return
        for number in exchange.answers:
            yield Step(f"answer {exchange.label} {number}", partial(self._answer, exchange, number))
        lost = not exchange.copies and not exchange.answers and not exchange.at_driver
        if lost and not exchange.given_up:
            yield Step(f"give-up {exchange.label}", partial(self.network.give_up, exchange))

    def _calm_group_steps(self) -> Iterator[Step]:
        members = {process.member for process in self._processes()}
        for member in sorted(self.kafka.group.members):
            if member not in members:
                yield Step(f"expire {member}", partial(self.kafka.group.leave, member))

    # ---- the steps ---------------------------------------------------------------------------------------------------

    def _pass_time(self, tenths: int) -> None:
        self.clock.advance(tenths / 10)

    def _start_receiver(self, name: str) -> None:
        before = self.receivers.get(name)
        if before is not None and before.alive:
            self.zombies.append(before)
        self._started[name] = self._started.get(name, 0) + 1
        number = self._started[name]
        receiver_id = f"{name}-{number % self.options.ids}" if self.options.ids else name
        self.receivers[name] = self.kinds.receiver(self, receiver_id, number)
        self.receivers[name].tick()

    def _lose_journal(self, history_survives: int) -> None:
        """Lose the whole journal, perhaps except the history.

        Running drivers die with their disk; a paused one does not notice.
        """
        for driver in self.drivers:
            if not driver.paused:
                driver.kill()
        self.losses += 1
        for path in self.journal.paths(""):
            if not (history_survives and f"{STREAM}/history/" in path):
                self.journal.forget(path)
        self.journal.late.clear()
        self._kill_rebuild()

    def _rebuild(self) -> None:
        self.rebuilding = rebuild.steps(
            self.journal,
            self.wal,
            STREAM,
            lambda topics: {topic: self.kafka.topic_id(topic) for topic in topics},
            "rebuild",
            self.wall_ms,
            lambda: self.now,
            self.new_uid,
            1_000_000,
            self.kinds.rebuilt,
        )

    def _go_on_rebuilding(self) -> None:
        assert self.rebuilding is not None
        try:
            next(self.rebuilding)
        except (StopIteration, FencedError, StoreError):
            self.rebuilding = None

    def _crash_rebuild(self, disk: ForgetfulStorage, at: int) -> None:
        disk.crash_at_step = disk.steps + at
        try:
            self._go_on_rebuilding()
        except Crash:
            self._kill_rebuild()
        disk.crash_process()

    def _kill_rebuild(self) -> None:
        if self.rebuilding is not None:
            self.rebuilding.close()
            self.rebuilding = None

    def _start_driver(self) -> None:
        self._drivers_started += 1
        self.drivers.append(self.kinds.driver(self, self._drivers_started))

    def _deliver(self, exchange: Exchange, driver: DriverProcess) -> None:
        self.network.request_taken(exchange)
        body = msgspec.json.decode(msgspec.json.encode(exchange.body), type=type(exchange.body))
        driver.queue.append(Waiting(body, exchange))

    def _answer(self, exchange: Exchange, number: int) -> None:
        self.network.deliver_answer(exchange, number)

    def _produce(self, partition: int, records: int) -> None:
        self._produced += records
        self.kafka.topics[TOPIC].produce(partition, records)

    def _end_transaction(self, partition: int) -> None:
        self.kafka.topics[TOPIC].end_transaction(partition)

    def _compact(self, partition: int, seed: int) -> None:
        topic = self.kafka.topics[TOPIC]
        log = topic.log(partition)
        random = Random(seed)
        topic.compact(partition, [at for at in range(log.low, log.high) if random.random() < 0.4])

    def _retain(self, partition: int, percent: int) -> None:
        topic = self.kafka.topics[TOPIC]
        log = topic.log(partition)
        topic.retain(partition, log.low + (log.high - log.low) * percent // 100)

    def _unread(self, partition: int) -> int:
        """Return how many offsets Kafka holds, from the durable position on."""
        state = self.invariants.durable
        known = state.partitions.get(f"{TOPIC}/{partition}") if state is not None else None
        log = self.kafka.topics[TOPIC].log(partition)
        if known is None or known.incarnation.topic_id != log.topic_id:
            return 0
        return log.high - max(known.position, log.low)

    def _is_orphaned(self, partition: int) -> bool:
        """Return whether Kafka and the WAL hold records that were not taken in, and that no living process will report."""
        tp = TopicPartition(TOPIC, partition)
        known = self.invariants.durable.partition(tp) if self.invariants.durable is not None else None
        in_kafka = known is not None and self.kafka.log(tp).low <= known.position
        return in_kafka and self.invariants.unreported(tp) and not any(p.has_unreported for p in self._processes())

    def _outlive(self, partition: int, percent: int) -> None:
        """Retention deletes records that were not taken in."""
        topic = self.kafka.topics[TOPIC]
        unread = self._unread(partition)
        topic.retain(partition, topic.log(partition).high - unread + -(-unread * percent // 100))

    def _accept_gap(self, driver: DriverProcess, key: str) -> None:
        partition = driver.tracker.state.partitions[key]
        fault = partition.fault
        assert fault is not None
        request = m.AcceptGapRequest(
            topic=partition.topic,
            partition=partition.partition,
            from_offset=fault.position,
            until_offset=fault.accepted_until,
        )
        driver.queue.append(Waiting(request))

    def _replay(self, driver: DriverProcess, back: int) -> None:
        """Rewind to the ``back``-th newest completed batch."""
        self._replays += 1
        state = driver.tracker.state
        to = RewindTo(batch=max(1, state.completed_number + 1 - back))
        try:
            archived = needed(history.read_back(self.journal, self.stream), Horizon.of(state), to)
        except (CorruptionError, NewerVersionError, StoreError):  # the operator gets the error
            return
        driver.queue.append(Waiting(BeginReplay(to, archived, state.archived_number, "simulated")))

    def _crash_driver_host(self, seed: int) -> None:
        """All drivers die, and the journal's disk loses unsynced bytes."""
        for driver in self.drivers:
            driver.kill()
        self._kill_rebuild()
        self.journal.crash_host(Random(seed))
        self.invariants.hosts_crashed()

    def _crash_receiver_host(self, seed: int) -> None:
        """All receivers die, and the WAL's disk loses unsynced bytes."""
        for process in list(self._processes()):
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

    def _omit(self, which: int) -> None:
        """One listing leaves one object out."""
        found = self._listed()
        self.journal.omitted = found[-1 - which % len(found)]
        self.reached["omitted"] += 1


def _calm_steps_of(process: ReceiverProcess | DriverProcess) -> Iterator[Step]:
    if not process.alive:
        return
    if process.paused:
        yield Step(f"{process.name} wake", process.wake)
    else:
        yield from process.steps()


def _fault(step: Step) -> Step:
    step.fault = True
    return step
