"""The supervisor with stub children: real processes that do what a line of Python says."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.supervision.supervisor import ChildSpec, LogLines, Supervisor
from forebay.model.errors import StoreError
from forebay.process.restarts import RestartPolicy

QUICK = RestartPolicy(first_delay_seconds=0.01, max_delay_seconds=0.05)
WAIT_SECONDS = 90.0


class Messages:
    """What the supervisor said; :meth:`wait` returns when a sentence holds ``part``, ``times`` times."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, message: str) -> None:
        with self._changed:
            self.sentences.append(message)
            self._changed.notify_all()

    def wait(self, part: str, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count(part) >= times, WAIT_SECONDS), self.sentences

    def count(self, part: str) -> int:
        return sum(part in sentence for sentence in self.sentences)


class Lines(io.StringIO):
    """A stream that says when a text was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def write(self, text: str) -> int:
        with self._changed:
            length = super().write(text)
            self._changed.notify_all()
            return length

    def wait(self, part: str, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.getvalue().count(part) >= times, WAIT_SECONDS), self.getvalue()


def child(name: str, code: str, rank: int = 0, stop_seconds: float = 20.0) -> ChildSpec:
    return ChildSpec(name, (sys.executable, "-u", "-c", code), rank, stop_seconds)


#: says "ready", then ends with 0 at SIGTERM after having said "drained"
OBEDIENT = """
import signal, sys, time
def end(*_):
    print("drained"); sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready")
while True:
    time.sleep(0.02)  # a pause would miss a signal that came just before it
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready')\nwhile True: signal.pause()"


@contextmanager
def running(supervisor: Supervisor) -> Iterator[Callable[[], int]]:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(supervisor.run()))
    thread.start()

    def ended() -> int:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
        return codes[0]

    try:
        yield ended
    finally:
        supervisor.stop()
        supervisor.stop()
        thread.join(WAIT_SECONDS)


def test_a_killed_child_is_started_again_as_a_new_process() -> None:
    messages, lines = Messages(), Lines()
    supervisor = Supervisor([child("a", OBEDIENT)], policy=QUICK, say=messages, logs=LogLines(stream=lines))
    with running(supervisor) as ended:
        lines.wait("a | ready")
        first = supervisor.pid("a")
        assert supervisor.kill("a")
        lines.wait("a | ready", times=2)
        assert supervisor.pid("a") not in (None, first)
        supervisor.stop()
        assert ended() == 0
    assert messages.count("a was killed by SIGKILL after") == 1
    assert messages.count("a was restarted") == 1


def test_a_child_that_the_system_does_not_start_is_tried_again_and_the_others_run_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages, lines = Messages(), Lines()
    supervisor = Supervisor(
        [child("a", OBEDIENT), child("b", OBEDIENT)], policy=QUICK, say=messages, logs=LogLines(stream=lines)
    )
    with running(supervisor) as ended:
        lines.wait("a | ready")
        lines.wait("b | ready")
        other = supervisor.pid("b")

        def none_left(*arguments: object, **options: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(subprocess, "Popen", none_left)
        assert supervisor.kill("a")
        messages.wait("a cannot be started: [Errno 24] Too many open files: trying again in 0.05 s", times=2)
        monkeypatch.undo()
        lines.wait("a | ready", times=2)
        assert supervisor.pid("b") == other
        supervisor.stop()
        assert ended() == 0


def test_nothing_is_left_running_if_a_child_cannot_be_started_at_first(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "b.log").mkdir(parents=True)
    supervisor = Supervisor([child("a", OBEDIENT), child("b", OBEDIENT)], logs=LogLines(folder=logs))
    with pytest.raises(StoreError, match=r"b cannot be started: .*b\.log"):
        supervisor.run()
    process = supervisor._named("a").process
    assert process is not None and process.wait(WAIT_SECONDS) == -signal.SIGKILL


def test_a_child_that_fails_again_and_again_is_started_with_growing_delay() -> None:
    messages = Messages()
    policy = RestartPolicy(first_delay_seconds=0.01, max_delay_seconds=0.04)
    supervisor = Supervisor([child("a", "import sys; sys.exit(1)")], policy=policy, say=messages)
    with running(supervisor) as ended:
        messages.wait("restart in 0.04 s", times=2)
        supervisor.stop()
        assert ended() == 0
    delays = [sentence.rsplit(" in ", 1)[1] for sentence in messages.sentences if "restart in" in sentence]
    assert delays[:4] == ["0.01 s", "0.02 s", "0.04 s", "0.04 s"]


def test_fenced_child_is_not_restarted_and_the_others_continue() -> None:
    """INV-4."""
    messages, lines = Messages(), Lines()
    supervisor = Supervisor(
        [child("fenced", "import sys; sys.exit(4)"), child("other", OBEDIENT)],
        policy=QUICK,
        say=messages,
        logs=LogLines(stream=lines),
    )
    with running(supervisor) as ended:
        messages.wait("fenced was fenced (exit code 4) and is not restarted")
        lines.wait("other | ready")
        # a restart of the other one comes after any restart of the fenced one could have come
        supervisor.kill("other")
        lines.wait("other | ready", times=2)
        assert supervisor.pid("fenced") is None
        supervisor.stop()
        assert ended() == 4
    assert messages.count("fenced was restarted") == 0
    assert lines.getvalue().count("other | drained") == 1


class SlowLines(Lines):
    """A terminal that takes its time for each line."""

    def write(self, text: str) -> int:
        time.sleep(0.3)
        return super().write(text)


def test_run_returns_after_the_last_lines_of_its_children_are_written() -> None:
    """INV-5: why a service ended is usually its last line."""
    lines = SlowLines()
    code = "print('first'); print('last words', flush=True); import sys; sys.exit(2)"
    supervisor = Supervisor([child("a", code)], policy=QUICK, logs=LogLines(stream=lines))
    with running(supervisor) as ended:
        assert ended() == 2
        assert lines.getvalue() == "a | first\na | last words\n"


def test_child_can_write_while_the_stream_of_its_lines_has_no_space() -> None:
    with io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True) as full:
        code = "for number in range(20_000): print(number, flush=True)"
        supervisor = Supervisor([child("a", code)], policy=QUICK, logs=LogLines(stream=full))
        with running(supervisor) as ended:
            assert ended() == 0


