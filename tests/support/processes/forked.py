"""Forebay's commands as forks of a process that has imported their modules.

Importing is most of the work of a service's start, and tests start hundreds of services. A fork has a fresh state, its own
environment and working folder, and ends by a signal like any process. It differs from ``forebay`` in a shell in two ways: the
interpreter does not start, and it has no pandas. Tests of a start, and of Spark in the driver, use the command.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, NoReturn

from forebay.process.tether import tethered, tie

#: what the services and the commands that tests run import at their start or at their first work
_MODULES = (
    "attrs", "confluent_kafka.admin", "deploy.commands.inspection.status", "deploy.commands.offsets.group",
    "deploy.commands.recovery.journal", "deploy.commands.recovery.recover", "deploy.commands.running.services",
    "deploy.main", "driver.batches.local_engine", "driver.main", "encodings.idna", "executor_agent.main",
    "forebay.kafka.consume.consumer", "litestar.middleware.allowed_hosts", "litestar.middleware.csrf",
    "litestar.middleware.response_cache", "litestar.plugins.attrs", "receiver.main", "s3fs", "uvicorn.lifespan.off",
    "uvicorn.protocols.http.auto", "uvloop", "wal.storage.objects",
)  # fmt: skip
_SERVICES = ("driver", "receiver", "agent")
_MESSAGE_BYTES_MAX = 1 << 20
_SLICE_SECONDS = 0.05


class Forked:
    """A running command, with the methods of :class:`subprocess.Popen` that tests use."""

    def __init__(self, server: ForkServer, pid: int, number: int) -> None:
        self._server = server
        self.pid = pid
        self._number = number
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.exit_code(self._number)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("forebay", timeout or 0.0)
            self._server.await_message(_SLICE_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process with the imported modules. The kernel kills it, and it its forks, when the thread that made it ends."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._codes: dict[
            int, int
        ] = {}  # by the number of the fork: a run has more forks than the system has process ids
        #: processor time of the forks that have ended
        self.cpu_seconds = 0.0
        with theirs:
            self._process = subprocess.Popen(
                tethered([sys.executable, "-m", __name__]), stdin=theirs.fileno(), cwd=Path(__file__).parents[3]
            )

    def start(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], out: int, error: int
    ) -> Forked:
        """Start ``forebay ARGUMENTS`` in ``folder`` with exactly ``environment``, in a session of its own."""
        task = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment)}
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(task).encode()], [out, error])
            while (message := self._receive()) is None or "started" not in message:
                pass
        return Forked(self, message["started"], message["number"])

    def exit_code(self, number: int) -> int | None:
        """Return the exit code of a fork as Popen has it; None while it runs."""
        with self._lock:
            while select.select([self._channel], [], [], 0)[0]:
                self._receive()
            return self._codes.get(number)

    def close(self) -> None:
        """End it, and kill the forks that still run."""
        self._channel.close()
        self._process.wait()

    def await_message(self, seconds: float) -> None:
        select.select([self._channel], [], [], seconds)

    def _receive(self) -> dict[str, Any] | None:
        data = self._channel.recv(_MESSAGE_BYTES_MAX)
        if not data:
            raise AssertionError(f"the fork server ended with {self._process.wait()}")
        message: dict[str, Any] = json.loads(data)
        if "ended" in message:
            self._codes[message["ended"]] = message["code"]
            self.cpu_seconds += message["cpu_seconds"]
        return message


_server: ForkServer | None = None


def server() -> ForkServer:
    """Return the fork server of this process, started at the first call."""
    global _server
    if _server is None:
        _server = ForkServer()
    return _server


def run(
    arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run ``forebay ARGUMENTS`` as ``subprocess.run`` does, and return its exit code and output."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        process = server().start(
            arguments, folder=folder, environment=environment, out=out.fileno(), error=error.fileno()
        )
        try:
            code = process.wait(seconds)
        finally:
            process.kill()
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(("forebay", *arguments), code, out.read(), error.read())


def close() -> None:
    """End the fork server of this process, if there is one."""
    global _server
    if _server is not None:
        _server.close()
        _server = None


def cpu_seconds() -> float:
    """Return the processor time of all forks that have ended."""
    return 0.0 if _server is None else _server.cpu_seconds


# ---- the process with the imports ------------------------------------------------------------------------------------


def _serve(channel: socket.socket) -> None:
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    numbers: dict[int, int] = {}  # process id → number, of the forks that run
    for count in itertools.count():
        ready = select.select([channel, woken], [], [])[0]
        if woken in ready:
            woken.recv(4096)
            _report_ended(channel, numbers)
        if channel in ready:
            data, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES_MAX, 2)
            if not data:
                return
            parent = os.getpid()
            pid = os.fork()
            if not pid:
                for end in (channel, woken, wakes):
                    end.close()
                _run(parent, descriptors, **json.loads(data))
            for descriptor in descriptors:
                os.close(descriptor)
            numbers[pid] = count
            channel.send(json.dumps({"started": pid, "number": count}).encode())


def _report_ended(channel: socket.socket, numbers: dict[int, int]) -> None:
    while True:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        code = os.waitstatus_to_exitcode(status)
        ended = {"ended": numbers.pop(pid), "code": code, "cpu_seconds": used.ru_utime + used.ru_stime}
        channel.send(json.dumps(ended).encode())


def _run(
    parent: int, descriptors: Sequence[int], arguments: Sequence[str], folder: str, environment: Mapping[str, str]
) -> NoReturn:
    """Become the command, in the fork."""
    code = 1
    try:
        tie(parent, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        # the name that `ps` and tests.support.run.profile show
        Path("/proc/self/comm").write_text(next((name for name in arguments if name in _SERVICES), "command"))
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in zip((nothing, *descriptors), (0, 1, 2), strict=True):
            if source != target:
                os.dup2(source, target)
                os.close(source)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
        faulthandler.enable()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
        sys.argv = ["forebay", *arguments]
        from forebay.process import failpoints

        failpoints.arm(environment.get("FOREBAY_FAILPOINTS", ""), environment.get("FOREBAY_FAILPOINT_DIR"))
        from forebay_start import main

        code = main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _finalize(code)


def _finalize(code: int) -> NoReturn:
    """End as the interpreter does: wait for threads, run what libraries registered for the exit, flush."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


class _NoPandas(MetaPathFinder):
    """pyarrow imports pandas wherever it finds it: a second, for nothing. (None in ``sys.modules`` would be taken for pandas.)"""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("not needed", name=name)


def main() -> None:
    sys.meta_path.insert(0, _NoPandas())
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork leaves these objects' pages shared
    _serve(socket.socket(fileno=0))


if __name__ == "__main__":
    main()
