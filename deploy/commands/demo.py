"""``forebay demo``: real data through all services on this machine, two of them killed on the way, and the proof.

The flights that left New York in 2013 go into a topic; a job adds up their delays per carrier. While data flows, a
receiver and then the driver are killed with SIGKILL; the supervisor of ``forebay up`` brings them back.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from deploy.console.invocation import FINE, FOUND, Invocation, example, pass_invocation, shared_options
from deploy.examples.flights import jobs
from forebay.messages import StatusAnswer
from forebay.model.errors import ForebayError, UnreachableError
from forebay.process.signals import stop_signals
from forebay.process.tether import tethered
from forebay.settings.load import load
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    from rich.console import Group

    from recovery.audit import AuditReport

TOPIC = "flights"
PARTITIONS = 4
RECEIVERS = 2

#: share of all records taken in → the child that is then killed
KILLS = ((0.2, "receiver-1"), (0.5, "driver"))

#: records per second that are loaded, so that data still flows when the killed ones come back
LOAD_RATE = 10_000
#: how far the loader may be ahead of the group in a partition: the mock forgets after 5 MB
AHEAD_RECORDS = 15_000
LOOK_SECONDS = 0.5
LIMIT_SECONDS = 600.0

_CONFIGURATION = """\
# Written by `forebay demo`: all it runs, on this machine.
stream = "flights"

[kafka]
topics = ["{topic}"]
"bootstrap.servers" = "{broker}"
"session.timeout.ms" = 6000           # the group hands a killed receiver's partitions on after that
"heartbeat.interval.ms" = 1500

[wal]
url = "file://{folder}/wal"

[receiver]
count = {receivers}
host = "demo"

[driver]
url = "http://127.0.0.1:{driver_port}"
journal = "file://{folder}/journal"
batch_interval = "1s"
job = "jobs:process"

[agent]
url = "http://127.0.0.1:{agent_port}"
blocks = "{folder}/blocks"
host = "demo"

