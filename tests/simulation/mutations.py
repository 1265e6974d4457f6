"""The mutation score: ``python -m tests.simulation.mutations``, ``make sim-mutations``.

For each guard of ``guards.py``, a process of its own imports the product without it and runs seeds of the simulation until
one fails, for at most a budget. If none fails, the process runs the guard's test. The table says what noticed each removal;
the exit code is 1 if one was not noticed by either.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tests.simulation.guards import GUARDS, Guard

ROOT = Path(__file__).parent.parent.parent
#: processor seconds of simulation for each guard
BUDGET_SECONDS = 30.0
#: runs of one variant before the next one's turn
RUNS_IN_TURN = 10
STEPS = 150
#: maximum processor time of one run and of a guard's test, in seconds: a removed guard may make either endless, which is
#: noticed too. Not the time of day: on a busy machine every process would seem endless.
RUN_SECONDS = 30.0
TEST_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Score:
    """``by``: "simulation", "test" or "". ``seconds``: until it was noticed."""

    guard: str
    by: str
    seconds: float
    runs: int
    what: str


class _Mutated(SourceFileLoader):
    """Loads a module without the guard. No bytecode is cached."""

    def __init__(self, fullname: str, guard: Guard) -> None:
        super().__init__(fullname, str(ROOT / guard.path))
        self._guard = guard

    def get_code(self, fullname: str) -> CodeType:
        source = without(self._guard, Path(self.path).read_text())
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._name = guard.path.removesuffix(".py").replace("/", ".")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return spec_from_file_location(fullname, loader=_Mutated(fullname, self._guard))


def without(guard: Guard, source: str) -> str:
    """Return the module's source without the guard. Raises ValueError if the guard is not there once."""
    if source.count(guard.code) != 1:
        raise ValueError(f"{guard.name}: {guard.path} has its code {source.count(guard.code)} times, not once")
    return source.replace(guard.code, guard.instead)


def measure(guard: Guard, budget_seconds: float = BUDGET_SECONDS) -> Score:
    """Measure in another process what notices that the guard is missing."""
    runs = 0
    for by, argument in (("simulation", "--one"), ("test", "--test")):
        if by == "simulation" and not budget_seconds:
            continue
        command = [sys.executable, "-m", "tests.simulation.mutations", argument, guard.name]
        command += ["--budget", str(budget_seconds)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == -signal.SIGPROF:
            seconds = TEST_SECONDS if by == "test" else RUN_SECONDS
            return Score(guard.name, by, seconds, 0, "it does not end")
        found = _result_in(done.stdout)
        if found is None:
            raise RuntimeError(f"{guard.name}: {done.stderr[-2000:]}")
        if found["what"]:
            return Score(guard.name, by, found["seconds"], found["runs"], found["what"])
        runs += found["runs"]
    return Score(guard.name, "", budget_seconds, runs, "")


def _simulate(guard: Guard, budget_seconds: float) -> tuple[int, str]:
    """Return the number of runs, and what noticed the removal; "" for nothing."""
    sys.meta_path.insert(0, _Finder(guard))
    from tests.simulation import night, traces  # imports the product, without the guard

    logging.getLogger().addHandler(logging.NullHandler())
    variants = sorted(night.VARIANTS, key=lambda name: name != guard.variant)
    ends = time.process_time() + budget_seconds
    runs = 0
    for turn in itertools.count():
        for variant in variants:
            for seed in range(turn * RUNS_IN_TURN, (turn + 1) * RUNS_IN_TURN):
                runs += 1
                signal.setitimer(signal.ITIMER_PROF, RUN_SECONDS)  # its signal ends the process
                result = traces.explore(seed, STEPS, drawn=night.VARIANTS[variant])
                if isinstance(result, traces.Failure):
                    return runs, str(result.violation)
                if time.process_time() > ends:
                    return runs, ""
    raise AssertionError("counting ends never")


def _test(guard: Guard, began: float) -> None:
    """Print what noticed the removal: "" if the guard's test passes."""
    sys.meta_path.insert(0, _Finder(guard))
    import pytest

    class Finished:
        """Prints when the tests have ended: for threads that a failed test leaves, another plug-in ends the process then."""

        def pytest_sessionfinish(self, exitstatus: int) -> None:
            self.what = f"{guard.test} fails" if exitstatus == pytest.ExitCode.TESTS_FAILED else ""

        def pytest_unconfigure(self) -> None:
            _print_result(0, self.what, began)

    signal.setitimer(signal.ITIMER_PROF, TEST_SECONDS)
    pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", guard.test], plugins=[Finished()])


def _print_result(runs: int, what: str, began: float) -> None:
    print()
    print(json.dumps({"runs": runs, "what": what[:160], "seconds": time.process_time() - began}), flush=True)


def _result_in(printed: str) -> dict[str, Any] | None:
    """Return the last result in what a process has printed; None if it ended without one."""
    lines = [line for line in printed.splitlines() if line.startswith('{"runs": ')]
    return json.loads(lines[-1]) if lines else None


def table(scores: Sequence[Score]) -> str:
    """Return the score in Markdown."""
    noticed = [score for score in scores if score.by]
    simulated = [score for score in scores if score.by == "simulation"]
    lines = [
        f"{len(noticed)} of {len(scores)} removals were noticed, {len(simulated)} of them by the simulation.",
        "",
        "| guard | noticed by | seconds | runs |",
        "| --- | --- | --- | --- |",
    ]
    tests = {guard.name: guard.test for guard in GUARDS}
    for score in sorted(scores, key=lambda score: (score.by != "", score.by, score.guard)):
        by = {"": "**nothing**", "test": f"`{tests[score.guard]}`"}.get(score.by, "simulation")
        lines.append(f"| {score.guard} | {by} | {score.seconds:.1f} | {score.runs or ''} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations", description=__doc__)
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_SECONDS,
        help="processor seconds of simulation for a guard; 0: its test alone",
    )
    parser.add_argument("--share", default="1/1", help="part of the guards: 2/8 is the second of eight")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("run/mutations.md"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--test", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    by_name = {guard.name: guard for guard in GUARDS}
    began = time.process_time()
    if chosen.one:
        _print_result(*_simulate(by_name[chosen.one], chosen.budget), began)
        return 0
    if chosen.test:
        _test(by_name[chosen.test], began)
        return 0
    part, parts = map(int, chosen.share.split("/"))
    scores: list[Score] = []
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(table(scores))
    with ThreadPoolExecutor(chosen.workers) as pool:
        for score in pool.map(lambda guard: measure(guard, chosen.budget), GUARDS[part - 1 :: parts]):
            scores.append(score)
            print(f"{score.by or 'NOTHING':10} {score.seconds:6.1f} s {score.guard}: {score.what}", flush=True)
            chosen.out.write_text(table(scores))  # a run that is stopped keeps what it measured
    print(table(scores).splitlines()[0], f"The table is {chosen.out}.")
    return 0 if all(score.by for score in scores) else 1


if __name__ == "__main__":
    sys.exit(main())
