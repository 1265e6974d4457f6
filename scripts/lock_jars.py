"""Writes the lists of jars that :class:`forebay.kafka.embedded.jars.Libraries` fetch: each library and all that it depends
on, pinned, with SHA-256. Run it after a change of a version. The Ivy that comes with pyspark resolves, and takes some
minutes; Java must trust the way to Maven Central.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peers.libraries import CONNECT, FLINK, FLINK_KAFKA_VERSION, FLINK_VERSION
from forebay.kafka.embedded.jars import KAFKA, KAFKA_VERSION, Libraries, find_java
from tests.support.kafka.releases import NEWEST, NEWEST_VERSION, OLDEST, OLDEST_VERSION
from tests.support.spark.jvm_spark import CONNECTOR
from tests.support.spark.jvm_spark import VERSION as SPARK_VERSION
from tests.support.stores.hdfs import HADOOP, HADOOP_VERSION

#: organisation, module and version, as Maven Central names them
ROOTS: dict[Libraries, tuple[str, ...]] = {
    KAFKA: (
        f"org.apache.kafka kafka_2.13 {KAFKA_VERSION}",
        "org.apache.logging.log4j log4j-slf4j-impl 2.24.3",  # lets what Kafka logs through SLF4J reach its own log
    ),
    OLDEST: (f"org.apache.kafka kafka_2.13 {OLDEST_VERSION}", "org.slf4j slf4j-log4j12 1.7.30"),
    NEWEST: (
        f"org.apache.kafka kafka_2.13 {NEWEST_VERSION}",
        "org.apache.logging.log4j log4j-slf4j-impl 2.24.3",
    ),
    # what NameNode and DataNode need, and no more
    HADOOP: tuple(
        f"org.apache.hadoop {module} {HADOOP_VERSION}"
        for module in ("hadoop-hdfs", "hadoop-hdfs-client", "hadoop-common")
    ),
    CONNECTOR: (
        f"org.apache.spark spark-sql-kafka-0-10_2.13 {SPARK_VERSION}",
        f"org.apache.spark spark-token-provider-kafka-0-10_2.13 {SPARK_VERSION}",
        "org.apache.kafka kafka-clients 3.9.0",
        "org.apache.commons commons-pool2 2.12.0",
    ),
    FLINK: (
        *(
            f"org.apache.flink {module} {FLINK_VERSION}"
            for module in (
                "flink-clients",
                "flink-table-api-java-bridge",
                "flink-table-planner-loader",
                "flink-table-runtime",
                "flink-connector-files",
            )
        ),
        f"org.apache.flink flink-connector-kafka {FLINK_KAFKA_VERSION}",
        "org.apache.logging.log4j log4j-slf4j-impl 2.24.3",
    ),
    CONNECT: (
        f"org.apache.kafka connect-runtime {KAFKA_VERSION}",
        f"org.apache.kafka connect-file {KAFKA_VERSION}",
        "org.apache.logging.log4j log4j-slf4j-impl 2.24.3",
    ),
}
#: what else these need is in pyspark
ALONE = {CONNECTOR}
#: where a Maven repository has a jar, with dots in the organisation
PATTERN = "[organisation]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]"


def resolve(libraries: Libraries, work: Path) -> list[str]:
    """The lines of its list."""
    spark = find_spec("pyspark")
    roots = (spark.submodule_search_locations or []) if spark is not None else []
    ivy = max(jar for root in roots for jar in (Path(root) / "jars").glob("ivy-*.jar"))
    transitive = "false" if libraries in ALONE else "true"
    dependencies = ""
    for coordinates in ROOTS[libraries]:
        organisation, module, version = coordinates.split()
        named = f'org="{organisation}" name="{module}" rev="{version}"'
        dependencies += f'<dependency {named} conf="default" transitive="{transitive}"/>'
    asked = work / "ivy.xml"
    asked.write_text(
        f'<ivy-module version="2.0"><info organisation="forebay" module="{libraries.name}"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    found = work / "found"
    subprocess.run(
        [find_java(), "-jar", str(ivy), "-cache", str(work / "ivy"), "-confs", "default", "-warn", "-ivy", str(asked),
         "-retrieve", str(found / PATTERN)],
        check=True, stdout=sys.stderr,
    )  # fmt: skip
    lines = []
    for jar in sorted(found.rglob("*.jar")):
        organisation, *rest = jar.relative_to(found).parts
        path = "/".join((*organisation.split("."), *rest))
        lines.append(f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {path}\n")
    return lines


if __name__ == "__main__":
    for libraries in ROOTS:
        if sys.argv[1:] and libraries.name not in sys.argv[1:]:  # only those named as arguments
            continue
        with tempfile.TemporaryDirectory() as work:
            lines = resolve(libraries, Path(work))
        libraries.lock.write_text("".join(lines))
        print(f"{libraries.lock}: {len(lines)} jars")
