"""Archives of classes for the Java of Spark and of Kafka, which halve the start-up work of the many that tests start.

See "Class Data Sharing" in Java's guide to its virtual machine: an archive that does not fit (another Java or jar) is ignored.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.embedded.jars import fetch_jars, find_java, jars_present
from forebay.model.errors import ForebayError, UsageError

#: the second compiler costs a Spark that lives for seconds half of all its processor time
_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_SECONDS = 180.0
#: what most tests do: a DataFrame of Arrow batches, with a shuffle
_SESSION = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(100).mapInArrow(lambda batches: batches, "id long")
assert rows.groupBy((rows.id % 7).alias("k")).count().count() == 7
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()  # it ends, and writes the archive before
java.wait()
"""


def share(create: bool) -> None:
    """Sets the options of every Spark that this process and its children start, and of this process's brokers.

    ``create``: also makes the archives that are not there, which takes half a minute once.
    """
    java = _java()
    options: tuple[str, ...] = _OPTIONS
    if java is not None:
        # beside the installed Spark, since it names the paths of its jars
        options += _used(Path(sys.prefix) / f"spark-classes{java}.jsa", _start_spark if create else None)
        if jars_present():
            jars = fetch_jars()
            KafkaBroker.java_options = _used(jars.with_name(f"{jars.name}{java}.jsa"), _start_kafka if create else None)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(options))


def _java() -> str | None:
    """Return the path of Java as a part of a file name; None without Java."""
    try:
        return str(Path(find_java()).resolve().parent.parent).replace("/", "-")
    except UsageError:
        return None


def _used(archive: Path, start: Callable[[tuple[str, ...]], None] | None) -> tuple[str, ...]:
    """Return the options of a Java that uses ``archive``. If it is not there, ``start`` makes it."""
    if start is not None and not archive.exists():
        made = archive.with_suffix(f".{os.getpid()}")
        try:
            start((f"-XX:ArchiveClassesAtExit={made}", *_QUIET))
            made.replace(archive)
        except (subprocess.SubprocessError, OSError, ForebayError) as error:
            made.unlink(missing_ok=True)
            sys.stderr.write(f"{archive.name} was not made, so tests take longer: {error}\n")
    return (f"-XX:SharedArchiveFile={archive}", *_QUIET) if archive.exists() else ()


def _start_spark(options: tuple[str, ...]) -> None:
    environment = {"SPARK_SUBMIT_OPTS": " ".join((*_OPTIONS, *options)), "PYSPARK_PYTHON": sys.executable}
    subprocess.run(
        [sys.executable, "-c", _SESSION],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=_SECONDS,
    )  # fmt: skip


def _start_kafka(options: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(folder)
        broker.java_options = options
        with broker:
            broker.create_topic("t")
