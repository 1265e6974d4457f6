"""A host's managed receivers as real processes: started once, ended on command, and dead with their agent."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from executor_agent.receivers import LAST_LINE_CHARACTERS_MAX, Receivers
from forebay.messages import Command, ReceiverProcess
from forebay.model.errors import ForebayError
from forebay.process.clock import ManualClock

#: plays `forebay receiver --id ID`: reports that it is ready, then by its mode drains on SIGTERM, exits with 3, or ignores it
SCRIPT = """
import signal, sys, threading
mode, name = sys.argv[1:]
if mode == "fails":
    print("first line\\n" + name + " can't go on", flush=True)
    sys.exit(3)
if mode == "talks":
    for number in range(20_000):
        print(f"line {number}", flush=True)
    sys.exit(0)
done = threading.Event()
signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "deaf" else lambda *_: done.set())
print("ready", flush=True)
done.wait()
"""


def command(mode: str = "drains") -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", SCRIPT, mode)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def made(clock: ManualClock) -> Iterator[Callable[..., Receivers]]:
    all_made: list[Receivers] = []

    def make(mode: str = "drains", capacity: int = 2) -> Receivers:
        all_made.append(Receivers("s", command(mode), capacity=capacity, stop_seconds=10.0, clock=clock))
        return all_made[-1]

    yield make
    for receivers in all_made:
        for said in receivers.processes():
            if said.running:
                os.kill(said.pid, signal.SIGKILL)
        wait(receivers, lambda all_said: not any(said.running for said in all_said))


def order(kind: str, version: int = 1, receiver_id: str = "s-r0", epoch: int = 7) -> Command:
    return Command(version=version, driver_epoch=epoch, kind=f"{kind}-receiver", receiver_id=receiver_id)


def wait(receivers: Receivers, condition: Callable[[tuple[ReceiverProcess, ...]], bool]) -> tuple[ReceiverProcess, ...]:
    for _ in range(1500):
        if condition(said := receivers.processes()):
            return said
        threading.Event().wait(0.02)
    raise AssertionError(f"the condition did not become true: {receivers.processes()}")


def await_ready(receivers: Receivers, count: int = 1) -> tuple[ReceiverProcess, ...]:
    """Wait until this number of receivers has reported ready: a signal before that would end them without a drain."""

    def ready() -> bool:
        return sum(child.last_line == "ready" for child in receivers._children.values()) == count

    return wait(receivers, lambda _: ready())


def ended(receivers: Receivers) -> ReceiverProcess:
    (said,) = wait(receivers, lambda all_said: not all_said[0].running)
    return said


def test_repeated_start_is_performed_once(made: Callable[..., Receivers]) -> None:
    receivers = made()
    for _ in range(3):
        receivers.obey(order("start"))
    (said,) = await_ready(receivers)
    assert (said.receiver_id, said.driver_epoch, said.version, said.running) == ("s-r0", 7, 1, True)
    receivers.obey(order("start", 2))
    assert receivers.processes()[0].pid == said.pid, "a running receiver is not started a second time"
    os.kill(said.pid, signal.SIGKILL)
    assert ended(receivers).exit_code == -9
    receivers.obey(order("start", 1))
    assert not receivers.processes()[0].running, "a performed start is not repeated: the driver decides on a new one"
    receivers.obey(order("start", 3))
    assert receivers.processes()[0].pid not in (0, said.pid)


def test_stop_drains_and_late_stop_changes_nothing(made: Callable[..., Receivers]) -> None:
    receivers = made()
    receivers.obey(order("start", 5))
    await_ready(receivers)
    receivers.obey(order("stop", 4))
    receivers.obey(order("kill", 4))
    assert receivers.processes()[0].running, "the command is for an earlier start"
    receivers.obey(order("stop", 9))
    assert ended(receivers).exit_code == 0
    receivers.obey(order("stop", 9))
    receivers.obey(order("stop", 9, "s-r1"))


def test_receiver_that_does_not_drain_in_time_is_killed(made: Callable[..., Receivers], clock: ManualClock) -> None:
    """This works while the driver is away too: the agent checks before each heartbeat."""
    receivers = made("deaf")
    receivers.obey(order("start"))
    await_ready(receivers)
    receivers.obey(order("stop"))
    clock.advance(9)
    assert receivers.processes()[0].running
    clock.advance(2)
    assert ended(receivers).exit_code == -9


def test_kill_command_kills_immediately(made: Callable[..., Receivers]) -> None:
    receivers = made("deaf")
    receivers.obey(order("start"))
    await_ready(receivers)
    receivers.obey(order("kill"))
    assert ended(receivers).exit_code == -9


def test_exit_of_a_receiver_is_reported_with_its_last_line(
    made: Callable[..., Receivers], capfd: pytest.CaptureFixture[str]
) -> None:
    receivers = made("fails")
    receivers.obey(order("start"))
    wait(receivers, lambda all_said: all_said[0].last_line == "s-r0 can't go on")
    assert ended(receivers).exit_code == 3
    assert "s-r0 | first line" in capfd.readouterr().err
    assert len(receivers.processes()[0].last_line) <= LAST_LINE_CHARACTERS_MAX


def test_receiver_can_write_and_its_last_line_is_kept_while_the_agents_stderr_has_no_space(
    made: Callable[..., Receivers], monkeypatch: pytest.MonkeyPatch
) -> None:
    receivers = made("talks")
    with io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True) as full:
        monkeypatch.setattr(sys, "stderr", full)
        receivers.obey(order("start"))
        wait(receivers, lambda all_said: all_said[0].last_line == "line 19999")
        assert ended(receivers).exit_code == 0
        monkeypatch.undo()


def test_failed_start_is_reported(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    receivers = Receivers("s", command(), capacity=2, stop_seconds=10.0, clock=clock)
    receivers.obey(order("start"))
    (said,) = receivers.processes()
    assert (said.running, said.exit_code) == (False, None)
    assert "could not be started" in said.last_line


def test_no_more_receivers_run_than_the_capacity(made: Callable[..., Receivers]) -> None:
    receivers = made(capacity=1)
    receivers.obey(order("start", 1, "s-r0"))
    receivers.obey(order("start", 2, "s-r1"))
    assert [said.receiver_id for said in receivers.processes()] == ["s-r0"]


def test_agent_without_a_command_runs_no_receiver(clock: ManualClock) -> None:
    receivers = Receivers("s", (), capacity=4, stop_seconds=10.0, clock=clock)
    assert receivers.capacity == 0
    receivers.obey(order("start"))
    assert receivers.processes() == ()


@pytest.mark.parametrize("receiver_id", ["", "r1", "t-r0", "s-r0/../x", "--help", "s-r0 --config x", "s-r00"])
def test_id_of_another_stream_is_not_started(made: Callable[..., Receivers], receiver_id: str) -> None:
    """A forged driver can only have `forebay receiver` started, and only under such an id."""
    receivers = made()
    with pytest.raises(ForebayError, match="is refused"):
        receivers.obey(order("start", 1, receiver_id))
    assert receivers.processes() == ()


def test_stop_drains_all_kills_the_rest_and_starts_none(made: Callable[..., Receivers], clock: ManualClock) -> None:
    receivers = made()
    receivers.obey(order("start", 1, "s-r0"))
    receivers.obey(order("start", 2, "s-r1"))
    await_ready(receivers, 2)
    receivers.stop()
    assert [said.exit_code for said in receivers.processes()] == [0, 0]
    receivers.obey(order("start", 3, "s-r0"))
    assert not any(said.running for said in receivers.processes())
    assert receivers.capacity == 0
    deaf = Receivers("s", command("deaf"), capacity=2, stop_seconds=0.0, clock=clock)
    deaf.obey(order("start"))
    await_ready(deaf)
    deaf.stop()
    assert deaf.processes()[0].exit_code == -9


def test_receivers_die_with_a_killed_agent(tmp_path: Path) -> None:
    """The kernel kills them: a new agent would not know them."""
    code = (
        "import sys, time; from executor_agent.receivers import Receivers; from forebay.process.clock import SystemClock\n"
        "from forebay.messages import Command\n"
        "receivers = Receivers('s', tuple(sys.argv[1:]), capacity=2, stop_seconds=10.0, clock=SystemClock())\n"
        "receivers.obey(Command(version=1, driver_epoch=1, kind='start-receiver', receiver_id='s-r0'))\n"
        "while receivers._children['s-r0'].last_line != 'ready': time.sleep(0.01)\n"
        "print(receivers.processes()[0].pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *command("deaf")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as agent:
        assert agent.stdout is not None
        pid = int(agent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        agent.kill()
    for _ in range(1500):
        if not running(pid):
            return
        threading.Event().wait(0.02)
    raise AssertionError(f"process {pid} outlives its agent")


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
