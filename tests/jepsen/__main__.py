"""``python -m tests.jepsen --minutes 2 --seed 7``: a cluster with faults drawn from a seed, and a checker (docs/RELIABILITY.md).

It writes its folder, with the story, all logs and the checker's evidence, below ``run/``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import SystemRandom

from tests.jepsen.faults import KINDS, plan, upgrading
from tests.jepsen.load import Load
from tests.jepsen.observer import Observer
from tests.jepsen.run import Run
from tests.jepsen.story import Story
from tests.jepsen.world import DRIVERS, Shape, World
from tests.support.processes.stopping import interrupt_on_signals
from tests.support.run.releases import RELEASES, Release

#: earlier releases that accept the settings of a run; the oldest one does not know all roles of tokens
_FITTING = RELEASES[1:]
#: those that have a warm standby
_FITTING_SPARK = RELEASES[4:]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.jepsen", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the time with faults (default: 10)")
    parser.add_argument("--seed", type=int, help="of the faults (default: drawn and printed)")
    parser.add_argument("--rate", type=float, default=300.0, help="records per second (default: 300)")
    parser.add_argument("--faults", default=",".join(KINDS), help=f"kinds of faults (default: all: {', '.join(KINDS)})")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3)
    parser.add_argument("--workers", type=int, default=2, help="hosts with an agent and a receiver (default: 2)")
    parser.add_argument("--store", choices=("s3", "hdfs"), default="s3", help="of WAL and journal (default: s3)")
    parser.add_argument(
        "--engine",
        choices=("local", "spark"),
        default="local",
        help="of the batches: in the driver, or a Spark cluster with a worker on each worker host (default: local)",
    )
    parser.add_argument(
        "--from-release",
        choices=[release.name for release in _FITTING],
        help="the services begin with this earlier release, and are upgraded between the faults (default: this code)",
    )
    parser.add_argument("--out", type=Path, default=Path("run"), help="folder for the run's folder (default: run)")
    chosen = parser.parse_args(arguments)
    kinds = chosen.faults.split(",")
    if unknown := set(kinds) - KINDS.keys():
        parser.error(f"no such faults: {', '.join(sorted(unknown))}")
    seed = chosen.seed if chosen.seed is not None else SystemRandom().getrandbits(32)
    shape = Shape(chosen.brokers, chosen.workers, store=chosen.store, engine=chosen.engine)
    folder = chosen.out.resolve() / f"jepsen-{seed}"
    if folder.exists():
        parser.error(f"{folder} exists: delete it, or choose another --out")
    release = next((release for release in _FITTING if release.name == chosen.from_release), None)
    if release is not None and chosen.engine == "spark" and release not in _FITTING_SPARK:
        parser.error(f"with --engine spark, --from-release is one of {', '.join(one.name for one in _FITTING_SPARK)}")
    return 0 if play(folder, shape, seed, chosen.minutes, chosen.rate, kinds, release) else 1


def play(
    folder: Path, shape: Shape, seed: int, minutes: float, rate: float, kinds: list[str], release: Release | None = None
) -> bool:
    """Make one run in ``folder``, and return whether the checker found nothing and no service still runs ``release``, the earlier
    release that all of them began with."""
    folder.mkdir(parents=True)
    story = Story(folder)
    story.write(f"seed {seed}, {minutes:g} minutes, {shape}{f', from release {release.name}' if release else ''}")
    with World(folder, shape, story, release) as world:
        places = [(topic, number) for topic, count in shape.topics.items() for number in range(count)]
        load = Load(world.brokers.servers, places, rate, folder / "acked.tsv")
        urls = {name: world.driver_url(name) for name in DRIVERS}
        with Observer(urls, folder / "certificates", lambda: world.reader_token, folder / "seen.jsonl") as observer:
            run = Run(world, story, load, observer)
            try:
                run.begin()
                began = story.seconds
                steps = plan(seed, minutes * 60, shape, kinds)
                steps = upgrading(steps, minutes * 60) if release else steps
                made = run.faults([step.later(began) for step in steps], began + minutes * 60)
                story.write(f"{made} faults made")
                if outdated := world.outdated:
                    story.write(f"NOT UPGRADED: {', '.join(outdated)}; run for longer")
                return run.finish() and not outdated
            finally:
                load.end()


if __name__ == "__main__":
    interrupt_on_signals()
    sys.exit(main())
