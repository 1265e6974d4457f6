"""The faults of a run. Each is drawn from the seed before the run, and begins, waits and ends by steps of a generator.

A generator yields a number of seconds to wait, or a condition to wait for; the run's loop goes on with it then.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TypeAlias

from tests.jepsen.services import Service
from tests.jepsen.world import DRIVERS, MASTER, RISKY, STORE, Shape, World

Waits: TypeAlias = "Iterator[float | Callable[[], bool]]"
#: the wall clock moves by this: S3 servers refuse requests that are more than 15 minutes off
_JUMP_SECONDS_MAX = 600
_JAVA_ON_SIGTERM = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Step:
    """One fault: it begins ``at`` seconds after the beginning, and lasts ``seconds``. ``targets``: hosts or processes."""

    at: float
    kind: str
    targets: tuple[str, ...]
    seconds: float

    def later(self, seconds: float) -> Step:
        return replace(self, at=self.at + seconds)

    def __str__(self) -> str:
        return f"{self.kind} {' '.join(self.targets)}".strip()


@dataclass(frozen=True)
class Kind:
    """``draw``: the targets; ``run``: the fault. ``alone``: no other fault runs at the same time."""

    draw: Callable[[Random, Shape], tuple[str, ...]]
    run: Callable[[World, Step], Waits]
    weight: int = 2
    alone: bool = False


# ---- the network -----------------------------------------------------------------------------------------------------


def _pair(draw: Random, shape: Shape) -> tuple[str, ...]:
    return tuple(draw.sample(shape.hosts, 2))


def _cut(world: World, step: Step) -> Waits:
    one, other = step.targets
    world.network.cut(one, other)
    yield step.seconds
    world.network.restore(one, other)


def _cut_way(world: World, step: Step) -> Waits:
    source, target = step.targets
    world.network.cut_way(source, target)
    yield step.seconds
    world.network.restore_way(source, target)


def _isolate(world: World, step: Step) -> Waits:
    world.network.cut_off(step.targets[0])
    yield step.seconds
    world.network.put_back(step.targets[0])


# ---- processes -------------------------------------------------------------------------------------------------------


def _process(draw: Random, shape: Shape) -> tuple[str, ...]:
    # Forebay's processes hold what can be lost, and Spark's run the tasks: they are chosen more often than brokers and the store
    spark = (*shape.spark_daemons, *shape.executors)
    return (draw.choice([*shape.services * 2, *shape.broker_hosts, STORE, *spark * 2]),)


def _service(draw: Random, shape: Shape) -> tuple[str, ...]:
    return (draw.choice((*shape.services, *shape.spark_daemons)),)


def _pause(world: World, step: Step) -> Waits:
    target = world.process(step.targets[0])
    target.send(signal.SIGSTOP)
    yield step.seconds
    target.send(signal.SIGCONT)


def _kill(world: World, step: Step) -> Waits:
    (name,) = step.targets
    target = world.process(name)
    world.services.held.add(name)
    target.kill()
    yield step.seconds / 2
    target.start()
    world.services.held.discard(name)
    yield target.ready


def _stop(world: World, step: Step) -> Waits:
    (name,) = step.targets
    yield from _restart(world, name)


def _restart(world: World, name: str, upgrade: bool = False) -> Waits:
    service = world.services[name]
    world.services.held.add(name)
    service.stop()
    yield service.stopped
    if not service.stopped():
        world.story.write(f"{name} does not stop; killed")
        service.kill()
    code = service.forget()
    if code not in (0, None, -signal.SIGTERM, -signal.SIGKILL, 4, _JAVA_ON_SIGTERM):
        world.story.write(f"{name} exited with {code} on SIGTERM")
    if upgrade and isinstance(service, Service) and service.origin:
        world.story.write(f"{name} is upgraded from {service.origin}")
        service.release = None
    service.start()
    world.services.held.discard(name)
    yield service.ready


def _rolling(world: World, step: Step) -> Waits:
    """Restart all services of Forebay. If some run an earlier release, upgrade those of the next kind instead, so that other
    faults meet a cluster of two releases before the following kind is upgraded."""
    for name in world.outdated or world.shape.services:
        yield from _restart(world, name, upgrade=True)
        yield 2.0


# ---- disks and clocks ------------------------------------------------------------------------------------------------


def _disk(draw: Random, shape: Shape) -> tuple[str, ...]:
    # a NameNode whose disk was full stays in safe mode until an operator ends it
    return (draw.choice([*shape.worker_hosts, *([STORE] if shape.store == "s3" else [])]),)


def _fill(world: World, step: Step) -> Waits:
    filler = world.disks[step.targets[0]] / "filler"
    fill(filler)
    yield step.seconds
    filler.unlink()


def fill(filler: Path) -> None:
    """Write a file that takes all free space of its disk."""
    space = os.statvfs(filler.parent)
    with filler.open("wb", buffering=0) as file:
        for size in (space.f_frsize * 256, space.f_frsize):
            portion = b"\0" * size
            try:
                while file.write(portion) == size:
                    pass
            except OSError:
                continue  # no space for this portion


def _clock_host(draw: Random, shape: Shape) -> tuple[str, ...]:
    hosts = [*DRIVERS, *shape.worker_hosts]
    return draw.choice(hosts), f"{draw.choice([-1, 1]) * draw.randint(60, _JUMP_SECONDS_MAX):+d}"


def _jump(world: World, step: Step) -> Waits:
    host, seconds = step.targets
    if host not in world.clocks:
        world.story.write("no clock jumps: they need a C compiler on Linux with glibc on x86-64")
        return
    world.clocks[host].move(int(seconds))
    yield step.seconds
    world.clocks[host].move(0)


# ---- Kafka's leaders -------------------------------------------------------------------------------------------------


def _broker(draw: Random, shape: Shape) -> tuple[str, ...]:
    return (draw.choice(shape.broker_hosts),)


def _elect(world: World, step: Step) -> Waits:
    """A broker ends in order, so that others lead its partitions; when it is back, the preferred leaders are elected again."""
    (name,) = step.targets
    broker = world.brokers[name]
    broker.send(signal.SIGTERM)
    yield step.seconds
    broker.kill9()
    broker.start_again()
    yield broker.ready


def _risky(draw: Random, shape: Shape) -> tuple[str, ...]:
    return (str(draw.randrange(shape.topics[RISKY])),)


def _unclean(world: World, step: Step) -> Waits:
    """The follower is cut off until it is out of sync; then the leader dies, and the follower leads with an older log."""
    number = int(step.targets[0])
    brokers = world.brokers

    def in_sync() -> bool:
        found = brokers.partition(RISKY, number)
        return found is not None and found.leader >= 0 and len(found.isrs) == len(found.replicas)

    yield in_sync
    shown = brokers.partition(RISKY, number)
    if shown is None or shown.leader < 0 or len(shown.isrs) < len(shown.replicas):
        world.story.write(f"no unclean election: {RISKY}/{number} has not all replicas in sync")
        return
    leader, follower = brokers.named(shown.leader), next(brokers.named(r) for r in shown.replicas if r != shown.leader)
    world.network.cut(leader, follower)

    def alone() -> bool:
        found = brokers.partition(RISKY, number)
        return found is not None and found.isrs == [brokers[leader].number]

    yield alone
    if not alone():
        world.story.write(f"no unclean election: {follower} stays in sync")
        world.network.restore(leader, follower)
        return
    yield 3.0  # records that only the leader has
    brokers.unclean.add((RISKY, number))
    brokers[leader].kill9()
    world.network.restore(leader, follower)

    def led() -> bool:
        found = brokers.partition(RISKY, number)
        return found is not None and found.leader == brokers[follower].number

    yield led
    world.story.write(f"{follower} leads {RISKY}/{number}: {led()}; {leader} comes back and cuts its log")
    brokers[leader].start_again()
    yield brokers[leader].ready


# ---- Spark's master --------------------------------------------------------------------------------------------------


def _forget(world: World, step: Step) -> Waits:
    """The master restarts while it reaches no driver, and so forgets their applications and kills their executors."""
    for driver in DRIVERS:
        world.network.cut(MASTER, driver)
    yield from _kill(world, replace(step, targets=(MASTER,)))
    recovered = world.services[MASTER].said  # since its start

    yield lambda: "Recovery complete" in recovered()
    for driver in DRIVERS:
        world.network.restore(MASTER, driver)


# ---- secrets ---------------------------------------------------------------------------------------------------------


def _nothing(draw: Random, shape: Shape) -> tuple[str, ...]:
    return ()


def _tokens(world: World, step: Step) -> Waits:
    """By the steps of docs/operations/tokens.md: the new line below the old one, then above it, then alone."""
    world.token_generation += 1
    old, new = world.token_lines(world.token_generation - 1), world.token_lines(world.token_generation)
    for generations in ([old, new], [new, old], [new]):
        world.write_tokens(generations)
        yield step.seconds / 3


def _certificates(world: World, step: Step) -> Waits:
    world.issue_certificates()
    yield 1.0


KINDS: dict[str, Kind] = {
    "cut": Kind(_pair, _cut, 4),
    "cut-way": Kind(_pair, _cut_way, 4),
    "isolate": Kind(lambda draw, shape: (draw.choice(shape.hosts),), _isolate),
    "pause": Kind(_process, _pause, 3),
    "kill": Kind(_process, _kill, 4),
    "stop": Kind(_service, _stop),
    "rolling": Kind(_nothing, _rolling, 1, alone=True),
    "disk": Kind(_disk, _fill),
    "clock": Kind(_clock_host, _jump),
    "elect": Kind(_broker, _elect),
    "unclean": Kind(_risky, _unclean, 2, alone=True),
    "forget": Kind(_nothing, _forget, 1, alone=True),
    "tokens": Kind(_nothing, _tokens),
    "certificates": Kind(_nothing, _certificates, 1),
}
#: kinds that need three brokers, and those that need Spark's cluster
REPLICATED, CLUSTERED = ("elect", "unclean"), ("forget",)


def possible(kinds: Iterable[str], shape: Shape) -> list[str]:
    """Return the kinds that a run of this shape can have."""
    left_out = (*(REPLICATED if shape.brokers < 3 else ()), *(CLUSTERED if shape.engine != "spark" else ()))
    return [name for name in kinds if name not in left_out]


def plan(seed: int, seconds: float, shape: Shape, kinds: Sequence[str]) -> list[Step]:
    """Return the faults of a run, by their beginning. At most two run at the same time, and never two with a common target."""
    draw = Random(seed)
    names = possible(kinds, shape)
    weights = [KINDS[name].weight for name in names]
    steps: list[Step] = []
    at = 5.0
    while True:
        name = draw.choices(names, weights)[0]
        step = Step(round(at, 1), name, KINDS[name].draw(draw, shape), round(draw.uniform(2.0, 15.0), 1))
        if step.at + step.seconds > seconds:
            return steps
        steps.append(step)
        at += draw.uniform(1.0, 12.0)


def upgrading(steps: Sequence[Step], seconds: float) -> list[Step]:
    """Return the faults of a run whose services begin with an earlier release: after each of three quarters, one fault upgrades a
    kind of service. Other restarts of all services are left out.

    Unclean elections come after the upgrades: receivers of earlier releases do not notice each log that was cut back.
    """
    *_, last = times = [seconds * quarter / 4 for quarter in (1, 2, 3)]
    kept = [step for step in steps if step.kind != "rolling" and (step.kind != "unclean" or step.at > last)]
    return sorted([*kept, *(Step(at, "rolling", (), 0.0) for at in times)], key=lambda step: step.at)


def compatible(step: Step, active: Sequence[Step]) -> bool:
    """Whether a fault may begin while ``active`` ones run."""
    if KINDS[step.kind].alone or any(KINDS[one.kind].alone for one in active):
        return not active
    taken = {target for one in active for target in one.targets or (one.kind,)}
    return len(active) < 2 and not taken & {*(step.targets or (step.kind,))}
