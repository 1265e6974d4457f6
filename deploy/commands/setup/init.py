"""``forebay init``: the configuration and the job of a first stream."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
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

    Overwrites nothing: exits with 2 if one of the two files exists. A jobs.py as this command writes it is kept, so that a
    call that was interrupted can be repeated.
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
    configuration_path, job_path = folder / "forebay.toml", folder / "jobs.py"
    # the configuration last: as long as it is absent, the call can be repeated
    paths = {job_path: JOB, configuration_path: configuration}
    if not configuration_path.exists() and _is_written(job_path, JOB):
        del paths[job_path]
    if there := [str(path) for path in reversed(paths) if path.exists()]:
        verb = "exists" if len(there) == 1 else "exist"
        raise UsageError(f"{' and '.join(there)} {verb} already, and init overwrites nothing: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(paths)
        _temporary(job_path).unlink(missing_ok=True)  # also of a jobs.py that is kept
    except OSError as error:
        # a full disk names no file
        raise UsageError(f"{error.filename2 or error.filename or folder}: can't be written: {error.strerror}") from None
    if invocation.json:
        invocation.write({"files": [str(configuration_path), str(job_path)]})
    else:
        for path in (configuration_path, job_path):
            click.echo(f"{'wrote' if path in paths else 'kept'} {path}")
    here = "" if folder == Path.cwd() else f"cd {folder}; "
    trial = " ".join(f"--topic {topic}:4" for topic in topics)
    invocation.say(
        f"next: {here}forebay validate; forebay up. Without a Kafka cluster, first: forebay broker {trial} --data kafka --detach"
    )
    return FINE


def _is_written(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except OSError:
        return False


def _write(texts: Mapping[Path, str]) -> None:
    """Write all files in this order, each one whole or not at all, and overwrite none. Raises OSError."""
    try:
        for path, text in texts.items():
            _temporary(path).unlink(missing_ok=True)  # of a call that was killed
            with _temporary(path).open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for path in texts:
            _link(_temporary(path), path)
    finally:
        for path in texts:
            _temporary(path).unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _link(temporary: Path, path: Path) -> None:
    """Give a file its name. Raises FileExistsError if there is one of this name."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS) or path.exists():
            raise
        os.rename(temporary, path)  # a file system without links, such as exFAT


def _check(configuration: str) -> None:
    """Raise SettingsError if an option of the command line is no valid value."""
    from forebay.settings.reading.load import from_text

    from_text(configuration, "forebay init")
