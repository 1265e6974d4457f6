"""Which archive of classes Spark's JVM starts with, and who may have written it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import xxhash

from driver.spark.java import class_archive
from driver.spark.java.check import java_path
from driver.spark.java.class_archive import KEPT, ClassArchive
from forebay.model.errors import ForebayError
from tests.conftest import missing

#: without the options by which the tests share archives
_ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in class_archive._VARIABLES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "classes"
    made.mkdir(mode=0o700)
    return made


def archive(folder: Path, environment: dict[str, str] | None = None, **options: str) -> ClassArchive:
    given = {key.replace("_", "."): value for key, value in options.items()}
    return ClassArchive(folder, given, {**_ENVIRONMENT, **(environment or {})})


def stored(archive: ClassArchive, content: bytes = b"classes") -> Path:
    path = archive.folder / f"spark-{archive._fits()}-{xxhash.xxh3_64_hexdigest(content)}.jsa"
    path.write_bytes(content)
    path.chmod(0o444)
    return path


def writes(content: bytes) -> Any:
    """Return what stands for the Spark that writes an archive."""

    def load(self: ClassArchive, made: Path, stopping: threading.Event) -> bool:
        made.write_bytes(content)
        return True

    return load


def test_jvm_uses_the_archive_that_fits_its_java_and_jars(folder: Path) -> None:
    ours = archive(folder)
    assert ours.java_options() == ()
    path = stored(ours)
    assert ours.java_options()[0] == f"-XX:SharedArchiveFile={path}"
    other_class_path = archive(folder, spark_driver_extraClassPath="/opt/driver.jar")
    assert other_class_path.java_options() == ()


def test_archive_of_another_java_is_not_used(folder: Path, tmp_path: Path) -> None:
    ours = archive(folder)
    stored(ours)
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    other = archive(folder, {"JAVA_HOME": str(java.parents[1])})
    assert other.find() is None
    path = stored(other)
    (java.parents[1] / "release").write_text('JAVA_VERSION="17.0.99"\n')
    assert other.find() is None, "an upgrade in place is another Java"
    assert path.exists()


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/mine.jsa"}, {}),
        ({"JDK_JAVA_OPTIONS": "-Xshare:off"}, {}),
        ({}, {"spark_driver_extraJavaOptions": "-XX:ArchiveClassesAtExit=/mine.jsa"}),
    ],
)
def test_an_archive_of_the_users_own_options_wins(
    environment: dict[str, str], options: dict[str, str], folder: Path
) -> None:
    chosen = archive(folder, environment, **options)
    stored(chosen)
    assert chosen.java_options() == ()
    assert chosen.make(threading.Event()) is None


def test_damaged_archive_is_deleted_and_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours = archive(folder)
    path = stored(ours)
    path.chmod(0o644)
    path.write_bytes(b"classed")
    assert ours.java_options() == ()
    assert "is damaged" in caplog.text
    assert not path.exists()


def test_archive_that_others_can_write_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is code that the driver runs."""
    ours = archive(folder)
    path = stored(ours)
    path.chmod(0o664)
    assert ours.java_options() == ()
    assert f"other users can write {path}" in caplog.text
    path.chmod(0o444)
    assert ours.java_options()
    folder.chmod(0o777)
    assert ours.java_options() == ()
    with pytest.raises(ForebayError, match="other users can write"):
        ours.make(threading.Event())
    if os.geteuid() == 0:
        folder.chmod(0o700)
        os.chown(path, 12_345, -1)
        assert ours.java_options() == ()
        assert f"{path} belongs to another user (12345)" in caplog.text


def test_link_and_pipe_in_place_of_an_archive_are_not_followed(folder: Path, tmp_path: Path) -> None:
    ours = archive(folder)
    path = stored(ours)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert ours.java_options() == ()
    path.unlink()
    os.mkfifo(path, 0o600)
    assert ours.java_options() == ()


