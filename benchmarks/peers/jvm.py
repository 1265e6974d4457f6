"""A Java process that Python drives through py4j, so that a peer needs no Java source of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway

from forebay.kafka.embedded.jars import find_java
from forebay.process.tether import tethered

HEAP = "-Xmx1g"


class Jvm:
    """Java with the jars of ``libraries`` and a py4j gateway. ``api``: its packages and classes, by name."""

    def __init__(self, libraries: Path, log_file: Path) -> None:
        gateway = next(Path(pyspark.__file__).parent.glob("jars/py4j*.jar"))
        self._classpath = f"{libraries}/*:{gateway}"
        self._log_file = log_file
        self.pid = 0
        self.api: Any = None

    def __enter__(self) -> Jvm:
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util", "java.time")]
        command = [
            find_java(),
            HEAP,
            *opened,
            "-cp",
            self._classpath,
            "py4j.GatewayServer",
            "--die-on-broken-pipe",
            "0",
        ]
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                tethered(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        port = self._process.stdout.readline()
        if not port:
            raise RuntimeError(f"the peer's Java ended: {self._log_file.read_text()[-3000:]}")
        self.pid = self._process.pid
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=int(port), auto_convert=True))
        self.api = self._gateway.jvm
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gateway.close()
        self._process.kill()
        self._process.communicate()