[spark]
"spark.master" = "local[2]"
"spark.sql.shuffle.partitions" = 2
"spark.ui.enabled" = false
"spark.ui.showConsoleProgress" = false
"spark.driver.memory" = "1g"
"""


class Carrier(msgspec.Struct, frozen=True):
    """``minutes``: the sum of the delays at arrival, negative where early."""

    carrier: str
    flights: int
    arrived: int
    minutes: float

    @property
    def mean_minutes(self) -> float:
        return self.minutes / self.arrived if self.arrived else 0.0


class Outcome(msgspec.Struct, frozen=True):
    """What the demo prints. ``differences``: sentences; none if all is right."""

    records: int
    seconds: float
    kills: tuple[str, ...]
    carriers: tuple[Carrier, ...]
    differences: tuple[str, ...]
    audit: Any


class _Flight(msgspec.Struct):
    """What the expected sums need of a record."""

    carrier: str
    arr_delay: float | None = None


@dataclass(slots=True)
class Expected:
    """The sums of the data set itself, taken while it is loaded: nothing of Forebay or Spark has a part in them."""

    sums: dict[str, tuple[int, int, float]] = field(default_factory=dict)

    def counting(
        self, records: Iterable[tuple[bytes | None, bytes | None]]
    ) -> Iterator[tuple[bytes | None, bytes | None]]:
        decoder = msgspec.json.Decoder(_Flight)
        for key, value in records:
            flight = decoder.decode(value or b"")
            flights, arrived, minutes = self.sums.get(flight.carrier, (0, 0, 0.0))
            delay = flight.arr_delay
            self.sums[flight.carrier] = (
                flights + 1,
                arrived + (delay is not None),
                minutes + (0.0 if delay is None else delay),
            )
            yield key, value


def differences(
    expected: Mapping[str, tuple[int, int, float]],
    found: Mapping[str, tuple[int, int, float]],
    report: AuditReport,
    loaded: Mapping[int, int],
) -> list[str]:
    """Everything that is not as it must be. ``loaded``: partition → offset after the last record loaded."""
    from deploy.commands.audit import sentence

    wrong = [sentence(finding) for finding in report.findings]
    for carrier in sorted({*expected, *found}):
        want, have = expected.get(carrier, (0, 0, 0.0)), found.get(carrier, (0, 0, 0.0))
        if want[:2] != have[:2] or abs(want[2] - have[2]) > 1e-6:
            wrong.append(f"carrier {carrier}: the data set says {want}, the job's results say {have}")
    for partition, end in sorted(loaded.items()):
        completed = {
            incarnation.completed_until
            for incarnation in report.incarnations
            if (incarnation.topic, incarnation.partition) == (TOPIC, partition)
        }
        if completed != {end}:
            wrong.append(f"{TOPIC}/{partition}: loaded up to {end}, completed up to {sorted(completed)}")
    wrong += [
        f"{one.topic}/{one.partition}: {len(one.gaps)} gaps, {one.waiting} records in no batch yet"
        for one in report.incarnations
        if one.gaps or one.waiting
    ]
    return wrong


def due_kills(taken_in: int, total: int, done: int) -> list[str]:
    """Which children are to be killed now, ``done`` of KILLS being done already."""
    return [name for share, name in KILLS[done:] if taken_in >= share * total]


# ---- the screen ------------------------------------------------------------------------------------------------------


class Screen:
    """Progress for a person: bars on a terminal, plain lines elsewhere. All on stderr."""

    def __init__(self, total: int, bars: bool) -> None:
        self._total = total
        self._bars = bars
        self._said: tuple[int, ...] = (0, 0, 0)  # fifths of the whole that the last line told
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Screen:
        if self._bars:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description:>10}"),
                BarColumn(40),
                MofNCompleteColumn(),
                TextColumn("{task.fields[more]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._tasks = {
                name: self._progress.add_task(name, total=self._total, more="")
                for name in ("loaded", "taken in", "completed")
            }
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, words: str) -> None:
        if self._progress is not None:
            self._progress.console.print(words, markup=False, highlight=False)
        else:
            click.echo(f"demo | {words}", err=True)

    def show(self, loaded: int, taken_in: int, completed: int, batches: int) -> None:
        if self._progress is not None:
            for name, count in (("loaded", loaded), ("taken in", taken_in), ("completed", completed)):
                self._progress.update(
                    self._tasks[name], completed=count, more=f"{batches} batches" if name == "completed" else ""
                )
            return
        fifths = tuple(5 * count // self._total for count in (loaded, taken_in, completed))
        if fifths != self._said:
            self._said = fifths
            self.say(f"{loaded} records loaded, {taken_in} taken in, {completed} completed in {batches} batches")


# ---- the parts -------------------------------------------------------------------------------------------------------


@contextmanager
def broker_process(kind: str, folder: Path) -> Iterator[str]:
    """A broker in a process of its own; yields its address."""
    command = [sys.executable, "-m", "forebay_start", "broker", "--kind", kind, "--topic", f"{TOPIC}:{PARTITIONS}"]
    command += ["--data", str(folder / "kafka")]
    with (folder / "logs" / "broker.log").open("ab") as log:
        process = subprocess.Popen(
            # it is told to end when we die, so that a Kafka that it runs is stopped too
            tethered(command, signal.SIGTERM),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        if not address:
            words = (folder / "logs" / "broker.log").read_text(errors="replace").strip().removeprefix("forebay: ")
            raise UnreachableError(f"the broker did not start: {words[-2000:]}")
        yield address
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Loader:
    """Loads the data set from a thread of its own, at LOAD_RATE and never too far ahead of the group."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = threading.Event()
        self._began = 0.0
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        self.expected = Expected()
        self.loaded = 0
        self.ends: dict[int, int] = {}
        self.done = False
        self.failure: Exception | None = None

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def start(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        from forebay.kafka.embedded.loader import Pace, flights, load

        try:
            done = load(
                self._settings.kafka.options,
                TOPIC,
                self.expected.counting(flights()),
                pace=Pace(self._settings.group, AHEAD_RECORDS),
                progress=self._progressed,
            )
        except Exception as error:  # raised again by the thread that watches
            self.failure = error
            return
        self.ends = dict(done.ends)
        self.done = True

    def _progressed(self, count: int) -> None:
        self.loaded = count
        ahead_seconds = self._began + count / LOAD_RATE - time.monotonic()
        if self._stopping.wait(max(0.0, ahead_seconds)):
            raise ForebayError("loading was stopped")


def write_project(folder: Path, broker: str) -> Path:
    """Writes the configuration and the job, as a person would, and returns the configuration's path."""
    driver_port, agent_port = free_ports(2)
    shutil.copy(jobs.__file__, folder / "jobs.py")
    path = folder / "forebay.toml"
    path.write_text(
        _CONFIGURATION.format(
            topic=TOPIC,
            broker=broker,
            folder=folder,
            receivers=RECEIVERS,
            driver_port=driver_port,
            agent_port=agent_port,
        )
    )
    return path


def free_ports(count: int) -> list[int]:
    """Free loopback ports below those of outgoing connections: no client can take one while its service restarts."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 1000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ForebayError("no free port on loopback")


# ---- the run ---------------------------------------------------------------------------------------------------------


def run(broker: str, folder: Path, screen: Callable[[int], Screen]) -> Outcome:
    """The whole demo in ``folder``, its logs in ``folder``/logs. Raises ForebayError if it does not come to its end."""
    from forebay.kafka.embedded.loader import FLIGHTS

    began = time.monotonic()
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        seen = stack.enter_context(screen(FLIGHTS))
        seen.say(f"starting a broker ({broker})")
        address = stack.enter_context(broker_process(broker, folder))
        path = write_project(folder, address)
        settings = load(path, {})
        seen.say(
            f"broker at {address}; starting driver (Spark), agent and {RECEIVERS} receivers; all files in {folder}"
        )
        loader = Loader(settings)
        stack.callback(loader.stop)
        kills = _run_services(settings, path, folder, loader, seen)
        seen.say("all services stopped in order; auditing the journal")
    from deploy.commands import audit

    report = audit.read(settings)
    found = jobs.totals(folder / "results")
    return Outcome(
        records=loader.loaded,
        seconds=time.monotonic() - began,
        kills=tuple(kills),
        carriers=tuple(sorted((Carrier(name, *sums) for name, sums in found.items()), key=lambda c: -c.mean_minutes)),
        differences=tuple(differences(loader.expected.sums, found, report, loader.ends)),
        audit=report,
    )


def _run_services(settings: Settings, path: Path, folder: Path, loader: Loader, seen: Screen) -> list[str]:
    """Runs the services under the supervisor until every record loaded is completed; returns who was killed."""
    from deploy.commands.services import children
    from deploy.supervision.supervisor import LogLines, Supervisor

    ended = threading.Event()
    supervisor = Supervisor(
        children(settings, path, range(1, RECEIVERS + 1)),
        environment={**os.environ, "FLIGHTS_RESULTS": str(folder / "results")},
        logs=LogLines(folder / "logs"),
        say=seen.say,
    )

    def supervise() -> None:
        try:
            supervisor.run()
        finally:
            ended.set()

    thread = threading.Thread(target=supervise, name="supervisor")
    with stop_signals(supervisor.stop, supervisor.stop):
        thread.start()
        try:
            return _watch(settings, supervisor.kill, ended, loader, seen, folder)
        finally:
            if not ended.is_set():
                supervisor.stop()
            thread.join()


def _watch(
    settings: Settings,
    kill: Callable[[str], bool],
    ended: threading.Event,
    loader: Loader,
    seen: Screen,
    folder: Path,
) -> list[str]:
    from forebay.http.driver_client import DriverClient
    from forebay.kafka.embedded.loader import FLIGHTS

    client = DriverClient.of(settings, 5.0)
    killed: list[str] = []
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        while not ended.wait(LOOK_SECONDS):
            if loader.failure is not None:
                raise loader.failure
            if time.monotonic() > deadline:
                raise ForebayError(
                    f"the demo did not end within {LIMIT_SECONDS:g} s; its logs are in {folder / 'logs'}"
                )
            try:
                answer = client.get("/v1/status", StatusAnswer)
            except UnreachableError:
                continue  # it is starting, or was just killed
            if answer.state == "running" and not loader.started:
                # only now, so that the crashes come while batches are made and not before the first one
                seen.say("the driver runs: loading")
                loader.start()
            taken_in = sum(partition.position for partition in answer.partitions)
            seen.show(loader.loaded, taken_in, answer.records_completed, answer.batches_completed)
            for name in due_kills(taken_in, FLIGHTS, len(killed)):
                flowing = "while data flows" if not loader.done else "after all data was loaded"
                seen.say(f"killing {name} with SIGKILL {flowing}, at {taken_in} records taken in")
                if not kill(name):
                    break  # it is just starting: the next look tries again
                killed.append(name)
            if loader.done and answer.records_completed >= loader.loaded and len(killed) == len(KILLS):
                return killed
    finally:
        client.close()
    raise ForebayError(f"the services ended before all records were completed; their logs are in {folder / 'logs'}")


# ---- the command -----------------------------------------------------------------------------------------------------


def tables(outcome: Outcome) -> list[Group]:
    from deploy.commands import audit
    from deploy.console.table import table

    return [
        table(
            "Delays at arrival, flights from New York in 2013",
            ("carrier", "flights", "arrived", "mean minutes"),
            [(c.carrier, c.flights, c.arrived, f"{c.mean_minutes:7.2f}") for c in outcome.carriers],
        ),
        *audit.tables(outcome.audit),
    ]


@click.command(
    short_help="Show it all on this machine, with real data and two crashes.",
    epilog=example("forebay demo", "forebay demo --broker kafka --keep /tmp/forebay-demo"),
)
@click.option(
    "--broker",
    type=click.Choice(["mock", "kafka"]),
    default="mock",
    show_default=True,
    help="mock: librdkafka's own; kafka: a real Apache Kafka (its jars are fetched at first use; needs Java).",
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Leave configuration, job, logs, WAL and journal in DIR, which must be empty or new.",
)
@shared_options
@pass_invocation
def demo(invocation: Invocation, broker: str, keep: Path | None) -> int:
    """Load 336,776 real flights into a broker, add up their delays in Spark, kill a receiver and the driver meanwhile.

    Ends with the table of delays per carrier, compared with the data set, and with the audit: exits with 0 only if each
    record lies in exactly one batch and the table is right.
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"--keep {keep}: the folder is not empty")
    folder = Path(tempfile.mkdtemp(prefix="forebay-demo-")) if keep is None else keep.resolve()
    outcome = run(broker, folder, lambda total: Screen(total, sys.stderr.isatty()))
    invocation.write(outcome, lambda: tables(outcome))
    for words in outcome.differences:
        invocation.say(f"forebay: {words}")
    duplicates = sum(incarnation.duplicates for incarnation in outcome.audit.incarnations)
    missing = sum(incarnation.missing for incarnation in outcome.audit.incarnations)
    verdict = "all is right" if not outcome.differences else f"{len(outcome.differences)} things are wrong"
    invocation.say(
        f"{outcome.records} records in {outcome.seconds:.0f} s, {' and '.join(outcome.kills)} killed on the way: "
        f"duplicates {duplicates}, missing {missing}, {verdict}"
    )
    if outcome.differences:
        invocation.say(f"everything that it wrote is left in {folder}")
        return FOUND
    if keep is None:
        shutil.rmtree(folder)
    return FINE
