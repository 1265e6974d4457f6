"""The JVM of a session that Forebay makes: its options and its start."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from driver.spark.address import addressed, is_local, is_on_loopback
from driver.spark.java.class_archive import ClassArchive
from driver.spark.java.jvm_log import JvmLog
from forebay.settings.schema import SparkSettings

log = logging.getLogger(__name__)

#: defaults that ``[spark]`` in the configuration overrides
DEFAULTS = {
    "spark.app.name": "forebay",
    "spark.ui.killEnabled": "false",  # the Spark UI requires no token
    "spark.ui.showConsoleProgress": "false",  # the bars would be in the middle of log lines
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
#: keeps a user's module from hiding a Forebay module of the same name in Spark's workers
_OWN_DAEMON = {"spark.python.daemon.module": "forebay_start.spark_daemon"}
#: the launcher adds these to the options of Java that the configuration names
_OPTIONS = "SPARK_SUBMIT_OPTS"

#: one JVM for each process
_STARTING = threading.Lock()


def session_options(given: Mapping[str, str], ship_code: bool = True) -> dict[str, str]:
    """Return the options of a session: those of Forebay, then ``given``. ``ship_code``: as ``spark.ship`` says."""
    master = given.get("spark.master", "")
    # on remote executors without Forebay, none of its modules can be imported when a worker starts
    own_daemon = _OWN_DAEMON if is_local(master) or not ship_code else {}
    return {**DEFAULTS, "spark.ui.enabled": str(is_on_loopback(master)).lower(), **own_daemon, **given}


def start_jvm(options: Mapping[str, str], archive: ClassArchive | None = None) -> None:
    """Start the JVM of a new session with ``options``, with its stderr as events of this process's log. If it does not start
    with the classes of ``archive``, delete the archive and start without it.

    Do nothing if a JVM runs already, or if the program has no log: then Spark starts a JVM that writes to this process's stderr.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    with _STARTING:
        if SparkContext._gateway is not None or not logging.getLogger().handlers:
            return
        with addressed(options.get("spark.master", "")):
            gateway = _launch(options, archive)
            SparkContext._ensure_initialized(gateway=gateway)


def start_jvm_early(spark: SparkSettings) -> threading.Thread:
    """Start the JVM in a thread of its own, which is returned, while this process still imports what it needs. If that fails, the
    session's own start names the reason."""

    def run() -> None:
        try:
            start_jvm(session_options(spark.options, spark.ship == "auto"), archive_of(spark))
        except Exception as error:
            log.debug("the JVM can't be started early: %s", error)

    thread = threading.Thread(target=run, name="jvm-start", daemon=True)
    thread.start()
    return thread


def archive_of(spark: SparkSettings) -> ClassArchive | None:
    """Return the archive that the settings name; None if they name none."""
    return ClassArchive(Path(spark.class_archive), spark.options) if spark.class_archive else None


def _launch(options: Mapping[str, str], archive: ClassArchive | None) -> Any:
    java_options = archive.java_options() if archive is not None else ()
    if archive is None or not java_options:
        return _launch_with(options, ())
    try:
        return _launch_with(options, java_options)
    except (PySparkException, OSError) as error:
        gateway = _launch_with(options, ())
        log.warning("Spark can't start with the archive of classes, and has started without it: %s", error)
        archive.discard()
        return gateway


def _launch_with(options: Mapping[str, str], java_options: tuple[str, ...]) -> Any:
    conf = SparkConf(loadDefaults=False).setAll(list(options.items()))
    jvm = JvmLog()
    try:
        with _added(java_options):
            return launch_gateway(conf, {"stderr": jvm.stderr})  # type: ignore[no-untyped-call]
    finally:
        jvm.follow()


@contextmanager
def _added(java_options: tuple[str, ...]) -> Iterator[None]:
    """Add options of Java to this process's environment while a JVM is started."""
    before = os.environ.get(_OPTIONS)
    if java_options:
        # the user's own options come later, and win
        os.environ[_OPTIONS] = " ".join(filter(None, (shlex.join(java_options), before)))
    try:
        yield
    finally:
        if before is not None:
            os.environ[_OPTIONS] = before
        elif java_options:
            del os.environ[_OPTIONS]
