"""``forebay broker``: an embedded Kafka broker for trials."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.progress import progress_bar, spinner
from forebay.model.errors import UsageError
from forebay.process.signals import stop_signals

#: Kafka's usual port
PORT = 9092


class TopicType(click.ParamType[tuple[str, int]]):
    """``NAME:PARTITIONS``, a topic with its number of partitions."""

    name = "name:partitions"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        topic, colon, count = str(value).rpartition(":")
        if not colon or not topic or not (count.isascii() and count.isdigit()) or int(count) < 1:
            self.fail(f"{value!r}: write NAME:PARTITIONS, as in flights:4", parameter, context)
        return topic, int(count)


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
        "forebay broker --topic flights:4 --data kafka-data", "forebay broker --kind mock --topic flights:4"
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
    "--topic", "topics", metavar="NAME:PARTITIONS", type=TopicType(), multiple=True, help="Topic to create; repeatable."
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
@shared_options
@pass_invocation
def broker(
    invocation: Invocation, kind: str, topics: tuple[tuple[str, int], ...], data: Path | None, port: int | None
) -> int:
    """Run a Kafka broker on loopback until SIGTERM or Ctrl-C. Its address (host:port) is printed on stdout.

    Use it to try Forebay out without a Kafka cluster.
    """
    if kind == "mock" and port:
        raise click.UsageError("--kind mock chooses its port itself: leave out --port")
    stopped = threading.Event()
    with (
        stop_signals(stopped.set, stopped.set),
        tempfile.TemporaryDirectory(prefix="forebay-broker-") as scratch,
        opened(kind, data or Path(scratch), PORT if port is None else port) as running,
    ):
        for topic, partitions in topics:
            make_topic(running, topic, partitions)
        if invocation.json:
            invocation.write({"address": running.address})
        else:
            click.echo(running.address)
        invocation.say(f"broker ({kind}) is running at {running.address}; stop it with Ctrl-C")
        stopped.wait()
    return FINE
