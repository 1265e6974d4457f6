"""``forebay init``: the configuration and the job of a first stream."""

from __future__ import annotations

from pathlib import Path

import click

from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from forebay.model.errors import UsageError
from forebay.settings.toml_text import toml_text

CONFIGURATION = """\
# A stream on this machine. docs/SETTINGS.md describes every key; `forebay validate` checks this file.
stream = {stream}
data = {data}  # WAL, journal and blocks

[kafka]
topics = {topics}
"bootstrap.servers" = {broker}  # without a Kafka cluster: `forebay broker`

[driver]
job = "jobs:process"  # the function process in jobs.py gets each batch
batch_interval = "5s"

[spark]
"spark.master" = "local[2]"  # Spark runs inside the driver; docs/operations/several-hosts.md describes clusters
"""

JOB = '''\
"""The job of the stream: Forebay calls process for each batch, in order."""

from pathlib import Path

OUT = Path(__file__).parent / "out"


def process(batch):
    # After a crash the same batch runs again, with the same id and rows. Its output then replaces that of the earlier run.
    batch.df.write.mode("overwrite").parquet(f"{OUT}/batch={batch.id}")
    batch.df.selectExpr("topic", "partition", "offset", "CAST(value AS STRING)").show(3, truncate=60)
'''


@click.command(
    epilog=example(
        "forebay init", "forebay init quickstart", "forebay init --topic orders --broker kafka-1:9092 orders"
    ),
)
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Topic to read; repeatable [default: flights].")
@click.option(
    "--broker",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    show_default=True,
    help="Address of a broker of your Kafka cluster, or several with commas between.",
)
@click.option("--stream", metavar="NAME", help="Name of the stream [default: the first topic].")
@shared_options
@pass_invocation
def init(invocation: Invocation, folder: Path, topics: tuple[str, ...], broker: str, stream: str | None) -> int:
    """Write forebay.toml and jobs.py into DIR (default: this folder), with all data of the stream in DIR/data.

    Overwrites nothing: exits with 2 if one of the two files exists.
    """
    folder = folder.resolve()
    topics = topics or ("flights",)
    configuration = CONFIGURATION.format(
        stream=toml_text(stream or topics[0]),
        data=toml_text(str(folder / "data")),
        broker=toml_text(broker),
        topics=toml_text(list(topics)),
    )
    _check(configuration)
    paths = {folder / "forebay.toml": configuration, folder / "jobs.py": JOB}
    if there := [str(path) for path in paths if path.exists()]:
        verb = "exists" if len(there) == 1 else "exist"
        raise UsageError(f"{' and '.join(there)} {verb} already, and init overwrites nothing: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in paths.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UsageError(f"{error.filename}: can't be written: {error.strerror}") from None
    if invocation.json:
        invocation.write({"files": [str(path) for path in paths]})
    else:
        click.echo("\n".join(f"wrote {path}" for path in paths))
    here = "" if folder == Path.cwd() else f"cd {folder}; "
    trial = " ".join(f"--topic {topic}:4" for topic in topics)
    invocation.say(
        f"next: {here}forebay validate; forebay up. Without a Kafka cluster, first: forebay broker {trial} --data kafka --detach"
    )
    return FINE


def _check(configuration: str) -> None:
    """Raise SettingsError if an option of the command line is no valid value."""
    from forebay.settings.reading.load import from_text

    from_text(configuration, "forebay init")
