"""Archives of classes for the Java of Spark and of Kafka, which halve the start-up work of the many that tests start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from driver.spark.class_archive import ClassArchive
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.embedded.jars import fetch_jars, find_java, jars_present
from forebay.model.errors import ForebayError, UsageError

#: the second compiler costs a Spark that lives for seconds half of all its processor time
_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def share(create: bool) -> None:
    """Sets the options of every Spark that this process and its children start, and of this process's brokers.

    ``create``: also makes the archives that are not there, which takes half a minute once.
    """
    java = _java()
    options: tuple[str, ...] = _OPTIONS
    if java is not None:
        options += _spark_classes(create)
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


def _spark_classes(create: bool) -> tuple[str, ...]:
    """Return the options of a Spark that uses an archive beside the installed Spark."""
    archive = ClassArchive(Path(sys.prefix) / "spark-classes", {})
    if create:
        try:
            archive.make(threading.Event())
        except (OSError, ForebayError) as error:
            sys.stderr.write(f"no archive of Spark's classes was made, so tests take longer: {error}\n")
    return archive.java_options()


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


def _start_kafka(options: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(folder)
        broker.java_options = options
        with broker:
            broker.create_topic("t")
