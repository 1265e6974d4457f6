"""The race of programs that land Kafka on disk: 2,000,000 records of 200 bytes, 4 partitions, one real Kafka.

The contenders take turns, each once in a round, after one round that is not counted: it warms the page cache and the JVMs, which
stay open. Forebay's receiver is a new process in each run. Each figure is Forebay's against one peer, in the same round. Broker
and contender share two cores. The module of each contender says what it writes and between which moments its time counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.measured import Measured, Threshold, ratio
from benchmarks.peers.connect import Connect
from benchmarks.peers.contender import Contender, Run
from benchmarks.peers.flink import Flink
from benchmarks.peers.receiving_peers import BareLoop, ForebayReceiver
from benchmarks.peers.spark_receiver import SparkReceiver
from benchmarks.setup import Setup
from benchmarks.sheets import Bars, Sheet, spread

RECORDS = 2_000_000
#: Forebay's rate against each peer's
LEAST = {BareLoop: 1.0, SparkReceiver: 1.5, Flink: 1.0, Connect: 1.0}


def measure(setup: Setup) -> Iterator[Measured]:
    records = setup.records(RECORDS)
    topic = setup.topic(records)
    servers = setup.broker.address
    with setup.folder() as folder, ExitStack() as open_:
        ours = ForebayReceiver(setup)
        peers: list[Contender] = [
            BareLoop(servers),
            SparkReceiver(folder / "spark"),
            Flink(folder / "flink", servers),
            Connect(folder / "connect", servers),
        ]
        contenders = [open_.enter_context(contender) for contender in (ours, *peers)]
        rounds = [[contender.run(topic, records) for contender in contenders] for _ in range(setup.runs + 1)][1:]
    setup.keep(_sheet(contenders, rounds, records))
    for place, peer in enumerate(peers, 1):
        pairs = [(runs[0], runs[place]) for runs in rounds]
        rates = [(records / one.seconds, records / other.seconds) for one, other in pairs]
        least = Threshold(LEAST[type(peer)], at_least=True)
        yield ratio("peers-landing", f"rate against {peer.name}", rates, "records/s", least)
        cpu = [(one.cpu_seconds / records * 1e6, other.cpu_seconds / records * 1e6) for one, other in pairs]
        most = Threshold(1.0, at_least=False)
        yield ratio("peers-landing", f"CPU per record against {peer.name}", cpu, "µs", most)
        memory = [(one.peak_mb, other.peak_mb) for one, other in pairs]
        yield ratio("peers-landing", f"memory against {peer.name}", memory, "MB")


def _sheet(contenders: list[Contender], rounds: list[list[Run]], records: int) -> Sheet:
    rows: list[tuple[str, ...]] = []
    rated: list[tuple[str, tuple[float, ...]]] = []
    spent: list[tuple[str, tuple[float, ...]]] = []
    for place, contender in enumerate(contenders):
        runs = [row[place] for row in rounds]
        against = [row[0].seconds for row in rounds]
        rates = [records / run.seconds for run in runs]
        ratios = [ours / run.seconds for ours, run in zip(against, runs, strict=True)]
        micros = [run.cpu_seconds / records * 1e6 for run in runs]
        rows.append((
            contender.name, spread(ratios), spread(rates), spread(micros), spread([run.peak_mb for run in runs]),
            contender.durability,
        ))  # fmt: skip
        rated.append((contender.name, tuple(ratios)))
        spent.append((contender.name, tuple(micros)))
    return Sheet(
        "peers-landing", "Landing Kafka on disk",
        ("program", "rate, Forebay = 1", "records/s", "CPU per record, µs", "peak memory, MB", "durable at the end"),
        tuple(rows), (Bars("records per second, Forebay = 1", tuple(rated)), Bars("CPU per record, µs", tuple(spent))),
    )  # fmt: skip
