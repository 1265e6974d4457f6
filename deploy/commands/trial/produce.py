"""``forebay produce``: send lines, or the demo's flights, to a topic."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import click

from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.parameters import NumberType
from deploy.console.progress import progress_bar
from forebay.model.errors import UsageError
from forebay.settings.reading.similar import did_you_mean
from forebay.settings.schema import Settings

Record = tuple[bytes | None, bytes | None]

#: pauses in a second of a limited rate
_STEPS_PER_SECOND = 10
#: maximum time for the broker to list its topics
_BROKER_SECONDS = 10.0


@click.command(
    epilog=example(
        "forebay produce flights --flights --rate 2000",
        "echo '{\"order\": 1}' | forebay produce orders",
        "forebay produce orders --file orders.jsonl --key-separator :",
    ),
)
@click.argument("topic", required=False)
@click.option(
    "--file",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with one value per line [default: the lines of stdin].",
)
@click.option("--flights", is_flag=True, help="Send the 336,776 flights of the demo, as JSON, instead of lines.")
@click.option(
    "--key-separator", metavar="TEXT", help="Text between the key and the value of a line [default: no keys]."
)
@click.option("--rate", type=NumberType(1), help="Maximum number of records per second [default: no limit].")
@click.option("--limit", type=NumberType(0), help="Maximum number of records [default: all].")
@shared_options
@pass_invocation
def produce(
    invocation: Invocation,
    topic: str | None,
    path: Path | None,
    flights: bool,
    key_separator: str | None,
    rate: int | None,
    limit: int | None,
) -> int:
    """Send records to TOPIC (default: the first of kafka.topics) at the brokers of the configuration.

    Returns when the brokers have acknowledged all records. Ctrl-C ends the input; records that were read are still sent.
    """
    if flights and (path is not None or key_separator is not None):
        raise click.UsageError("--flights excludes --file and --key-separator")
    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty")
    settings = invocation.settings()
    topic = topic or next(iter(settings.kafka.topics), None)
    if topic is None:
        raise click.UsageError("name a TOPIC: the configuration has no kafka.topics")
    require_topic(settings, topic)
    from forebay.kafka.embedded import loader

    # the client's retries, which end well or in an error
    logging.getLogger("forebay.kafka").addHandler(logging.NullHandler())
    total = loader.FLIGHTS if flights else limit
    source: Iterable[Record] = loader.flights(limit) if flights else _lines(path, key_separator)
    counted = min(loader.FLIGHTS, limit) if flights and limit is not None else total
    with progress_bar(f"to {topic}", counted, unit_bytes=False) as shown:
        done = 0

        def progress(sent: int) -> None:
            nonlocal done
            shown(sent - done)
            done = sent

        loaded = loader.load(
            settings.kafka.options,
            topic,
            bounded(source, rate, limit),
            progress=progress,
            chunk_records=max(1, (rate or 20_000) // _STEPS_PER_SECOND) if flights or path is not None else 1,
        )
    if invocation.json:
        invocation.write({"topic": topic, "records": loaded.records})
    invocation.say(f"sent {loaded.records} records to {topic}, all acknowledged")
    return FINE


def require_topic(settings: Settings, topic: str) -> None:
    """Raise UsageError if the brokers have no such topic, UnreachableError if none answers."""
    from forebay.kafka.client.admin import KafkaAdmin

    address = settings.kafka.options.get("bootstrap.servers", "")
    if not address:
        raise UsageError('kafka."bootstrap.servers" is not set: the configuration names no broker')
    with KafkaAdmin(settings.kafka.options, timeout_seconds=_BROKER_SECONDS) as admin:
        admin.check(_BROKER_SECONDS)
        topics = admin.topics()
        if topic not in topics:
            admin.check_visible([topic])
    if topic not in topics:
        raise UsageError(
            f"{address} has no topic {topic!r}; {did_you_mean(topic, topics)}create it, or name another one. A broker for "
            f"trials creates it: forebay broker --topic {topic}:4"
        )


def _lines(path: Path | None, separator: str | None) -> Iterator[Record]:
    """Yield a record for each line of the file, or of stdin, without its line end."""
    with path.open("rb") if path is not None else sys.stdin.buffer as lines:
        for line in lines:
            value = line.rstrip(b"\r\n")
            if separator is None:
                yield None, value
                continue
            key, found, rest = value.partition(separator.encode())
            if not found:
                raise UsageError(f"the line {value[:80].decode(errors='replace')!r} has no {separator!r}")
            yield key, rest


def bounded(records: Iterable[Record], rate: int | None, limit: int | None) -> Iterator[Record]:
    """Yield at most ``limit`` records, at most ``rate`` a second, until Ctrl-C."""
    began, pause = time.monotonic(), threading.Event()
    try:
        for number, record in enumerate(islice(records, limit)):
            if rate is not None and (ahead := began + number / rate - time.monotonic()) > 1 / _STEPS_PER_SECOND:
                pause.wait(ahead)
            yield record
    except KeyboardInterrupt:
        return
