"""Why Spark can't start, as far as Java is the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver.spark.address import check_master
from driver.spark.java.check import check_java
from forebay.model.errors import SettingsError


def java(home: Path, script: str) -> dict[str, str]:
    path = home / "bin" / "java"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"JAVA_HOME": str(home), "PATH": ""}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is Java 11, and Spark needs 17"),
        ("echo 'java version \"1.8.0_292\"' >&2", "is Java 8, and Spark needs 17"),
        ("echo 'Error: could not find libjvm.so' >&2; exit 1", "Error: could not find libjvm.so"),
        ("exit 3", "exit code 3"),
    ],
)
def test_a_java_that_spark_can_not_run_on_is_named_with_the_reason(script: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"{tmp_path}/bin/java .*{message}"):
        check_java(java(tmp_path, script))


def test_a_newer_java_is_accepted(tmp_path: Path) -> None:
    check_java(java(tmp_path, "echo 'openjdk version \"21\" 2023-09-19' >&2"))


def test_a_missing_java_is_reported() -> None:
    with pytest.raises(SettingsError, match="no Java found"):
        check_java({"PATH": "/nowhere"})


@pytest.mark.parametrize(
    "master",
    [
        "",
        "local",
        "local[2]",
        "local[*]",
        "local[2, 3]",
        "local-cluster[2,1,1024]",
        "spark://h:7077",
        "yarn",
        "k8s://https://h",
    ],
)
def test_masters_that_spark_accepts_are_accepted(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize("master", ["loca[2]", "local[two]", "local[]", "h:7077", "local[2"])
def test_masters_that_spark_does_not_accept_are_refused(master: str) -> None:
    with pytest.raises(SettingsError, match=r"spark\.master"):
        check_master(master)
