"""The archives of classes that tests start Java with (tests/support/spark/java_classes.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.embedded.jars import fetch_jars, find_java
from tests.conftest import require_kafka
from tests.support.spark.java_classes import _archive_of


def _kafka_with(options: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run Kafka so that it ends with an error unless Java can use the archive; otherwise Java would only be slower."""
    command = [find_java(), "-Xshare:on", "-XX:+UseSerialGC", *options, "-cp", f"{fetch_jars()}/*", "kafka.Kafka"]
    return subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False)


def test_brokers_can_use_the_archive_of_kafkas_classes() -> None:
    require_kafka()
    if not KafkaBroker.java_options:
        pytest.skip("there is no archive yet: a run with several processes makes it")
    done = _kafka_with(KafkaBroker.java_options)
    assert done.returncode == 0, done.stdout + done.stderr


def test_jars_in_another_folder_have_another_archive() -> None:
    """Java refuses an archive whose jars had other paths, as in a checkout that was moved."""
    one, other = (_archive_of(Path(folder) / "libs", "-java") for folder in ("/a", "/b"))
    assert one.name != other.name
