"""The JVM's lines become events with their level; those of every normal start are no warnings."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from driver.spark.java.jvm_log import JvmLog, events

START = """\
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/23 08:57:03 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 192.0.2.2 instead (on interface eth0)
26/11/23 08:57:03 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
26/11/23 08:57:06 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform... using builtin-java classes
"""  # noqa: E501


def test_normal_start_has_no_warning() -> None:
    found = list(events(START.splitlines()))
    assert len(found) == 7
    assert {level for level, _, _ in found} == {logging.DEBUG}


def test_event_has_its_level_class_and_stack() -> None:
    lines = [
        "26/11/23 09:00:00 ERROR Executor: Exception in task 0.0",
        "java.lang.OutOfMemoryError",
        "26/11/23 09:00:01 WARN TaskSetManager: Lost task",
        "\tat scala.Foo(Foo.scala:1)",
        "Caused by: java.io.IOException",
        "\tat scala.Bar(Bar.scala:1)",
        "",
        "# A fatal error has been detected by the Java Runtime Environment:",
    ]
    assert list(events(lines)) == [
        (logging.ERROR, "Executor", "Exception in task 0.0"),
        (logging.INFO, "", "java.lang.OutOfMemoryError"),
        (
            logging.WARNING,
            "TaskSetManager",
            "Lost task\n\tat scala.Foo(Foo.scala:1)\nCaused by: java.io.IOException\n\tat scala.Bar(Bar.scala:1)",
        ),
        (logging.ERROR, "", "# A fatal error has been detected by the Java Runtime Environment:"),
    ]


def test_a_large_task_is_no_warning_below_ten_megabytes() -> None:
    text = "Stage 12 contains a task of very large size ({} KiB). The maximum recommended task size is 1000 KiB."
    lines = [f"26/11/23 09:00:00 WARN TaskSetManager: {text.format(size)}" for size in (3806, 38060)]
    assert [level for level, _, _ in events(lines)] == [logging.DEBUG, logging.WARNING]


def test_all_lines_of_a_process_are_logged_to_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = JvmLog()
    code = (
        "import sys; sys.stderr.write('26/11/23 09:00:00 WARN A: first\\n' + 'x' * 100_000 + '\\nlast without an end')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=log.stderr)
    log.follow()
    assert process.wait(60) == 0
    log._thread.join(60)
    assert [(r.name, r.levelno, len(r.getMessage())) for r in caplog.records] == [
        ("spark.A", logging.WARNING, 5),
        ("spark", logging.INFO, 100_000),
        ("spark", logging.INFO, 19),
    ]