def test_wrong_use_of_one_child_stops_all_with_its_exit_code() -> None:
    messages, lines = Messages(), Lines()
    wrong = child("wrong", "import sys; sys.stdin.read(); sys.exit(2)")
    supervisor = Supervisor([child("a", OBEDIENT), wrong], policy=QUICK, say=messages, logs=LogLines(stream=lines))
    with running(supervisor) as ended:
        assert ended() == 2
    assert messages.count("is not restarted: all children share the configuration") == 1
    assert messages.count("was restarted") == 0


def test_children_stop_by_rank_and_each_rank_waits_for_the_one_before() -> None:
    lines = Lines()
    # the first to stop takes its time, and the later rank must not have begun to stop by then. Each tells the time, since lines
    # of different children may overtake each other
    timed = OBEDIENT.replace('print("drained")', 'import time; print(time.monotonic_ns(), "drained")')
    slow = timed.replace("import time;", "import time; time.sleep(0.3);")
    supervisor = Supervisor(
        [child("driver", timed, rank=1), child("agent", timed, rank=2), child("receiver", slow, rank=0)],
        logs=LogLines(stream=lines),
    )
    with running(supervisor) as ended:
        lines.wait("ready", times=3)
        supervisor.stop()
        assert ended() == 0
        lines.wait("drained", times=3)
    drained = [line.split(" | ") for line in lines.getvalue().splitlines() if line.endswith("drained")]
    in_time = sorted(drained, key=lambda parts: int(parts[1].split()[0]))
    assert [name for name, _ in in_time] == ["receiver", "driver", "agent"]


def test_a_second_request_to_stop_kills_what_is_left() -> None:
    messages, lines = Messages(), Lines()
    supervisor = Supervisor([child("a", STUBBORN, stop_seconds=1000)], say=messages, logs=LogLines(stream=lines))
    with running(supervisor) as ended:
        lines.wait("ready")
        supervisor.stop()
        messages.wait("stopping")
        supervisor.stop()
        assert ended() == 0
    assert messages.count("killing the remaining services") == 1


def test_a_child_that_does_not_stop_in_its_time_is_killed() -> None:
    """INV-6."""
    messages, lines = Messages(), Lines()
    supervisor = Supervisor([child("a", STUBBORN, stop_seconds=0.05)], say=messages, logs=LogLines(stream=lines))
    with running(supervisor) as ended:
        lines.wait("ready")
        supervisor.stop()
        assert ended() == 0
    assert messages.count("a did not stop within 0.05 s: killing it") == 1


def test_lines_go_to_a_file_for_each_child_where_a_folder_is_named(tmp_path: Path) -> None:
    supervisor = Supervisor(
        [child("a", "print('one')"), child("b", "import sys; print('two', file=sys.stderr)")],
        logs=LogLines(tmp_path / "logs"),
    )
    assert supervisor.run() == 0
    assert (tmp_path / "logs/a.log").read_text() == "one\n"
    assert (tmp_path / "logs/b.log").read_text() == "two\n"


def test_processes_of_a_dead_child_are_killed(tmp_path: Path) -> None:
    """A crashed driver's JVM would keep the ports that the next one needs."""
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print('grandchild', p.pid)\n"
        "sys.exit(4)"
    )
    lines = Lines()
    supervisor = Supervisor([child("a", code)], logs=LogLines(stream=lines))
    assert supervisor.run() == 4
    lines.wait("grandchild")
    pid = int(lines.getvalue().split()[-1])
    assert gone(pid)


def test_children_die_with_a_killed_supervisor() -> None:
    code = (
        "import sys\n"
        "from deploy.supervision.supervisor import *\n"
        f"Supervisor([ChildSpec('a', (sys.executable, '-u', '-c', {STUBBORN!r}))]).run()"
    )
    script = code.replace("print('ready')", "import os; print(os.getpid())")
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process, process.stderr:
        pid = int(process.stderr.readline().split(" | ")[1])
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert gone(pid)


