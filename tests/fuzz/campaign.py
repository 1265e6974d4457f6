"""``python -m tests.fuzz.campaign --minutes M``: every reader over new mutated bytes, on all cores, until the time is over.

Each round draws a seed and gives it to one process for each reader, so that a crash of one reader ends no other. Also the native
gathering of records runs, on made-up messages under a compiler's sanitizers. The campaign appends one line of JSON to
``.cache/fuzz/runs.jsonl``: when it ran, on which commit, attempts by reader, and each failure with the command that repeats it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import click

from forebay.kafka.embedded.jars import cache_directory
from forebay.process.tether import tethered
from tests.fuzz.readers import readers

_ROOT = Path(__file__).parents[2]
#: of a reader of cost 1 in a round; a round of one reader takes a few seconds
_ATTEMPTS = 3_000
_NATIVE_ROUNDS = 20_000
#: a round that takes longer hangs
_ROUND_SECONDS = 900
_NATIVE = "native gathering of records"
_OUTPUT_CHARACTERS_MAX = 3_000


@dataclass
class Campaign:
    """What has run. ``attempts``: by reader. ``failures``: the command that repeats each, with the end of its output."""

    deadline: float
    attempts: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)

    def run(self, name: str, command: list[str], attempts: int) -> None:
        """Run one reader for one round, unless the time is over."""
        if time.monotonic() > self.deadline:
            return
        try:
            done = subprocess.run(
                tethered(command), cwd=_ROOT, capture_output=True, text=True, timeout=_ROUND_SECONDS, check=False
            )
            failed, output = done.returncode != 0, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            failed, output = True, f"it ran longer than {_ROUND_SECONDS} s"
        if failed:
            self.failures.append({"command": " ".join(command[1:]), "output": output[-_OUTPUT_CHARACTERS_MAX:]})
            print(f"FAILED {name}: {' '.join(command[1:])}\n{output[-_OUTPUT_CHARACTERS_MAX:]}", file=sys.stderr)
        else:
            self.attempts[name] += attempts


def _harness(folder: Path) -> Path | None:
    """Return the program that gathers made-up messages under sanitizers; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print(f"NOT RUN: {_NATIVE}: no compiler with sanitizers: install gcc or clang", file=sys.stderr)
        return None
    program = folder / "harness"
    sources = [
        f"-I{_ROOT}/forebay/kafka/native",
        "-o",
        str(program),
        f"{_ROOT}/tests/forebay/kafka/native/native_harness.c",
    ]
    flags = ["-std=gnu11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([compiler, *flags, *sources], check=True)
    return program


@click.command()
@click.option("--minutes", type=float, default=10.0, show_default=True)
@click.option("--workers", type=int, default=os.cpu_count() or 1, show_default=True)
@click.argument("names", nargs=-1)
def main(minutes: float, workers: int, names: tuple[str, ...]) -> None:
    """Run the readers NAMES, or all."""
    known = {name: -(-_ATTEMPTS // reader.cost) for name, reader in readers().items() if not names or name in names}
    campaign = Campaign(time.monotonic() + minutes * 60)
    draw = random.SystemRandom()
    began = datetime.now(timezone.utc)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        harness = None if names else _harness(Path(folder))
        while time.monotonic() < campaign.deadline:
            seed = str(draw.randrange(10**9))
            jobs = [
                pool.submit(
                    campaign.run, name, [sys.executable, "-m", "tests.fuzz", seed, str(_ATTEMPTS), name], attempts
                )
                for name, attempts in draw.sample(list(known.items()), len(known))  # a short campaign ends in a round
            ]
            if harness is not None:
                jobs.append(
                    pool.submit(campaign.run, _NATIVE, [str(harness), str(_NATIVE_ROUNDS), seed], _NATIVE_ROUNDS)
                )
            for job in jobs:
                job.result()
    record = {
        "began": began.isoformat(timespec="seconds"), "minutes": minutes, "workers": workers, "commit": _commit(),
        "attempts": dict(campaign.attempts), "failures": campaign.failures,
    }  # fmt: skip
    target = cache_directory() / "fuzz" / "runs.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(
        f"{sum(campaign.attempts.values())} attempts of {len(campaign.attempts)} readers, {len(campaign.failures)} failures"
    )
    print(f"appended to {target}")
    sys.exit(1 if campaign.failures else 0)


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
