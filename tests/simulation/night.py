"""Many runs on all cores, guided by coverage, with a report: ``python -m tests.simulation --hours H``, ``make sim-night``.

A worker gets a task: seeds, a variant, and beginnings of earlier runs that reached a decision in a new way. Every second
run goes on from such a beginning. A failing run is reduced in its worker, and becomes a trace and a story.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

from tests.simulation import traces
from tests.simulation.options import Options
from tests.simulation.story import story
from tests.simulation.traces import Beginning, Failure, Trace
from tests.simulation.world import Kinds

#: how each variant draws its options
VARIANTS: dict[str, Callable[[int], Options]] = {
    "": Options.drawn,
    "faulty": Options.faulty,
    "without-wal": Options.without_wal,
    "forgetting": Options.forgetting,
}
#: how often each variant is run
_TURNS = ("", "faulty", "", "faulty", "", "faulty", "without-wal", "forgetting")
RUNS_IN_TASK = 20
#: steps with faults in a run from a seed, and after a beginning
STEPS = 150
STEPS_AFTER_BEGINNING = 60
#: beginnings that are kept, and longer ones that are not
BEGINNINGS_MAX = 2_000
BEGINNING_STEPS_MAX = 400
SHRINK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    first_seed: int
    runs: int
    variant: str
    steps: int
    beginnings: tuple[Beginning, ...] = ()
    shrink_seconds: float = SHRINK_SECONDS


@dataclass(slots=True)
class Outcome:
    """``failures``: by trace, what it breaks. ``reached``: what no earlier run of the worker reached, with its beginning."""

    task: Task
    runs: int = 0
    steps: int = 0
    cpu_seconds: float = 0.0
    reached: dict[str, Beginning] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[Trace, str]] = field(default_factory=list)


@dataclass(slots=True)
class Explored:
    """What all workers found."""

    runs: int = 0
    steps: int = 0
    cpu_seconds: float = 0.0
    reached: dict[str, None] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    failures: dict[str, tuple[Trace, str]] = field(default_factory=dict)  # by invariant and reason: one of each
    growth: list[tuple[float, int, int]] = field(default_factory=list)  # seconds, runs, decisions reached

    @property
    def rate(self) -> float:
        """Runs a second on a core."""
        return self.runs / self.cpu_seconds if self.cpu_seconds else 0.0

    def add(self, outcome: Outcome, seconds: float) -> list[Beginning]:
        """Add an outcome. Return the beginnings that reached something new."""
        self.runs += outcome.runs
        self.steps += outcome.steps
        self.cpu_seconds += outcome.cpu_seconds
        self.events.update(outcome.events)
        for trace, message in outcome.failures:
            self.failures.setdefault(
                f"{trace.invariant} {''.join(c for c in message if not c.isdigit())[:80]}", (trace, message)
            )
        new = {what: begin for what, begin in outcome.reached.items() if what not in self.reached}
        self.reached.update(dict.fromkeys(new))
        self.growth.append((seconds, self.runs, len(self.reached)))
        return list({id(begin): begin for begin in new.values()}.values())


def perform(task: Task, kinds: Kinds | None = None) -> Outcome:
    """Run the task's seeds. After a failure of the product no further seed is run."""
    outcome = Outcome(task)
    began = time.process_time()
    with traces.without_collection():
        for seed in range(task.first_seed, task.first_seed + task.runs):
            begin = None
            if task.beginnings and seed % 2:
                begin = Random(seed).choice(task.beginnings)
            steps = STEPS_AFTER_BEGINNING if begin is not None else task.steps
            result = traces.explore(seed, steps, kinds, VARIANTS[task.variant], begin)
            outcome.runs += 1
            if isinstance(result, Failure):
                trace = traces.shrink(result, task.shrink_seconds, kinds)
                outcome.failures.append((trace, str(result.violation)))
                break
            outcome.steps += len(result.taken)
            outcome.events.update(set(result.reached))
            for what, step in result.coverage.reached.items():
                if what not in outcome.reached and 0 < step <= min(result.steps_with_faults, BEGINNING_STEPS_MAX):
                    outcome.reached[what] = Beginning(result.options, tuple(result.taken[:step]))
            del result
            gc.collect(0)  # the run's objects, all of them young
    outcome.cpu_seconds = time.process_time() - began
    return outcome


def explore(
    seconds: float,
    first_seed: int,
    workers: int | None = None,
    steps: int = STEPS,
    failed: Callable[[Explored], None] = lambda _: None,
) -> Explored:
    """Run tasks on all cores for ``seconds``. ``failed`` is called with what was found until then, when a run has failed."""
    explored, random = Explored(), Random(first_seed)
    beginnings: deque[Beginning] = deque(maxlen=BEGINNINGS_MAX)
    began = time.monotonic()

    def tasks() -> Iterator[Task]:
        for number in count():
            if time.monotonic() - began >= seconds:
                return
            some = tuple(random.sample(list(beginnings), min(RUNS_IN_TASK, len(beginnings))))
            variant = _TURNS[number % len(_TURNS)]
            some = some if not variant else ()  # the beginnings have options of their own
            yield Task(first_seed + number * RUNS_IN_TASK, RUNS_IN_TASK, variant, steps, some)

    cores = workers or os.cpu_count() or 1
    gc.collect()
    gc.freeze()  # no collection visits the libraries' objects
    with multiprocessing.get_context("fork").Pool(cores) as pool:
        waiting = tasks()
        running = deque(pool.apply_async(perform, (task,)) for _, task in zip(range(cores + 1), waiting, strict=False))
        while running:
            outcome = running.popleft().get()
            beginnings.extend(explored.add(outcome, time.monotonic() - began))
            if outcome.failures:
                failed(explored)
            running.extend(pool.apply_async(perform, (task,)) for task in [next(waiting, None)] if task is not None)
    return explored


def report(explored: Explored, first_seed: int, out: Path) -> str:
    """Write traces and stories of the failures, and return the report in Markdown."""
    seconds = explored.growth[-1][0] if explored.growth else 0.0
    lines = [
        "# Simulation",
        "",
        f"{explored.runs} runs from seed {first_seed} on, {explored.steps} steps, {seconds / 60:.0f} minutes, "
        f"{explored.rate:.1f} runs a second on a core.",
        f"{len(explored.reached)} decisions in their order were reached, {len(explored.failures)} failures were found.",
        "",
        "| minutes | runs | decisions reached |",
        "| --- | --- | --- |",
    ]
    every = max(1, len(explored.growth) // 20)
    lines += [f"| {at / 60:.1f} | {runs} | {reached} |" for at, runs, reached in explored.growth[every - 1 :: every]]
    lines += ["", "| what happened | runs |", "| --- | --- |"]
    lines += [f"| {event} | {runs} |" for event, runs in sorted(explored.events.items(), key=lambda item: item[1])]
    for number, (trace, message) in enumerate(explored.failures.values(), 1):
        path = out / f"failure-{number}.json"
        traces.save(trace, path)
        lines += ["", f"## Failure {number}: {message}", "", f"Again: `python -m tests.simulation --replay {path}`", ""]
        lines += [story(trace.steps, message)]
    return "\n".join(lines) + "\n"
