"""``forebay broker``: an embedded Kafka broker for trying things out."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from forebay.model.errors import UsageError
from forebay.process.signals import stop_signals


class TopicType(click.ParamType[tuple[str, int]]):
    """``NAME:PARTITIONS``."""

    name = "name:partitions"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        topic, colon, count = str(value).rpartition(":")
        if not colon or not topic or not (count.isascii() and count.isdigit()) or int(count) < 1:
            self.fail(f"{value!r}: write NAME:PARTITIONS, as in flights:4", parameter, context)
        return topic, int(count)


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[Any]:
    """A running broker of ``kind``, its data (if it keeps any) in ``folder``: has ``address`` and ``create_topic``."""
    from forebay.kafka.embedded.broker import KafkaBroker, MockBroker

    with MockBroker() if kind == "mock" else KafkaBroker(folder) as broker:
        yield broker


def make_topic(running: Any, topic: str, partitions: int) -> None:
    """Creates it, or finds that an earlier run did. Raises UsageError if it has another number of partitions."""
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
                f"--topic {topic}:{partitions}: it has {there} partitions already; write {topic}:{there}, or another --data"
            ) from None


@click.command(
    short_help="Run an embedded broker until stopped.",
    epilog=example(
        "forebay broker --topic flights:4", "forebay broker --kind kafka --topic flights:4 --data /tmp/kafka"
    ),
)
@click.option(
    "--kind",
    type=click.Choice(["mock", "kafka"]),
    default="mock",
    show_default=True,
    help="mock: inside this process, keeps about 5 MB per partition; kafka: a real Apache Kafka (needs Java).",
)
@click.option("--topic", "topics", metavar="NAME:PARTITIONS", type=TopicType(), multiple=True, help="Make this topic.")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where kafka keeps its data; one that an earlier run left is used again.",
)
@shared_options
@pass_invocation
def broker(invocation: Invocation, kind: str, topics: tuple[tuple[str, int], ...], data: Path | None) -> int:
    """Run a broker on loopback, print its address (host:port) on stdout, and keep it until SIGTERM or Ctrl-C."""
    stopped = threading.Event()
    with (
        stop_signals(stopped.set, stopped.set),
        tempfile.TemporaryDirectory(prefix="forebay-broker-") as scratch,
        opened(kind, data or Path(scratch)) as running,
    ):
        for topic, partitions in topics:
            make_topic(running, topic, partitions)
        if invocation.json:
            invocation.write({"address": running.address})
        else:
            click.echo(running.address)
        invocation.say(f"broker ({kind}) runs at {running.address}; stop it with Ctrl-C")
        stopped.wait()
    return FINE
