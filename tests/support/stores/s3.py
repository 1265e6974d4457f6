"""A real S3 server over a folder, which a test starts, kills and restarts."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay.process.tether import tethered
from tests.support.processes.namespaces import Host
from tests.support.run.ports import free_port
from tests.support.stores.versitygw import VERSITYGW

ACCESS_KEY, SECRET_KEY = "forebay-tests", "not-a-secret-of-anything"
#: what a client of it finds in its environment
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
BUCKET = "forebay"
_START_SECONDS = 90.0


class S3Server:
    """``folder`` holds the objects; the bucket ``forebay`` is made in it. Answers at ``url`` once started, on loopback or on
    ``host``.

    This one is versitygw. Another server overrides :meth:`command`, :meth:`own_environment` and :meth:`prepare`.
    """

    def __init__(self, folder: Path, host: Host | None = None) -> None:
        self._host = host
        self._address = "127.0.0.1" if host is None else host.address
        self.objects = folder / "objects"
        self.metadata = folder / "metadata"
        self._log = folder / "server.log"
        self.objects.mkdir(parents=True)
        self.metadata.mkdir()
        self.port = free_port()
        self._prepared = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self._address}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for clients of the server."""
        return ENVIRONMENT

    @property
    def own_environment(self) -> dict[str, str]:
        """Environment variables for the server."""
        return {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}

    def command(self, address: str) -> list[str]:
        """Return the command that serves at ``address`` in the foreground."""
        (self.objects / BUCKET).mkdir(exist_ok=True)
        command = [str(VERSITYGW.binary), "--port", address, "--keep-alive", "--quiet", "posix"]
        return [*command, "--sidecar", str(self.metadata), str(self.objects)]

    def prepare(self) -> None:
        """Make the bucket. Called once, when the server answers for the first time."""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def launch(self) -> None:
        """Start it without waiting until it answers. No error if it runs."""
        if self._process is not None:
            return
        command = self.command(f"{self._address}:{self.port}")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                tethered(command if self._host is None else self._host.command(*command)),
                stdout=log,
                stderr=log,
                env={**os.environ, **self.own_environment},
            )

    def start(self) -> None:
        self.launch()
        deadline = time.monotonic() + _START_SECONDS
        while not self.ready():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the S3 server did not start: {self._log.read_text()[-1500:]}")
            time.sleep(0.02)
        if not self._prepared:
            self.prepare()
            self._prepared = True

    def kill(self) -> None:
        """SIGKILL, as a crash would end it."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Send a signal that does not end it, such as SIGSTOP. No error if it does not run."""
        if self._process is not None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(90)

    def ready(self) -> bool:
        """Return whether it answers."""
        connection = http.client.HTTPConnection(self._address, self.port, timeout=2.0)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True


def options(url: str, **more: Any) -> dict[str, dict[str, Any]]:
    """``Settings.storage`` for the server, or for a proxy before it, at ``url``."""
    return {"s3": {"endpoint_url": url, **more}}


@contextmanager
def s3_server(folder: Path, host: Host | None = None, kind: type[S3Server] = S3Server) -> Iterator[S3Server]:
    server = kind(folder, host)
    server.start()
    try:
        yield server
    finally:
        server.stop()
