"""nginx, as the static file server with which the agent is compared, and as a proxy before an S3 server: from PATH, or Debian's
package unpacked into the cache.

The unpacked package starts no service. ``python -m tests.support.servers.nginx`` fetches it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay.process.tether import tethered
from tests.support.run.ports import free_port
from tests.support.servers import debian

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
    {servers}
}}
"""
_FILES = "server {{ listen 127.0.0.1:{port}; root {root}; }}"
#: it reads a whole body before it sends it on, and tries a request again at the other port if the first one does not answer
_PROXY = """
    upstream store {{ server 127.0.0.1:{first} max_fails=0; server 127.0.0.1:{second} max_fails=0; }}
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 0;
        location / {{
            proxy_pass http://store;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_request_buffering on;
            proxy_buffering on;
            proxy_next_upstream error timeout non_idempotent;
            proxy_ignore_client_abort on;
        }}
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
    port = free_port()
    with _running(folder, _FILES.format(port=port, root=root), workers) as pid:
        yield f"http://127.0.0.1:{port}", pid


@contextmanager
def repeating_proxy(folder: Path, first: int, second: int) -> Iterator[int]:
    """Yield the port of a proxy that sends requests to two ports of this machine in turn. If one does not answer, it sends the
    request again to the other. Raises UsageError."""
    port = free_port()
    with _running(folder, _PROXY.format(port=port, first=first, second=second), workers=1):
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (folder / "error.log").read_text()[-1500:]
                time.sleep(0.02)
        yield port


@contextmanager
def _running(folder: Path, servers: str, workers: int) -> Iterator[int]:
    executable = fetch()
    folder.mkdir(parents=True)
    configuration = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    configuration.write_text(_CONFIGURATION.format(user=user, workers=workers, folder=folder, servers=servers))
    command = (str(executable), "-p", str(folder), "-c", str(configuration), "-e", str(folder / "error.log"))
    with subprocess.Popen(
        tethered(command, signal.SIGTERM), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(_START_SECONDS)


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(fetch())))
