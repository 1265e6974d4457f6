"""nginx, the static file server with which the agent is compared: from PATH, or Debian's package unpacked into the cache.

The unpacked package starts no service. ``python -m tests.support.nginx`` fetches it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay.process.tether import tethered
from tests.support import debian
from tests.support.ports import free_port

_PACKAGE, _PATH = "nginx", "usr/sbin/nginx"
_START_SECONDS = 60.0

_CONFIGURATION = """
daemon off;
{user}
worker_processes {workers};
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 1000000;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


def binary() -> Path | None:
    """None where there is none yet."""
    return debian.found(_PACKAGE, _PATH)


def fetch() -> Path:
    """Raises UsageError that says what failed."""
    return debian.unpacked(_PACKAGE, _PATH)


@contextmanager
def static_server(folder: Path, root: Path, workers: int = 2) -> Iterator[tuple[str, int]]:
    """Files of ``root`` at the url given, with its master's process id; ``folder``: for its own files. Raises UsageError."""
    executable = fetch()
    port = free_port()
    folder.mkdir(parents=True)
    configuration = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    configuration.write_text(_CONFIGURATION.format(user=user, workers=workers, folder=folder, root=root, port=port))
    command = (str(executable), "-p", str(folder), "-c", str(configuration), "-e", str(folder / "error.log"))
    with subprocess.Popen(
        tethered(command, signal.SIGTERM), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            process.wait(_START_SECONDS)


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(fetch())))
