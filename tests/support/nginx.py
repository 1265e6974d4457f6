"""nginx, the static file server with which the agent is compared: from PATH, or Debian's package unpacked into the cache.

The unpacked package starts no service. ``python -m tests.support.nginx`` fetches it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay.kafka.embedded.jars import cache_directory
from forebay.model.errors import UsageError
from forebay.process.tether import tethered
from tests.support import debian
from tests.support.ports import free_port

_PACKAGE = "nginx"
_FETCH_SECONDS = 300.0
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
    fetched = cache_directory() / "nginx" / "usr" / "sbin" / "nginx"
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    return Path(found) if found else fetched if fetched.exists() else None


def fetch() -> Path:
    """Raises UsageError that says what failed."""
    found = binary()
    if found is not None:
        return found
    target = cache_directory() / "nginx"
    work = target.with_name(f"nginx.{os.getpid()}")
    work.mkdir(parents=True)
    try:
        try:
            _run(work, "apt-get", "download", _PACKAGE)
        except UsageError:
            if os.geteuid() != 0:
                raise
            _run(work, "apt-get", "update", "-qq")
            _run(work, "apt-get", "download", _PACKAGE)
        (package,) = work.glob("*.deb")
        _run(work, "dpkg", "-x", package.name, "unpacked")
        shutil.rmtree(target, ignore_errors=True)
        (work / "unpacked").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    found = binary()
    if found is None:
        raise UsageError(f"the package {_PACKAGE} contains no nginx: install it, or name one on PATH")
    return found


def _run(folder: Path, *command: str) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_FETCH_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        words = getattr(error, "stderr", None) or error
        raise UsageError(
            f"nginx can't be fetched ({' '.join(command)}: {str(words).strip()}): install {_PACKAGE}"
        ) from None


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
