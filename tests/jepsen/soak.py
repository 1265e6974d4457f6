"""``python -m tests.jepsen.soak --hours 2``: half of the capacity, a fault each minute, and nothing may grow.

No fault kills or stops a process of Forebay, so that each runs long enough to show a leak. At the end the checker of
``tests.jepsen`` reads what came out. The run's folder has the samples, and plots in ``soak-*.svg``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from random import Random, SystemRandom

from benchmarks.recording import draw
from benchmarks.sheets import Line, Lines, Sheet
from tests.jepsen.faults import KINDS, Step, possible
from tests.jepsen.load import Load
from tests.jepsen.observer import Observer
from tests.jepsen.run import Run
from tests.jepsen.samples import FLOORS, Samples
from tests.jepsen.story import Story
from tests.jepsen.trend import is_too_short, medians, trend
from tests.jepsen.world import DRIVERS, Shape, World
from tests.support.processes.stopping import interrupt_on_signals

#: kinds that end processes of Forebay, or make Kafka lose records, are left out
_LEFT_OUT = ("kill", "stop", "rolling", "unclean")
_EVERY_SECONDS = 60.0
#: at most this many records per second are sent to measure the capacity
_PROBE_SETTLE_SECONDS, _PROBE_SECONDS, _PROBE_RATE = 15.0, 30.0, 60_000.0
#: of each worker host: half of the capacity, while the store is away for the longest time of a fault
_LOCAL_BYTES = 200_000_000
#: of a line in a picture
_POINTS_SHOWN = 60


def plan(seed: int, seconds: float, shape: Shape) -> list[Step]:
    """Return one fault for each minute."""
    draw_of = Random(seed)
    kinds = possible([name for name in KINDS if name not in _LEFT_OUT], shape)
    steps = []
    for minute in range(int(seconds // _EVERY_SECONDS)):
        name = draw_of.choice(kinds)
        at = minute * _EVERY_SECONDS + draw_of.uniform(5.0, 30.0)
        steps.append(Step(round(at, 1), name, KINDS[name].draw(draw_of, shape), round(draw_of.uniform(2.0, 15.0), 1)))
    return steps


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.jepsen.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, help="of the faults (default: drawn and printed)")
    parser.add_argument(
        "--rate-max",
        type=float,
        default=math.inf,
        help="records per second at most (default: no limit); the check of 200 million records takes ten minutes or more",
    )
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3)
    parser.add_argument("--out", type=Path, default=Path("run"), help="folder for the run's folder (default: run)")
    chosen = parser.parse_args(arguments)
    seed = chosen.seed if chosen.seed is not None else SystemRandom().getrandbits(32)
    folder = chosen.out.resolve() / f"soak-{seed}"
    if folder.exists():
        parser.error(f"{folder} exists: delete it, or choose another --out")
    return (
        0
        if play(folder, Shape(chosen.brokers, local_bytes=_LOCAL_BYTES), seed, chosen.hours * 3600, chosen.rate_max)
        else 1
    )


def play(folder: Path, shape: Shape, seed: int, seconds: float, rate_max: float) -> bool:
    """Make one run in ``folder``, and return whether the checker found nothing and nothing grew."""
    folder.mkdir(parents=True)
    story = Story(folder)
    story.write(f"seed {seed}, {seconds / 3600:g} hours, {shape}")
    with World(folder, shape, story) as world:
        places = [(topic, number) for topic, count in shape.topics.items() for number in range(count)]
        load = Load(world.brokers.servers, places, _PROBE_RATE, folder / "acked.tsv")
        urls = {name: world.driver_url(name) for name in DRIVERS}
        with Observer(urls, folder / "certificates", lambda: world.reader_token, folder / "seen.jsonl") as observer:
            samples = Samples(world, observer, seconds)
            run = Run(world, story, load, observer)
            try:
                run.begin()
                load.rate = min(capacity(run) / 2, rate_max)
                story.write(f"the load is {load.rate:.0f} records per second")
                run.wait(lambda: caught_up(observer), seconds=300.0)
                run.on_tick = samples.tick
                began = story.seconds
                made = run.faults([step.later(began) for step in plan(seed, seconds, shape)], began + seconds)
                story.write(f"{made} faults made in {(story.seconds - began) / 3600:.2f} hours")
                run.on_tick = lambda: None
                clean = run.finish()
            finally:
                load.end()
    flat = judge(samples.series, story)
    plots(samples.series, folder)
    (folder / "samples.json").write_text(json.dumps([[*key, points] for key, points in samples.series.items()]))
    return clean and flat


def capacity(run: Run) -> float:
    """Return how many records a second the cluster takes in and completes, while more are sent to it if the machine can.

    What waited before is completed meanwhile, too, so no more than what was acknowledged in this time counts.
    """
    run.wait(lambda: False, _PROBE_SETTLE_SECONDS)
    completed, acked, began = _completed(run), run.load.acked, run.story.seconds
    run.wait(lambda: False, _PROBE_SECONDS)
    seconds = run.story.seconds - began
    completed_rate, acked_rate = (_completed(run) - completed) / seconds, (run.load.acked - acked) / seconds
    run.story.write(f"{completed_rate:.0f} records per second were completed, {acked_rate:.0f} acknowledged")
    return min(completed_rate, acked_rate)


def _completed(run: Run) -> int:
    assert run.observer.latest is not None
    return int(run.observer.latest["records_completed"])


def caught_up(observer: Observer) -> bool:
    status = observer.latest
    return status is not None and all(p["lag"] is not None and p["lag"] < 2000 for p in status["partitions"])


def judge(
    series: dict[tuple[str, str], list[tuple[float, float]]], story: Story, floors: Mapping[str, float] = FLOORS
) -> bool:
    """Write the trend of each series, and return whether none grows and at least one of each unit was long enough."""
    growing, judged = [], Counter[str]()
    for (name, unit), points in sorted(series.items()):
        if is_too_short(points):
            story.write(f"{name}: too short to judge ({points[-1][0] - points[0][0]:.0f} s)")
            continue
        found = trend(points)
        judged[unit] += 1
        grows = found.grows(floors[unit])
        if grows:
            growing.append(name)
        story.write(
            f"{name}: median {found.middle:.1f} {unit}, {found.growth:+.1f} over the time, p {found.p:.3f}"
            + (" GROWS" if grows else "")
        )
    missing = {unit for _, unit in series} - judged.keys()
    if missing:
        story.write(f"NOT JUDGED: no series in {', '.join(sorted(missing))} is long enough; run for longer")
    story.write(f"GROWING: {', '.join(growing)}" if growing else f"flat: {judged.total()} series, none grows")
    return not growing and not missing


def plots(series: dict[tuple[str, str], list[tuple[float, float]]], folder: Path) -> None:
    """Draw one picture for each unit; the five longest series of a unit."""
    by_unit: dict[str, list[Line]] = defaultdict(list)
    for (name, unit), points in sorted(series.items(), key=lambda item: -len(item[1])):
        shown = medians(points, _POINTS_SHOWN)
        by_unit[unit].append(Line(name, tuple((at / 60, (value,)) for at, value in shown)))
    for unit, lines in by_unit.items():
        plot = Lines("minutes", unit, tuple(lines[:5]), x_log=False)
        draw(Sheet(f"soak-{unit}", f"Soak: {unit}", (), (), (plot,)), folder / f"soak-{unit}.svg")


if __name__ == "__main__":
    interrupt_on_signals()
    sys.exit(main())
