"""``python -m tests.simulation``: runs new seeds until it is stopped; see ``tests/simulation/__init__.py``."""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
from collections import Counter
from pathlib import Path
from random import SystemRandom

from tests.simulation import night, scenarios, traces
from tests.simulation.invariants import InvariantViolation
from tests.simulation.mistakes import MISTAKES
from tests.simulation.story import story

#: maximum time for reducing a failing run, in seconds
SHRINK_SECONDS = 60.0
PROGRESS_SECONDS = 5.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; alone it means one run")
    parser.add_argument("--runs", type=int, help="how many seeds; without it, until stopped")
    parser.add_argument(
        "--steps", type=int, default=night.STEPS, help=f"steps with faults in each run (default: {night.STEPS})"
    )
    parser.add_argument("--out", type=Path, default=Path("run"), help="folder for the trace of a failing run")
    kind = parser.add_mutually_exclusive_group()
    for name, description in (
        ("faulty", "faults of stores, clocks and messages"),
        ("without-wal", "hosts' copies in place of the WAL"),
        ("forgetting", "ids of receivers change, and are forgotten"),
    ):
        kind.add_argument(f"--{name}", dest="variant", action="store_const", const=name, help=description)
    parser.add_argument("--hours", type=float, help="run on all cores, guided by coverage, and write a report")
    parser.add_argument("--workers", type=int, help="processes of --hours (default: one for each core)")
    parser.add_argument("--replay", type=Path, help="run a trace again")
    parser.add_argument("--record", action="store_true", help="write traces/*.json anew from the scripts")
    chosen = parser.parse_args(arguments)
    logging.getLogger().addHandler(logging.NullHandler())  # what the product logs in a run is no finding
    if chosen.record:
        return _record()
    if chosen.replay is not None:
        return _replay(chosen.replay)
    runs = chosen.runs if chosen.runs is not None else 1 if chosen.seed is not None else None
    first = chosen.seed if chosen.seed is not None else SystemRandom().getrandbits(40)
    if chosen.hours is not None:
        return _night(first, chosen.hours * 3600, chosen.workers, chosen.steps, chosen.out)
    return _explore(first, runs, chosen.steps, chosen.out, chosen.variant or "")


def _explore(first: int, runs: int | None, steps: int, out: Path, variant: str) -> int:
    drawn = night.VARIANTS[variant]
    began = shown = time.monotonic()
    taken = 0
    reached: Counter[str] = Counter()
    for number in itertools.count():
        if number == runs:
            print(*(f"{event}: {times} runs" for event, times in sorted(reached.items())), sep="\n")
            print(f"{number} runs, {taken} steps: all invariants held", flush=True)
            return 0
        outcome = traces.explore(first + number, steps, drawn=drawn)
        if isinstance(outcome, traces.Failure):
            return _tell(outcome, steps, out, f" --{variant}" if variant else "")
        taken += len(outcome.taken)
        reached.update(kind for kind, times in outcome.reached.items() if times)
        if time.monotonic() - shown > PROGRESS_SECONDS:
            shown = time.monotonic()
            rate = taken / (shown - began)
            print(f"{number + 1} runs, {taken} steps ({rate:.0f}/s), now at seed {first + number}", flush=True)
    raise AssertionError("counting ends never")


def _night(first: int, seconds: float, workers: int | None, steps: int, out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    path = out / "simulation.md"

    def write(explored: night.Explored) -> None:
        path.write_text(night.report(explored, first, out))

    explored = night.explore(seconds, first, workers, steps, failed=write)  # it may be stopped before its time
    write(explored)
    print(
        f"{explored.runs} runs, {explored.rate:.1f} a second on a core, {len(explored.reached)} decisions reached",
        flush=True,
    )
    print(f"{len(explored.failures)} failures; the report is {path}", flush=True)
    return 1 if explored.failures else 0


def _tell(failure: traces.Failure, steps: int, out: Path, options: str) -> int:
    print(f"seed {failure.seed} broke {failure.violation}", flush=True)
    print(f"again: python -m tests.simulation --seed {failure.seed} --steps {steps}{options}", flush=True)
    print(f"leaving out steps for up to {SHRINK_SECONDS:.0f} s …", flush=True)
    trace = traces.shrink(failure, SHRINK_SECONDS)
    path = out / f"seed-{failure.seed}.json"
    out.mkdir(parents=True, exist_ok=True)
    traces.save(trace, path)
    print(story(trace.steps, str(failure.violation)))
    print(
        f"{len(trace.steps)} steps{', then without faults' if trace.settle else ''}, written to {path}; again: --replay {path}"
    )
    return 1


def _replay(path: Path) -> int:
    try:
        world = traces.replay(traces.load(path))
    except InvariantViolation as violation:
        print(f"broke {violation}")
        return 1
    print(f"{len(world.taken)} steps: all invariants held")
    return 0


def _record() -> int:
    invariants = {mistake.name: mistake.invariant for mistake in MISTAKES}
    for name in scenarios.SCENARIOS:
        trace = scenarios.record(name, invariants[name])
        traces.save(trace, traces.DIRECTORY / f"{name}.json")
        print(f"{name}: {len(trace.steps)} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