def gone(pid: int) -> bool:
    """Waits until process ``pid`` has ended; it is not our child, so its end is asked for by a descriptor."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    import select

    try:
        return bool(select.select([descriptor], [], [], WAIT_SECONDS)[0])
    finally:
        os.close(descriptor)


#: the child that goes first: says that it is ready once the file named in its environment is there
FIRST = """
import os, pathlib, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("first runs")
ready = False
while True:
    if not ready and pathlib.Path(os.environ["MAY"]).exists():
        ready = True
        line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        line.sendto(b"STATUS=running\\nREADY=1", os.environ["NOTIFY_SOCKET"].replace("@", chr(0), 1))
    time.sleep(0.02)
"""


def first(code: str) -> ChildSpec:
    return ChildSpec("first", (sys.executable, "-u", "-c", code), stop_rank=1, goes_first=True)


def test_children_start_when_the_first_one_is_ready(tmp_path: Path) -> None:
    """However often the first one ends before."""
    messages, lines = Messages(), Lines()
    supervisor = Supervisor(
        [first(FIRST), child("a", OBEDIENT), child("b", OBEDIENT)],
        policy=QUICK,
        say=messages,
        logs=LogLines(stream=lines),
        environment={**os.environ, "MAY": str(tmp_path / "may")},
    )
    with running(supervisor) as ended:
        lines.wait("first runs")
        assert supervisor.kill("first")
        lines.wait("first runs", times=2)
        assert supervisor.pid("a") is None and supervisor.pid("b") is None
        (tmp_path / "may").touch()
        lines.wait("a | ready")
        lines.wait("b | ready")
        assert supervisor.kill("first")
        lines.wait("first runs", times=3)
        supervisor.stop()
        assert ended() == 0
    assert lines.getvalue().count("| ready") == 2, "ready again starts nothing again"
    assert lines.getvalue().count("| drained") == 2


#: a child that says that it is ready, or exits with a code
REPORTS = """
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
print("reports", flush=True)
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", os.environ["NOTIFY_SOCKET"].replace("@", chr(0), 1))
while True:
    time.sleep(0.02)
"""


def reporting(name: str, *arguments: str) -> ChildSpec:
    return ChildSpec(name, (sys.executable, "-u", "-c", REPORTS, *arguments))


def test_all_are_ready_when_each_child_has_reported_or_stays_down(tmp_path: Path) -> None:
    messages, lines, ready = Messages(), Lines(), threading.Event()
    (tmp_path / "may").touch()
    supervisor = Supervisor(
        [first(FIRST), reporting("a"), reporting("b"), reporting("fenced", "4")],
        policy=QUICK,
        say=messages,
        ready=ready.set,
        logs=LogLines(stream=lines),
        environment={**os.environ, "MAY": str(tmp_path / "may")},
    )
    with running(supervisor) as ended:
        assert ready.wait(WAIT_SECONDS)
        for name in ("a", "b"):  # another thread reads what they print
            lines.wait(f"{name} | reports")
        assert lines.getvalue().count("reports") == 2
        supervisor.stop()
        assert ended() == 4


def test_all_are_not_ready_while_a_child_fails(tmp_path: Path) -> None:
    messages, lines, ready = Messages(), Lines(), threading.Event()
    (tmp_path / "may").touch()
    supervisor = Supervisor(
        [first(FIRST), reporting("a"), reporting("b", "1")],
        policy=QUICK,
        say=messages,
        ready=ready.set,
        logs=LogLines(stream=lines),
        environment={**os.environ, "MAY": str(tmp_path / "may")},
    )
    with running(supervisor) as ended:
        messages.wait("b failed (exit code 1)", times=3)
        lines.wait("a | reports")
        supervisor.stop()
        assert ended() == 0
    assert not ready.is_set()


def test_children_are_not_started_when_the_first_one_finds_the_stream_running() -> None:
    messages, lines = Messages(), Lines()
    busy = first("import sys; sys.exit(5)")
    supervisor = Supervisor([busy, child("a", OBEDIENT)], policy=QUICK, say=messages, logs=LogLines(stream=lines))
    with running(supervisor) as ended:
        assert ended() == 5
    assert messages.count("first found the stream already running (exit code 5) and is not restarted") == 1
    assert lines.getvalue() == ""


def test_first_child_that_was_replaced_later_is_restarted(tmp_path: Path) -> None:
    messages, lines = Messages(), Lines()
    (tmp_path / "may").touch()
    over = tmp_path / "over"
    code = f"{FIRST}    if ready and pathlib.Path({str(over)!r}).exists(): sys.exit(5)\n"
    supervisor = Supervisor(
        [first(code), child("a", OBEDIENT)],
        policy=QUICK,
        say=messages,
        logs=LogLines(stream=lines),
        environment={**os.environ, "MAY": str(tmp_path / "may")},
    )
    with running(supervisor) as ended:
        lines.wait("a | ready")
        over.touch()
        messages.wait("first found another process in its place (exit code 5) after")
        lines.wait("first runs", times=2)
        assert supervisor.pid("a") is not None
        supervisor.stop()
        assert ended() == 0
