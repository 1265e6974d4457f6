"""Spark's standalone master and workers on the hosts of a test, and the options of an application that fits them.

They are small and quick: a host that is lost is noticed within seconds, and each executor has one core and 512 MB.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pyspark

from tests.support.processes.namespaces import Host
from tests.support.spark import java_classes

PORT = 7077
_SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
#: seconds without a heartbeat after which the master declares a worker lost; a worker sends four in this time
_WORKER_TIMEOUT = 6
_EXECUTOR_MIB = 512


class Daemon(NamedTuple):
    """How a master or a worker is started: its command, which changes to its host, and its environment."""

    command: list[str]
    environment: dict[str, str]


def application() -> dict[str, str]:
    """Return the options of an application. The names are those of deploy/examples/spark-standalone.toml."""
    java = java_classes.spark_options()
    return {
        "spark.executor.memory": f"{_EXECUTOR_MIB}m", "spark.executor.cores": "1",
        "spark.executor.heartbeatInterval": "1s", "spark.network.timeout": "10s", "spark.network.timeoutInterval": "1s",
        "spark.executor.extraJavaOptions": java, "spark.driver.extraJavaOptions": java,
    }  # fmt: skip


def url(host: Host) -> str:
    """Return the URL of the master on ``host``."""
    return f"spark://{host.address}:{PORT}"


def master(host: Host, folder: Path, *, recovers: bool = False) -> Daemon:
    """Return the master of ``host``. ``recovers``: it keeps workers and applications in ``folder``, and knows them after its
    next start."""
    recovery = folder / "recovery"
    options = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={recovery}" if recovers else ""
    return _daemon(host, folder, options, "deploy.master.Master", "--host", host.address, "--port", str(PORT))


def worker(
    host: Host, folder: Path, master_host: Host, *, executors: int = 1, environment: Mapping[str, str] | None = None
) -> Daemon:
    """Return the worker of ``host`` with room for ``executors``, which have ``environment`` too. Their logs are below
    ``folder``, in a folder with the host's name."""
    memory = _EXECUTOR_MIB * executors + 100
    return _daemon(
        host, folder, "", "deploy.worker.Worker", url(master_host), "--host", host.name, "--cores", str(executors),
        "--memory", f"{memory}m", "--work-dir", str(folder / host.name), environment=environment,
    )  # fmt: skip


def _daemon(
    host: Host,
    folder: Path,
    options: str,
    name: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
) -> Daemon:
    # tasks find only modules that are installed or that the driver sends
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    own = {
        "SPARK_LOCAL_IP": host.address, "SPARK_DAEMON_MEMORY": "200m",
        "SPARK_DAEMON_JAVA_OPTS": f"{java_classes.spark_options()} -Dspark.worker.timeout={_WORKER_TIMEOUT} {options}".strip(),
        "SPARK_LOCAL_DIRS": str(folder / host.name),
    }  # fmt: skip
    command = host.command(_SPARK_CLASS, f"org.apache.spark.{name}", "--webui-port", "0", *arguments)
    return Daemon(command, {**inherited, **own, **(environment or {})})
