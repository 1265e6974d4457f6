"""`forebay up --detach` returns when the services run, and says why they do not."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deploy.supervision.detached import Announcer, start_detached
from deploy.supervision.readiness import ReadySocket
from forebay.settings.reading.load import load
from forebay.settings.schema.constraints import service_address
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.processes.up import status, until


def test_up_in_the_background_runs_until_down(project: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    project.replace("[kafka]", f'data = "{project.folder}"\n[kafka]')
    (project.folder / "jobs.py").write_text("def process(batch):\n    print('batch of', batch.records)\n")
    started = project.forebay("up", "--detach", "--json")
    assert started.returncode == 0, started.stderr
    process = json.loads(started.stdout)["process"]
    logs = project.folder / "logs"
    assert f"runs as process {process}; its page is {url}/, and `forebay down` stops it" in started.stderr
    try:
        assert until(lambda: status(url)).state == "running"
        (project.folder / "lines").write_text("one\ntwo\n")
        assert project.forebay("produce", "--file", "lines").returncode == 0
        until(lambda: "batch of" in (logs / "driver.log").read_text() or None)  # printed by the job
        second = project.forebay("up", "--detach")
        assert (second.returncode, second.stdout) == (5, "")
        assert f"process {process} runs stream 'flights' already" in second.stderr
    finally:
        down = project.forebay("down")
    assert down.returncode == 0 and f"process {process} has stopped" in down.stderr
    assert status(url) is None
    assert {path.name for path in logs.iterdir()} == {"up.log", "driver.log", "agent.log", "receiver-1.log"}
    assert (logs / "up.log").read_text().splitlines()[0].startswith("up | all services are ready")

    # the agent's port is in use: what was started stops again, and nothing is reported as running
    with socket.socket() as taken:
        agent = service_address(load(project.config, {}).agent.url)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(agent)
        taken.listen()
        failed = project.forebay("up", "--detach")
    assert failed.returncode == 2 and f"cannot listen on {agent[0]}:{agent[1]}: the port is in use" in failed.stderr
    assert "runs as process" not in failed.stderr and status(url) is None

    # the job can no longer be imported
    (project.folder / "jobs.py").write_text("import nothing_like_this\n")
    failed = project.forebay("up", "--detach")
    assert failed.returncode == 2
    assert failed.stderr.count("No module named 'nothing_like_this'") == 1, failed.stderr
    assert failed.stderr.endswith("forebay: nothing runs: `forebay up` ended with exit code 2\n")
    assert "Traceback" not in failed.stderr


def test_up_without_java_starts_nothing(project: Any, tmp_path: Path) -> None:
    project.replace('engine = "local"', 'engine = "spark"')
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-m", "forebay_start", "--config", str(project.config), "up"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("forebay: driver.engine = 'spark': no Java found") and done.stderr.count("\n") == 1
    assert not (project.folder / "blocks").exists()


def test_detach_needs_a_folder_for_the_logs(project: Any) -> None:
    done = project.forebay("up", "--detach")
    assert done.returncode == 2 and "name the folder of the logs with --logs DIR" in done.stderr
    (project.folder / "file").touch()
    for mode in ([], ["--detach"]):
        done = project.forebay("up", *mode, "--logs", "file/logs")
        assert done.returncode == 2
        assert re.fullmatch(
            r"forebay: --logs: .*file/logs can't be written: .*file: Not a directory; .*\n", done.stderr
        )


def test_events_are_passed_on_until_the_process_ends(tmp_path: Path) -> None:
    code = (
        "import os; from deploy.supervision.detached import Announcer; a = Announcer(os.environ); "
        "assert 'NOTIFY_SOCKET' not in os.environ; a.event('restart in 1 s'); print('what it prints'); raise SystemExit(0)"
    )
    log, events = tmp_path / "logs" / "up.log", list[str]()
    for _ in range(2):  # what an earlier run printed is not shown again
        started = start_detached([sys.executable, "-c", code], log, events.append)
        assert (started.exit_code, started.printed) == (0, "what it prints\n")
    assert events == ["restart in 1 s"] * 2


def test_announcer_is_silent_without_a_listener() -> None:
    with ReadySocket(lambda: None) as listening:
        environment = dict(listening.environment)
    announcer = Announcer(environment)
    assert environment == {}
    announcer.event("the listener has ended")
    announcer.ready()
    Announcer({}).ready()


def test_interrupted_start_stops_the_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from deploy.supervision.detached import start_detached\n"
        "child = 'import os, pathlib, time; pathlib.Path(\"pid\").write_text(str(os.getpid())); time.sleep(600)'\n"
        "start_detached([sys.executable, '-c', child], Path('up.log'), print)"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE, env=environment
    ) as process:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()
