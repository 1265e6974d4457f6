"""Runs as data: options, and the labels of the steps taken. A failing run is reduced to the relevant steps."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from tests.simulation.invariants import InvariantViolation
from tests.simulation.options import Options
from tests.simulation.scheduler import OPTIONAL, TraceMismatch
from tests.simulation.shells import ended_threads
from tests.simulation.world import Kinds, World

DIRECTORY = Path(__file__).parent / "traces"


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """``about``: description for readers.

    ``invariant``: what it violates, "" if nothing on the right code. ``settle``: whether the run goes on, without faults,
    until everything is completed.
    """

    about: str
    invariant: str = ""
    options: Options
    steps: tuple[str, ...]
    settle: bool = True


@dataclass(frozen=True, slots=True)
class Beginning:
    """The steps up to one that reached a decision in a way that was new."""

    options: Options
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    violation: InvariantViolation
    trace: Trace


def load(path: Path) -> Trace:
    return msgspec.json.decode(path.read_bytes(), type=Trace)


def save(trace: Trace, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(trace), indent=1) + b"\n")


def replay(trace: Trace, kinds: Kinds | None = None) -> World:
    """Replay the trace. Raises InvariantViolation if it violates one, TraceMismatch if it does not fit the code."""
    world = World(trace.options, kinds)
    with without_collection(), ended_threads():
        world.warm_up()
        for label in trace.steps:
            if label.startswith(OPTIONAL):
                world.take_if_possible(label[1:])
            else:
                world.take(label)
        if trace.settle:
            world.settle()
    return world


@contextmanager
def without_collection() -> Iterator[None]:
    """Leave the garbage of a run to its end: each collection would visit the objects of every loaded library."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def errors_as_violations() -> Iterator[None]:
    """Raise an error that no part of the product or the simulation expects as a violation that names it."""
    try:
        yield
    except (InvariantViolation, TraceMismatch):
        raise
    except Exception as error:
        raise InvariantViolation(f"unexpected {type(error).__name__}", str(error)) from error


def explore(
    seed: int,
    steps: int,
    kinds: Kinds | None = None,
    drawn: Callable[[int], Options] = Options.drawn,
    begin: Beginning | None = None,
) -> Failure | World:
    """Run ``steps`` with faults, drawn by ``seed`` with the options, then go on without faults.

    ``begin``: the options and first steps of an earlier run, from which this one goes another way. An error that no part expects
    is a failure, too.
    """
    options = begin.options if begin is not None else drawn(seed)
    world = World(options, kinds)
    random = Random(seed)
    taken = 0
    try:
        with errors_as_violations(), without_collection(), ended_threads():
            world.warm_up()
            for label in begin.steps if begin is not None else ():
                world.take(label)
            for _ in range(steps):
                world.step(random)
            taken = len(world.taken)
            world.settle()
    except InvariantViolation as violation:
        trace = Trace(
            about=f"seed {seed}: {violation}",
            invariant=violation.invariant,
            options=options,
            steps=tuple(world.taken[: taken or None]),
            settle=bool(taken),
        )
        return Failure(seed, violation, trace)
    return world


def shrink(failure: Failure, seconds: float, kinds: Kinds | None = None) -> Trace:
    """Return fewer steps that violate the same invariant: leaves out ever shorter runs of steps, for at most ``seconds``."""
    trace = failure.trace
    steps = list(trace.steps)
    ends = time.monotonic() + seconds
    size = len(steps) // 2
    while size and time.monotonic() < ends:
        at = 0
        while at < len(steps) and time.monotonic() < ends:
            shorter = _broken_by(trace, [*steps[:at], *steps[at + size :]], kinds)
            if shorter is None:
                at += size
            else:
                steps = shorter
        size //= 2
    return msgspec.structs.replace(trace, steps=tuple(steps))


def _broken_by(trace: Trace, steps: Sequence[str], kinds: Kinds | None) -> list[str] | None:
    """Return those of ``steps`` that are possible, if they violate the trace's invariant."""
    world = World(trace.options, kinds)
    taken = 0
    try:
        with errors_as_violations(), without_collection(), ended_threads():
            world.warm_up()
            for label in steps:
                world.take_if_possible(label)
            taken = len(world.taken)
            if trace.settle:
                world.settle()
    except InvariantViolation as violation:
        if violation.invariant == trace.invariant and bool(taken) == trace.settle:
            return world.taken[: taken or None]
    return None