def test_made_archive_is_found_and_old_ones_and_remains_are_deleted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(KEPT + 1):
        old = folder / f"spark-{number:016x}-{0:016x}.jsa"
        old.touch()
        os.utime(old, (number, number))
    left, other = folder / "unfinished-left", folder / "unfinished-other"
    left.mkdir()
    os.utime(left, (0, 0))
    other.mkdir()
    monkeypatch.setattr(ClassArchive, "_load_classes", writes(b"made"))
    ours = archive(folder)
    path = ours.make(threading.Event())
    assert path is not None
    assert ours.find() == path
    assert path.stat().st_mode & 0o777 == 0o400
    newest_before = folder / f"spark-{KEPT:016x}-{0:016x}.jsa"
    assert {*folder.iterdir()} == {path, newest_before, other}, "another driver may be making one"

    monkeypatch.setattr(ClassArchive, "_load_classes", writes(b"again"))
    assert ours.make(threading.Event()) == path, "it is made once"


def test_no_archive_is_made_where_memory_is_short(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second JVM must not make the kernel kill the driver."""
    monkeypatch.setattr(class_archive, "free_bytes", lambda: class_archive.MEMORY_MIN - 1)
    caplog.set_level(logging.INFO)
    assert archive(folder).make(threading.Event()) is None
    assert "MB of memory" in caplog.text
    assert not [*folder.iterdir()]


def test_stopped_driver_waits_for_no_archive(folder: Path) -> None:
    stopping = threading.Event()
    stopping.set()
    assert archive(folder).make(stopping) is None
    assert not [*folder.iterdir()]


def test_failed_maker_is_named_with_what_it_said(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\necho no such option >&2; exit 1\n")
    (home / "bin" / "java").chmod(0o755)
    with pytest.raises(ForebayError, match="exit code 1 and wrote no archive"):
        archive(folder, {"JAVA_HOME": str(home)}).make(threading.Event())
    assert not [*folder.iterdir()]


def test_unreadable_folder_is_no_obstacle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert archive(tmp_path / "file").java_options() == ()
    assert archive(tmp_path / "none").java_options() == ()
    with pytest.raises(OSError, match="exists"):
        archive(tmp_path / "file").make(threading.Event())


def test_java_starts_with_an_archive_that_it_cannot_use(folder: Path) -> None:

    ours = archive(folder)
    stored(ours, b"not an archive" * 1_000)
    java = java_path(_ENVIRONMENT)
    done = subprocess.run([java, *ours.java_options(), "-version"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stdout == b"", "Spark's launcher reads no warning as output"


_START = """
import json, logging, sys
from pathlib import Path
logging.basicConfig(level=logging.WARNING)
from pyspark import SparkContext
from driver.spark.java.jvm import start_jvm_early
from forebay.settings.schema import SparkSettings
options = {"spark.master": "local[1]", "spark.driver.memory": "512m"}
start_jvm_early(SparkSettings(options=options, class_archive=sys.argv[1])).join()
java = SparkContext._gateway.proc
print(json.dumps(Path(f"/proc/{java.pid}/maps").read_text().splitlines()))
java.stdin.close()
java.wait()
"""


def _started(folder: Path, environment: dict[str, str]) -> tuple[set[str], str]:
    """Return the files that a JVM has mapped, and what its program logged."""
    done = subprocess.run(
        [sys.executable, "-c", _START, str(folder)], env={**environment, "PYSPARK_PYTHON": sys.executable},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return {line.split(maxsplit=5)[-1] for line in json.loads(done.stdout)}, done.stderr


@pytest.mark.spark
def test_spark_maps_the_archive_that_was_made() -> None:
    """The one that a run of all tests makes at its start."""
    shared = ClassArchive(Path(sys.prefix) / "spark-classes", {}, _ENVIRONMENT)
    path = shared.make(threading.Event())
    if path is None:
        missing("memory or space is too short for an archive of classes")
        return
    assert str(path.resolve()) in _started(shared.folder, _ENVIRONMENT)[0]


@pytest.mark.spark
def test_spark_starts_without_an_archive_with_which_java_ends(folder: Path, tmp_path: Path) -> None:
    """A driver that can't start because of a file that only saves time would be a bad bargain."""
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\ncase "$*" in *SharedArchiveFile*SparkSubmit*) exit 134;; esac\nexec {java_path(_ENVIRONMENT)} "$@"\n'
    )
    java.chmod(0o755)
    environment = {**_ENVIRONMENT, "JAVA_HOME": str(java.parents[1])}
    path = stored(ClassArchive(folder, {}, environment))
    mapped, logged = _started(folder, environment)
    assert str(path) not in mapped
    assert "has started without it" in logged
    assert not path.exists(), "the next start makes another one"
