"""Java and the jars of the embedded Kafka."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from forebay.kafka.embedded.jars import KAFKA, KAFKA_VERSION, Libraries, find_java
from forebay.model.errors import UsageError
from tests.support.run.ports import free_port
from tests.support.servers.answering import AnsweringHandler, AnsweringServer
from tests.support.spark.jvm_spark import CONNECTOR
from tests.support.spark.jvm_spark import VERSION as SPARK
from tests.support.stores.hdfs import HADOOP, HADOOP_VERSION


def test_missing_java_error_names_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match="apt-get install -y openjdk-17-jre-headless"):
        find_java()


class Repository(AnsweringHandler):
    """``jars``: path → content; ``troubled``: how often it answers 503 first."""

    jars: ClassVar[dict[str, bytes]]
    troubled: ClassVar[int]

    def do_GET(self) -> None:  # noqa: N802
        kind = type(self)
        if kind.troubled:
            kind.troubled -= 1
            self.answer(503, b"")
        elif self.path in kind.jars:
            self.answer(200, kind.jars[self.path])
        else:
            self.answer(404, b"")


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Repository]]:
    Repository.jars, Repository.troubled = {}, 0
    with AnsweringServer(Repository, None) as server:
        monkeypatch.setenv("FOREBAY_MAVEN", f"{server.url}/maven2/")
        yield Repository


def listed(folder: Path, **jars: bytes) -> Libraries:
    (folder / "a.jars.lock").write_text(
        "".join(f"{hashlib.sha256(own).hexdigest()}  org/{name}/1/{name}-1.jar\n" for name, own in jars.items())
    )
    return Libraries("a-1", "A", folder / "a.jars.lock")


def test_jars_are_fetched_once_from_busy_repository(repository: type[Repository], tmp_path: Path) -> None:
    libraries, cache = listed(tmp_path, a=b"one", b=b"two"), tmp_path / "cache"
    repository.jars = {"/maven2/org/a/1/a-1.jar": b"one", "/maven2/org/b/1/b-1.jar": b"two"}
    repository.troubled = 2
    folder = libraries.fetch(cache)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"a-1.jar": b"one", "b-1.jar": b"two"}
    assert libraries.present(cache)
    assert [path.name for path in cache.iterdir()] == ["a-1"]
    repository.jars = {}
    assert libraries.fetch(cache) == folder


@pytest.mark.parametrize(
    ("has", "message"),
    [
        (
            {"a": b"one"},
            r"cannot fetch the jars of A: http.*/org/b/1/b-1\.jar: status 404 .*FOREBAY_MAVEN=URL",
        ),
        ({"a": b"one", "b": b"other"}, r"A: http.*/org/b/1/b-1\.jar has the SHA-256 [0-9a-f]{64} instead of"),
    ],
    ids=["missing", "another"],
)
def test_missing_or_different_jar_leaves_no_complete_folder(
    repository: type[Repository], tmp_path: Path, has: dict[str, bytes], message: str
) -> None:
    libraries, cache = listed(tmp_path, a=b"one", b=b"two"), tmp_path / "cache"
    repository.jars = {f"/maven2/org/{name}/1/{name}-1.jar": jar for name, jar in has.items()}
    with pytest.raises(UsageError, match=f"(?s){message}"):
        libraries.fetch(cache)
    assert not libraries.present(cache)
    assert list(cache.iterdir()) == []


def test_unreachable_repository_error_names_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FOREBAY_MAVEN", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr("forebay.kafka.embedded.jars.BACKOFF_SECONDS", 0)
    with pytest.raises(
        UsageError, match=r"(?s)cannot fetch the jars of .*: http://127\.0\.0\.1.*refused.*FOREBAY_MAVEN=URL"
    ):
        listed(tmp_path, a=b"one").fetch(tmp_path / "cache")


@pytest.mark.parametrize(
    ("libraries", "jar"),
    [
        (KAFKA, f"org/apache/kafka/kafka_2.13/{KAFKA_VERSION}/kafka_2.13-{KAFKA_VERSION}.jar"),
        (HADOOP, f"org/apache/hadoop/hadoop-hdfs/{HADOOP_VERSION}/hadoop-hdfs-{HADOOP_VERSION}.jar"),
        (CONNECTOR, f"org/apache/spark/spark-sql-kafka-0-10_2.13/{SPARK}/spark-sql-kafka-0-10_2.13-{SPARK}.jar"),
    ],
    ids=["Kafka", "Hadoop", "Spark's source"],
)
def test_lock_files_match_versions_in_code(libraries: Libraries, jar: str) -> None:
    lines = libraries.lock.read_text().splitlines()
    assert jar in {path for _, path in (line.split("  ") for line in lines)}, "run `make lock`"
    names = [line.rpartition("/")[2] for line in lines]
    assert len(set(names)) == len(names), "two of one name would lie in one place"
