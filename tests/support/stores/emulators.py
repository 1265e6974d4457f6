"""Emulators of Google Cloud Storage (fake-gcs-server, built from its Go module) and Azure Blob Storage (Azurite, from npm).

``python -m tests.support.stores.emulators`` brings both into the cache (make services, make test in CI).
"""

from __future__ import annotations

import abc
import contextlib
import http.client
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from forebay.kafka.embedded.jars import cache_directory
from forebay.model.errors import UsageError
from forebay.process.tether import tethered
from tests.support.run.ports import free_port
from tests.support.servers import debian
from tests.support.servers.go_module import GoModule

FAKE_GCS = GoModule("github.com/fsouza/fake-gcs-server", "1.56.1")
AZURITE_VERSION = "3.35.0"
#: of Azurite's own account, which its documentation names
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
PLACE = "forebay"
_START_SECONDS, _FETCH_SECONDS = 90.0, 600.0


def azurite() -> Path:
    """Return the path of Azurite's program once it is fetched."""
    return cache_directory() / f"azurite-{AZURITE_VERSION}" / "node_modules" / ".bin" / "azurite-blob"


def fetch_azurite() -> Path:
    """Fetch Azurite if needed, and return its path. Raises UsageError that says what failed."""
    target = azurite()
    if target.exists():
        return target
    npm = shutil.which("npm")
    if npm is None:
        raise UsageError("Azurite needs Node.js with npm on PATH: install Debian's packages nodejs and npm")
    folder = target.parents[2]
    work = folder.with_name(f"{folder.name}.work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(work), f"azurite@{AZURITE_VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
    if done.returncode != 0:
        raise UsageError(f"Azurite could not be fetched: {(done.stdout + done.stderr).strip()[-1500:]}")
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)
    return target


class Emulator(abc.ABC):
    """A server on loopback over ``folder``; answers once started."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._data = folder / "data"
        self._data.mkdir(parents=True)
        self._log = folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @abc.abstractmethod
    def command(self) -> list[str]:
        """Return the command that serves in the foreground."""

    @property
    @abc.abstractmethod
    def options(self) -> dict[str, dict[str, Any]]:
        """``Settings.storage`` for the server."""

    @property
    def environment(self) -> dict[str, str]:
        """What a client's process needs."""
        return {}

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(tethered(self.command()), stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        while self.ask("GET", "/") is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.end(signal.SIGKILL)
                raise AssertionError(f"{self.name} did not start: {self._log.read_text()[-1500:]}")
            time.sleep(0.02)

    def restart(self) -> None:
        self.end()
        self.start()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(90)

    def ask(self, method: str, path: str, body: bytes | None = None) -> int | None:
        """Return the status of the answer; None without one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5.0)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return answer.status


class GcsServer(Emulator):
    name = "fake-gcs-server"

    def command(self) -> list[str]:
        place = f"127.0.0.1:{self.port}"
        return [
            str(FAKE_GCS.binary), "-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port), "-public-host", place,
            "-backend", "filesystem", "-filesystem-root", str(self._data), "-log-level", "warn",
        ]  # fmt: skip

    def start(self) -> None:
        super().start()
        status = self.ask("POST", "/storage/v1/b?project=tests", json.dumps({"name": PLACE}).encode())
        assert status in (200, 409), status  # 409: since a start before

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        return {"gs": {"endpoint_url": f"http://127.0.0.1:{self.port}", "token": "anon", "project": "tests"}}


class AzureServer(Emulator):
    name = "azurite"

    def command(self) -> list[str]:
        return [
            str(azurite()), "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self._data),
            "--silent", "--skipApiVersionCheck",
        ]  # fmt: skip

    def start(self) -> None:
        super().start()
        from azure.core.exceptions import ResourceExistsError
        from azure.storage.blob import BlobServiceClient

        client = BlobServiceClient.from_connection_string(self.connection)
        with client, contextlib.suppress(ResourceExistsError):  # since a start before
            client.create_container(PLACE)

    @property
    def environment(self) -> dict[str, str]:
        return {"AZURE_STORAGE_CONNECTION_STRING": self.connection}

    @property
    def connection(self) -> str:
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};"
            f"BlobEndpoint=http://127.0.0.1:{self.port}/{ACCOUNT};"
        )

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        return {}


def bring() -> None:
    print(FAKE_GCS.build())
    print(fetch_azurite())


if __name__ == "__main__":
    sys.exit(debian.main(bring))
