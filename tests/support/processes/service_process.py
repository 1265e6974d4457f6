"""A driver or an agent in a separate process, so that a test sees its memory and its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from forebay.http.client import Client
from forebay.model.errors import ForebayError
from forebay.process.tether import tethered
from forebay.security.access import Access
from forebay.settings.reading.load import load
from tests.support.run.ports import free_port
from tests.support.run.wheel import ROOT

TOKEN = "a-token-of-all-roles"
#: longer than any answer takes; a hang is a failure
HANG_SECONDS = 60.0
#: a freed body goes back to the system immediately; otherwise the C library keeps some for each thread
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "1000000"}


@dataclass(frozen=True, slots=True)
class Service:
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def memory_bytes(self) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        client = Client(self.url, HANG_SECONDS, Access(token=TOKEN))
        try:
            return client.request(method, path, body)
        finally:
            client.close()

    def await_running(self) -> None:
        """Until it takes requests: of a driver, until it leads."""
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            try:
                answer = msgspec.json.decode(self.ask("GET", "/v1/status"))
                if answer.get("state", "running") == "running":
                    return
            except ForebayError:
                pass
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


def configured(folder: Path, topics: Sequence[str], broker: str) -> Path:
    """A configuration of a stream ``s`` of ``topics``, whose services want :data:`TOKEN`."""
    tokens, configuration = folder / "tokens", folder / "forebay.toml"
    tokens.touch(mode=0o600)
    tokens.write_text(TOKEN + "\n")
    (folder / "jobs.py").write_text("def nothing(batch):\n    pass\n")
    configuration.write_text(f"""
stream = "s"
[kafka]
topics = {json.dumps(topics)}
"bootstrap.servers" = "{broker}"
[wal]
url = "file://{folder}/wal"
[driver]
journal = "file://{folder}/journal"
url = "http://127.0.0.1:{free_port()}"
engine = "local"
job = "jobs:nothing"
batch_interval = "200ms"
lease_duration = "2s"
[agent]
blocks = "{folder}/blocks"
url = "http://127.0.0.1:{free_port()}"
host = "h1"
[security]
token_file = "{tokens}"
""")
    return configuration


@contextmanager
def running(configuration: Path, kind: str) -> Iterator[Service]:
    """``kind``: driver or agent. Takes requests when it is given."""
    settings = load(configuration)
    folder = configuration.parent
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            tethered([sys.executable, "-m", "deploy.main", "--config", str(configuration), kind]),
            stdout=log, stderr=log, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **GIVEN_BACK},
        )  # fmt: skip
    try:
        service = Service(str((settings.driver if kind == "driver" else settings.agent).url), process, folder / "log")
        service.await_running()
        yield service
    finally:
        process.terminate()
        process.wait()
