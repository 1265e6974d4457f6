"""``python -m benchmarks``: run the benchmarks, and print one line for each figure and a table at the end.

Exit code 1 if a threshold is missed.
"""

from __future__ import annotations

import importlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.measured import Measured, shown
from benchmarks.recording import record
from benchmarks.setup import Setup

#: name → the module that measures it, by its function ``measure`` or the one after the colon; in the order in which they run
BENCHMARKS = {
    "machine": "benchmarks.bandwidth",
    "receiver": "benchmarks.receiver_rate",
    "object-wal": "benchmarks.object_wal",
    "memory": "benchmarks.receiver_memory",
    "arrow": "benchmarks.batch_arrow",
    "dataframe": "benchmarks.batch_dataframe",
    "reports": "benchmarks.block_reports",
    "journal": "benchmarks.journal_opening",
    "opening": "benchmarks.journal_requests",
    "cleanup": "benchmarks.cleanup_round",
    "scale": "benchmarks.many_blocks",
    "day": "benchmarks.long_run",
    "verify": "benchmarks.wal_verification",
    "digests": "benchmarks.digests",
    "latency": "benchmarks.batch_latency",
    "latency-spark": "benchmarks.batch_latency_spark",
    "blocks": "benchmarks.block_serving",
    "levels": "benchmarks.storage_levels",
    "locality": "benchmarks.locality",
    "source": "benchmarks.kafka_source",
    "decoding": "benchmarks.decoding",
    "state": "benchmarks.keyed_state",
    "flood": "benchmarks.flood",
    "small-blocks": "benchmarks.small_blocks",
    "start": "benchmarks.start",
    "take-over": "benchmarks.take_over",
    "peers-landing": "benchmarks.peers.race",
    "peers-queries": "benchmarks.peers.queries",
    "growth-partitions": "benchmarks.growth.one_receiver:partitions",
    "growth-topics": "benchmarks.growth.one_receiver:topics",
    "growth-records": "benchmarks.growth.one_receiver:record_sizes",
    "growth-receivers": "benchmarks.growth.one_receiver:receivers",
    "growth-blocks": "benchmarks.growth.small_blocks",
    "growth-age": "benchmarks.growth.age",
    "growth-s3": "benchmarks.growth.object_store",
    "growth-driver": "benchmarks.growth.driver",
    "growth-fleet": "benchmarks.growth.simulated_fleet",
}
#: names before a hyphen, which stand for all benchmarks that begin with them
GROUPS = {"growth", "peers"}
SMALL_SCALE = 0.05


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only", multiple=True, type=click.Choice([*BENCHMARKS, *sorted(GROUPS)]), help="Run these alone; may be repeated."
)
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1), help="Alternating runs of each.")
@click.option(
    "--scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.001, 100),
    help="Factor for the number of records. Thresholds are meant for 1.",
)
@click.option("--small", is_flag=True, help=f"The same as --scale {SMALL_SCALE}: shows that it works.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures there, as JSON."
)
@click.option("--record", "recorded", is_flag=True, help="Write the tables and plots of the run into docs/.")
@click.option(
    "--directory", type=click.Path(file_okay=False, path_type=Path), help="Keep files here; default: a temporary one."
)
def main(
    only: tuple[str, ...],
    runs: int,
    scale: float,
    small: bool,
    output: Path | None,
    recorded: bool,
    directory: Path | None,
) -> None:
    """Run Forebay's benchmarks. Exit code 1 if a threshold is missed."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that broker and receivers end as well
    root = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=directory))
    found: list[Measured] = []
    try:
        about = machine.facts(root)
        for name, fact in about.items():
            print(f"{name}: {fact}", flush=True)
        with Setup(root, runs, SMALL_SCALE if small else scale) as setup:
            for name in chosen(only):
                for measured in measures(name)(setup):
                    print(measured.line, flush=True)
                    found.append(measured)
    finally:
        shutil.rmtree(root)
    if output is not None:
        figures = [{**asdict(measured), "verdict": measured.verdict} for measured in found]
        output.write_text(json.dumps({"machine": about, "figures": figures}, indent=2, ensure_ascii=False) + "\n")
    if recorded:
        for path in record(setup.sheets, about, runs):
            print(f"wrote {path}")
    Console(width=None if sys.stdout.isatty() else 140).print(table(found))
    sys.exit(1 if any(measured.missed for measured in found) else 0)


def measures(name: str) -> Callable[[Setup], Iterator[Measured]]:
    """Return the function of a benchmark."""
    module, _, function = BENCHMARKS[name].partition(":")
    found: Callable[[Setup], Iterator[Measured]] = getattr(importlib.import_module(module), function or "measure")
    return found


def chosen(names: Sequence[str]) -> list[str]:
    """Return the benchmarks that ``names`` name, by themselves or as a group; all if there are no names."""
    return [one for one in BENCHMARKS if not names or one in names or one.partition("-")[0] in set(names) & GROUPS]


def table(found: list[Measured]) -> Table:
    made = Table(
        "benchmark", "what", "median", "spread", "wanted", "", "ours", "peer", "unit", title="Forebay's benchmarks"
    )
    for m in found:
        made.add_row(
            m.benchmark, m.what, shown(m.value), f"{shown(m.low)} to {shown(m.high)}", str(m.threshold or ""), m.verdict,
            "" if m.ours is None else shown(m.ours), "" if m.peer is None else shown(m.peer), m.unit,
        )  # fmt: skip
    return made


if __name__ == "__main__":
    main()
