"""Archives of classes for the Java of Spark, Kafka and HDFS, which halve the start-up work of the many that tests start.

``python -m tests.support.spark.java_classes`` (a part of ``make services``) makes those that are not there.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer

from driver.spark.java.class_archive import ClassArchive
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.embedded.jars import fetch_jars, find_java, jars_present
from forebay.model.errors import ForebayError, UsageError
from forebay.model.values import TopicPartition
from tests.support.state.again import produce
from tests.support.stores.hdfs import HADOOP, HdfsServer

#: the second compiler costs a Spark that lives for seconds half of all its processor time
SPARK_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_VARIABLE = "SPARK_SUBMIT_OPTS"
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def share(create: bool) -> None:
    """Sets the options of every Spark that this process and its children start, and of this process's brokers.

    ``create``: also makes the archives that are not there, which takes half a minute once.
    """
    java = _java()
    options: tuple[str, ...] = SPARK_OPTIONS
    if java is not None:
        options += _spark_classes(create)
        if jars_present():
            jars = fetch_jars()
            KafkaBroker.java_options = _used(_archive_of(jars, java), _start_kafka if create else None)
        if HADOOP.present():
            jars = HADOOP.folder()
            HdfsServer.class_archive = _used(_archive_of(jars, java), _dump_hdfs if create else None)
    os.environ.setdefault(_VARIABLE, " ".join(options))


def spark_options() -> str:
    """Return the options of Java for Spark's daemons and executors. Drivers take them from the environment."""
    return os.environ.get(_VARIABLE) or " ".join(SPARK_OPTIONS)


def _java() -> str | None:
    """Return the path of Java as a part of a file name; None without Java."""
    try:
        return str(Path(find_java()).resolve().parent.parent).replace("/", "-")
    except UsageError:
        return None


def _archive_of(jars: Path, java: str) -> Path:
    """Return where the archive of the classes in ``jars`` is. Java uses it only with jars of the same paths."""
    place = hashlib.sha256(str(jars).encode()).hexdigest()[:8]
    return jars.with_name(f"{jars.name}{java}-{place}.jsa")


def _spark_classes(create: bool) -> tuple[str, ...]:
    """Return the options of a Spark that uses an archive beside the installed Spark."""
    archive = ClassArchive(Path(sys.prefix) / "spark-classes", {})
    if create:
        try:
            archive.make(threading.Event())
        except (OSError, ForebayError) as error:
            sys.stderr.write(f"no archive of Spark's classes was made, so tests take longer: {error}\n")
    return archive.java_options()


def _used(archive: Path, make: Callable[[Path], None] | None) -> tuple[str, ...]:
    """Return the options of a Java that uses ``archive``. If it is not there, ``make`` makes it."""
    if make is not None and not archive.exists():
        made = archive.with_suffix(f".{os.getpid()}")
        try:
            make(made)
            made.replace(archive)
        except (subprocess.SubprocessError, OSError, ForebayError) as error:
            made.unlink(missing_ok=True)
            sys.stderr.write(f"{archive.name} was not made, so tests take longer: {error}\n")
    return (f"-XX:SharedArchiveFile={archive}", *_QUIET) if archive.exists() else ()


def _start_kafka(archive: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(folder)
        broker.java_options = (f"-XX:ArchiveClassesAtExit={archive}", *_QUIET)
        with broker:
            broker.create_topic("t", 1)
            produce(broker.options, TopicPartition("t", 0), 10)
            consumer = Consumer({**broker.options, "group.id": "g", "auto.offset.reset": "earliest"})
            consumer.subscribe(["t"])
            assert consumer.consume(10, 60.0)
            consumer.commit(asynchronous=False)
            consumer.close()


def _dump_hdfs(archive: Path) -> None:
    """Write an archive of the classes that the nodes load. They can't write it themselves: a folder is on their class path."""
    with tempfile.TemporaryDirectory() as folder:
        server = HdfsServer(Path(folder), java_options=(f"-XX:DumpLoadedClassList={folder}/%p.classes",))
        with server:
            server.stop()
        classes = Path(folder) / "classes"
        lists = [path.read_text().splitlines() for path in Path(folder).glob("*.classes")]
        classes.write_text("\n".join(dict.fromkeys(line for lines in lists for line in lines)))
        options = ("-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}")
        subprocess.run(
            [find_java(), *options, "-XX:+UseSerialGC", "-cp", f"{HADOOP.folder().resolve()}/*"],
            capture_output=True, timeout=300, check=True,
        )  # fmt: skip


if __name__ == "__main__":
    share(create=True)
