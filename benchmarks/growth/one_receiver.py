"""What one receiver takes in with more partitions, more topics and larger records, and what more receivers take in.

Real Kafka, default settings, records not compressed, WAL and local copies on disk, the driver's journal and HTTP in this process.
Time, processor time and peak memory are those of the receivers, from the claim of all partitions to the last accepted record;
broker, driver and receivers share two cores.

- ``growth-partitions``: 1,000,000 records of 200 bytes in 1 to 1,000 partitions.
- ``growth-topics``: the same in 100 partitions of 1 to 100 topics.
- ``growth-records``: records of 20 bytes to 1 MB; 200 MB, or 1,000,000 records if that is less.
- ``growth-receivers``: 2,000,000 records of 200 bytes in 8 partitions, by 1 to 8 receivers, which the broker lets into the group
  together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.growth.intake import Intake, Load, take_in
from benchmarks.measured import Measured, Threshold, figure, ratio, shown
from benchmarks.setup import RECORD_BYTES, Setup
from benchmarks.sheets import Lines, Sheet, line, spread
from forebay.kafka.embedded.broker import KafkaBroker

RECORDS = 1_000_000
PARTITIONS = (1, 10, 100, 1_000)
TOPICS = (1, 10, 100)
RECORD_SIZES = (20, 200, 2_000, 20_000, 200_000, 1_000_000)
SIZE_BYTES = 200_000_000
RECEIVERS = (1, 2, 4, 8)
RECEIVERS_RECORDS = 2_000_000
#: more runs take longer than four minutes, because each run waits for the group
RECEIVERS_RUNS_MAX = 2
#: how long the broker waits for the next receiver before it divides the partitions
_JOIN_SECONDS = 4


def partitions(setup: Setup) -> Iterator[Measured]:
    records = setup.records(RECORDS)
    loads = {number: Load((setup.topic(records, partitions=number),), number, records) for number in PARTITIONS}
    runs = _alternating(setup, loads)
    _keep(setup, "growth-partitions", "Partitions in one receiver", "partitions", loads, runs)
    yield _against_first("growth-partitions", "records/s, 1,000 partitions / 1", loads, runs, 0.5)
    yield _memory("growth-partitions", "memory, 1,000 partitions / 1", runs, 2.0)


def topics(setup: Setup) -> Iterator[Measured]:
    records = setup.records(RECORDS)
    loads = {}
    for number in TOPICS:
        each = 100 // number
        names = tuple(setup.topic(max(each, records // number), partitions=each) for _ in range(number))
        loads[number] = Load(names, each, max(each, records // number) // each * each * number)
    runs = _alternating(setup, loads)
    _keep(setup, "growth-topics", "Topics in one receiver, 100 partitions in all", "topics", loads, runs)
    yield _against_first("growth-topics", "records/s, 100 topics / 1", loads, runs, 0.7)


def record_sizes(setup: Setup) -> Iterator[Measured]:
    loads, sizes = {}, {}
    for size in RECORD_SIZES:
        records = max(8, int(min(RECORDS, SIZE_BYTES // size) * setup.scale) // 4 * 4)
        loads[size] = Load((setup.topic(records, size),), 4, records)
        sizes[size] = size
    runs = _alternating(setup, loads)
    _keep(setup, "growth-records", "Size of records", "bytes of a record", loads, runs, sizes)
    yield figure("growth-records", "peak memory, 1 MB", [run.peak_mb for run in runs[RECORD_SIZES[-1]]], "MB")


def receivers(setup: Setup) -> Iterator[Measured]:
    records = setup.records(RECEIVERS_RECORDS)
    joined = {"group.initial.rebalance.delay.ms": str(_JOIN_SECONDS * 1000)}
    with setup.folder() as folder, KafkaBroker(folder / "kafka", heap_mib=768, properties=joined) as broker:
        own = Setup(folder / "own", min(setup.runs, RECEIVERS_RUNS_MAX), setup.scale, _broker=broker)
        topic = own.topic(records, partitions=8)
        loads = {number: Load((topic,), 8, records, number) for number in RECEIVERS}
        runs = _alternating(own, loads)
    _keep(setup, "growth-receivers", "Receivers on one host with two cores", "receivers", loads, runs)
    yield _against_first("growth-receivers", "records/s, 8 receivers / 1", loads, runs, 0.7)


def _alternating(setup: Setup, loads: dict[int, Load]) -> dict[int, list[Intake]]:
    """Return the runs by size, one of each size after the other in each round."""
    found: dict[int, list[Intake]] = {size: [] for size in loads}
    for _ in range(setup.runs):
        for size, load in loads.items():
            with setup.folder() as folder:
                found[size].append(take_in(folder, setup.broker.options, load))
    return found


def _rates(load: Load, runs: Sequence[Intake]) -> list[float]:
    return [load.records / run.seconds for run in runs]


def _micros(load: Load, runs: Sequence[Intake]) -> list[float]:
    return [run.cpu_seconds / load.records * 1e6 for run in runs]


def _keep(
    setup: Setup, name: str, title: str, x: str, loads: dict[int, Load], runs: dict[int, list[Intake]],
    sizes: dict[int, int] | None = None,
) -> None:  # fmt: skip
    """Keep the sheet. ``sizes``: of records, where they vary: then the plots are of bytes."""
    rows = []
    for size, load in loads.items():
        of_record = sizes[size] if sizes else RECORD_BYTES
        found = runs[size]
        rates, micros = _rates(load, found), _micros(load, found)
        rows.append((
            f"{size:,}", spread(rates), spread([rate * of_record / 1e6 for rate in rates]), spread(micros),
            spread([one / of_record * 1e3 for one in micros]), spread([run.peak_mb for run in found]),
            shown(median(run.blocks for run in found)),
        ))  # fmt: skip
    ticks = tuple((float(size), f"{size:,}") for size in loads) if len(loads) < 6 else ()
    if sizes:
        rate = Lines(
            x, "MB/s", (line("", ((s, [r * s / 1e6 for r in _rates(loads[s], runs[s])]) for s in loads)),), ticks
        )
        cpu = Lines(x, "CPU ms per MB", (line("", ((s, [u / s * 1e3 for u in _micros(loads[s], runs[s])]) for s in loads)),),
                    ticks, y_log=True)  # fmt: skip
    else:
        rate = Lines(x, "records/s", (line("", ((s, _rates(loads[s], runs[s])) for s in loads)),), ticks)
        cpu = Lines(x, "CPU µs per record", (line("", ((s, _micros(loads[s], runs[s])) for s in loads)),), ticks)
    memory = Lines(x, "peak memory, MB", (line("", ((s, [run.peak_mb for run in runs[s]]) for s in loads)),), ticks)
    head = (x, "records/s", "MB/s", "CPU µs per record", "CPU ms per MB", "peak memory, MB", "blocks")
    setup.keep(Sheet(name, title, head, tuple(rows), (rate, cpu, memory), runs=len(next(iter(runs.values())))))


def _against_first(
    name: str, what: str, loads: dict[int, Load], runs: dict[int, list[Intake]], least: float
) -> Measured:
    first, *_, last = loads
    pairs = list(zip(_rates(loads[last], runs[last]), _rates(loads[first], runs[first]), strict=True))
    return ratio(name, what, pairs, "records/s", Threshold(least, at_least=True))


def _memory(name: str, what: str, runs: dict[int, list[Intake]], most: float) -> Measured:
    first, *_, last = runs
    pairs = [(one.peak_mb, other.peak_mb) for one, other in zip(runs[last], runs[first], strict=True)]
    return ratio(name, what, pairs, "MB", Threshold(most, at_least=False))
