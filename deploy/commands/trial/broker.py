"""``forebay broker``: an embedded Kafka broker for trials."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from deploy.console.invocation import FINDINGS, FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.progress import progress_bar, spinner
from deploy.supervision.detached import Announcer, start_detached
from deploy.supervision.run_lock import broker_lock_path, holder, only_broker
from forebay.model.bounds import INT32_MAX
from forebay.model.errors import UsageError
from forebay.model.numbers import whole_number
from forebay.process.signals import stop_signals

#: Kafka's usual port
PORT = 9092
#: maximum time for a broker to stop
_STOP_SECONDS = 60.0


class NewTopicType(click.ParamType[tuple[str, int]]):
    """``NAME:PARTITIONS``, a topic with its number of partitions."""

    name = "name:partitions"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        topic, _, number = str(value).rpartition(":")
        count = whole_number(number, INT32_MAX)
        if not topic or not count:
            self.fail(f"{value!r}: write NAME:PARTITIONS, as in flights:4", parameter, context)
        return topic, count


@contextmanager
def opened(kind: str, folder: Path, port: int) -> Iterator[Any]:
    """Run a broker of ``kind`` while open. Yields the broker, with ``address`` and ``create_topic``.

    ``folder``: place of the data of a Kafka broker; the mock keeps its data in memory. ``port``: of a Kafka broker; 0: any.
    """
    from forebay.kafka.embedded.broker import KafkaBroker, MockBroker

    if kind == "kafka":
        fetch_kafka()
    with ExitStack() as stack:
        with spinner("starting the broker"):
            broker = stack.enter_context(MockBroker() if kind == "mock" else KafkaBroker(folder, port=port))
        yield broker


def fetch_kafka() -> None:
    """Fetch Kafka's jars on first use, with a progress bar. Raises UsageError."""
    from forebay.kafka.embedded.jars import KAFKA, find_java

    find_java()  # before the download: without it, the jars have no use
    if KAFKA.present():
        return
    click.echo(f"fetching {KAFKA.title}, once, into {KAFKA.folder()}", err=True)
    with progress_bar("fetching", KAFKA.count, unit_bytes=False) as progress:
        KAFKA.fetch(progress=progress)


def make_topic(running: Any, topic: str, partitions: int) -> None:
    """Create a topic, unless an earlier run did. Raises UsageError if it exists with another number of partitions."""
    from forebay.kafka.client.admin import KafkaAdmin

    try:
        running.create_topic(topic, partitions)
    except UsageError:
        with KafkaAdmin(running.options) as admin:
            there = admin.topics().get(topic)
        if there is None:
            raise
        if there != partitions:
            raise UsageError(
                f"--topic {topic}:{partitions}: the topic already has {there} partitions; write {topic}:{there}, or name "
                "another folder with --data"
            ) from None


@click.command(
    epilog=example(
        "forebay broker --topic flights:4 --data kafka --detach",
        "forebay broker --stop --data kafka",
        "forebay broker --kind mock --topic flights:4",
    ),
)
@click.option(
    "--kind",
    type=click.Choice(["mock", "kafka"]),
    default="kafka",
    show_default=True,
    help="Kind of broker. kafka: Apache Kafka, fetched at first use, needs Java; mock: in this process, at any free port, keeps "
    "about 5 MB per partition in memory.",
)
@click.option(
    "--topic",
    "topics",
    metavar="NAME:PARTITIONS",
    type=NewTopicType(),
    multiple=True,
    help="Topic to create; repeatable.",
)
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the data of --kind kafka; data of an earlier run is used again [default: a temporary folder].",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help=f"Port on loopback of --kind kafka; 0: any free one [default: {PORT}].",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Run it in the background, and return when it answers; its log is broker.log in --data.",
)
@click.option("--stop", is_flag=True, help="Stop the broker that runs with the data in --data.")
@shared_options
@pass_invocation
def broker(
    invocation: Invocation,
    kind: str,
    topics: tuple[tuple[str, int], ...],
    data: Path | None,
    port: int | None,
    detach: bool,
    stop: bool,
) -> int:
    """Run a Kafka broker on loopback until SIGTERM or Ctrl-C. Its address (host:port) is printed on stdout.

    Use it to try Forebay out without a Kafka cluster.
    """
    if kind == "mock" and port:
        raise click.UsageError("--kind mock chooses its port itself: leave out --port")
    if (detach or stop) and data is None:
        raise click.UsageError(f"{'--detach' if detach else '--stop'}: name the broker's folder with --data DIR")
    if stop and (detach or topics or port is not None):
        raise click.UsageError("--stop excludes --detach, --topic and --port")
    port = PORT if port is None else port
    if data is not None and stop:
        return _stopped(invocation, data.resolve())
    if data is not None and detach:
        return _detached(invocation, kind, topics, data.resolve(), port)
    announcer = Announcer(os.environ)
    ended = threading.Event()
    with (
        stop_signals(ended.set, ended.set),
        tempfile.TemporaryDirectory(prefix="forebay-broker-") as scratch,
        only_broker(data.resolve() if data is not None else Path(scratch), invocation.say),
        opened(kind, data or Path(scratch), port) as running,
    ):
        for topic, partitions in topics:
            make_topic(running, topic, partitions)
        if invocation.json:
            invocation.write({"address": running.address})
        else:
            click.echo(running.address)
        invocation.say(f"broker ({kind}) is running at {running.address}; stop it with Ctrl-C")
        announcer.ready()
        ended.wait()
    return FINE


def _detached(invocation: Invocation, kind: str, topics: tuple[tuple[str, int], ...], data: Path, port: int) -> int:
    """Run the broker in the background. Return 0 when it answers and has the topics, or its exit code if it ended before."""
    if kind == "kafka":
        fetch_kafka()  # here, with the progress on the terminal
    command = [sys.executable, "-m", "forebay_start", "broker", "--kind", kind, "--data", str(data)]
    command += ["--port", str(port)] if kind == "kafka" else []
    command += [part for topic, partitions in topics for part in ("--topic", f"{topic}:{partitions}")]
    with spinner("starting the broker"):
        started = start_detached(command, data / "broker.log", invocation.say)
    if started.exit_code is not None:
        invocation.say(started.printed.rstrip("\n"))
        return started.exit_code or FINDINGS
    address = started.printed.partition("\n")[0]
    if invocation.json:
        invocation.write({"address": address, "process": started.pid})
    else:
        click.echo(address)
    invocation.say(f"broker ({kind}) runs as process {started.pid}; `forebay broker --stop --data {data}` stops it")
    return FINE


def _stopped(invocation: Invocation, data: Path) -> int:
    with holder(broker_lock_path(data)) as running:
        if running is None:
            message, code = f"no broker runs with the data in {data}", FINE
        else:
            running.terminate()
            with spinner(f"stopping process {running.pid}"):
                ended = running.wait(_STOP_SECONDS)
            message = f"process {running.pid} has stopped" if ended else f"process {running.pid} is still running"
            code = FINE if ended else FINDINGS
    if invocation.json:
        invocation.write({"message": message})
    invocation.say(message)
    return code
