"""An archive of Spark's classes for the JVM, which halves the start-up work of the many Sparks of the tests.

See "Class Data Sharing" in Java's guide to its virtual machine: an archive that does not fit (another Java or jar) is ignored.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from forebay.kafka.embedded.jars import find_java
from forebay.model.errors import UsageError

#: the second compiler costs a Spark that lives for seconds half of all its processor time
_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
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
    """Sets the options of every Spark that this process and its children start. ``create``: also makes the archive, in some
    twenty seconds, if it is not there."""
    options = [*_OPTIONS]
    archive = _archive()
    if archive is not None:
        if create and not archive.exists():
            _make(archive)
        if archive.exists():
            options += [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(options))


def _archive() -> Path | None:
    """Beside the installed Spark, since it names the paths of its jars; None without Java."""
    try:
        java = Path(find_java()).resolve()
    except UsageError:
        return None
    return Path(sys.prefix) / f"spark-classes{str(java.parent.parent).replace('/', '-')}.jsa"


def _make(archive: Path) -> None:
    made = archive.with_suffix(f".{os.getpid()}")
    options = " ".join((*_OPTIONS, f"-XX:ArchiveClassesAtExit={made}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"))
    try:
        subprocess.run(
            [sys.executable, "-c", _SESSION],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=_SECONDS,
        )  # fmt: skip
        made.replace(archive)
    except (subprocess.SubprocessError, OSError) as error:
        made.unlink(missing_ok=True)
        sys.stderr.write(f"Spark's classes were not archived, so tests take longer: {error}\n")
