"""How an agent's process starts, is watched and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from executor_agent.main import Agent
from forebay.http.address import reached_at
from forebay.model.errors import SettingsError, UsageError
from forebay.settings.reading.load import from_values
from tests.support.state.stored import Stored

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_unwritable_directory_ends_the_start_with_one_message(stored: Stored) -> None:
    stored.blocks_directory.touch()
    with pytest.raises(UsageError, match=r"agent\.blocks"), Agent(stored.settings()):
        pass


def test_invalid_host_name_is_refused(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = stored.settings()
    settings = msgspec.structs.replace(settings, agent=msgspec.structs.replace(settings.agent, host="../up"))
    with pytest.raises(SettingsError, match=r"agent\.host"), Agent(settings):
        pass


def test_agent_on_all_addresses_is_reached_by_its_host_name() -> None:
    assert reached_at("http://0.0.0.0:7081", "h1") == "http://h1:7081"
    assert reached_at("http://10.0.0.7:7081", "h1") == "http://10.0.0.7:7081"


def served(stored: Stored) -> dict[str, Any]:
    """Return the configuration of an agent as a process."""
    return {
        "stream": "s",
        "kafka": {"topics": ["t"], "bootstrap.servers": "127.0.0.1:1"},
        "wal": {"url": stored.wal_url},
        "driver": {"journal": f"file://{stored.root}/journal", "url": "http://127.0.0.1:9"},
        "agent": {"blocks": str(stored.blocks_directory), "url": "http://127.0.0.1:0", "host": "h1"},
    }


def test_agent_on_loopback_beside_drivers_of_other_hosts_logs_it(
    stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    raw = served(stored)
    raw["driver"]["urls"] = ["http://a.invalid:7080"]
    with Agent(from_values(raw)):
        assert caplog.text.count('set agent.url = "http://0.0.0.0:0"') == 1


def test_process_reports_ready_and_sigterm_ends_it_with_0(stored: Stored) -> None:
    code = (
        "import sys; from executor_agent.main import run; from forebay.settings.reading.load import from_values\n"
        "import msgspec\n"
        "sys.exit(run(from_values(msgspec.json.decode(sys.argv[1]))))\n"
    )
    raw = served(stored)
    with subprocess.Popen(
        [sys.executable, "-c", code, msgspec.json.encode(raw).decode()],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    ) as process:
        assert process.stderr is not None
        ready = f": serves {stored.blocks_directory} at http://127.0.0.1:"
        assert any(ready in line for line in process.stderr)  # a warning about the driver may come before
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0


def test_heartbeat_thread_that_breaks_ends_the_process_with_1(stored: Stored) -> None:
    """INV-5: an agent that serves without heartbeats would keep its blocks and receivers from every driver."""
    code = (
        "import sys; from unittest import mock; from executor_agent.main import run; import msgspec\n"
        "from executor_agent.service import Heartbeat; from forebay.settings.reading.load import from_values\n"
        "with mock.patch.object(Heartbeat, 'beat', side_effect=TypeError('a fault')):\n"
        "    sys.exit(run(from_values(msgspec.json.decode(sys.argv[1]))))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, msgspec.json.encode(served(stored)).decode()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, "the heartbeat thread failed" in done.stderr) == (1, True), done.stderr


def test_second_signal_ends_the_process_immediately() -> None:
    """INV-6: receivers that do not drain must not prevent the exit. Here the stop of the receivers never ends."""
    code = (
        "import signal, sys, time; from unittest import mock; import executor_agent.main as main\n"
        "class Agent:\n"
        "    store = mock.Mock()\n"
        "    url = 'http://127.0.0.1:1'\n"
        "    def __init__(self, *_): pass\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *_):\n"
        "        print('stopping', flush=True)\n"
        "        while True: time.sleep(0.02)\n"  # signal.pause would miss a signal that came just before it
        "signal.alarm(120)\n"
        "with mock.patch.object(main, 'Agent', Agent):\n"
        "    main.run(mock.Mock(**{'log.format': 'console', 'log.level': 'info', 'stream': 's'}))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert any(": serves " in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == -signal.SIGINT
