"""The lease: a courtesy between drivers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from driver.journal.leadership.lease import (
    Lease,
    LeaseKeeper,
    LeaseWatch,
    await_end_of,
    await_tasks_of,
    is_gone,
    lease_path,
    left_behind,
    read_lease,
    stand_by,
    wait_until_stale,
)
from driver.journal.leadership.processes import process_start
from forebay.model.errors import FencedError, OutOfSpaceError, StoreError
from forebay.process.clock import ManualClock, SystemClock
from wal.storage import MemoryStorage
from wal.storage.local import LocalStorage


class Away(MemoryStorage):
    """Refuses the first reads after ``fail``."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self._error = error
        self.failures = 0
        self.failed = threading.Event()

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if self.failures:
            self.failures -= 1
            self.failed.set()
            raise self._error
        return super().read(path, offset, length)


@pytest.mark.parametrize("error", [StoreError("the store is away"), MemoryError()], ids=repr)
def test_a_failed_renewal_does_not_end_the_renewals(error: Exception) -> None:
    """Otherwise a running driver would look like one that has ended."""
    storage = Away("memory://lease", error)
    keeper = LeaseKeeper(storage, "s", 1, owner="me", url="", duration_seconds=0.03)
    keeper.start()
    storage.failures = 1
    assert storage.failed.wait(30)
    before = read_lease(storage, "s")
    assert before is not None
    for _ in range(1000):
        now = read_lease(storage, "s")
        assert now is not None
        if now.beat > before.beat:
            break
        threading.Event().wait(0.02)
    keeper.stop()
    assert now is not None and now.beat > before.beat


def lease(beat: int, owner: str = "first", duration_seconds: float = 10.0) -> Lease:
    return Lease(1, owner, "another-host", 1, "", beat, duration_seconds, "http://first")


@pytest.mark.parametrize(
    ("looks", "leads"),
    [
        ([(0.0, None)], True),
        ([(0.0, lease(1))], False),
        ([(0.0, lease(1)), (9.9, lease(1))], False),
        ([(0.0, lease(1)), (10.0, lease(1))], True),
        ([(0.0, lease(1)), (9.9, lease(2)), (10.0, lease(2)), (19.8, lease(2))], False),
        ([(0.0, lease(1)), (9.9, lease(1, "second")), (10.1, lease(1, "second"))], False),
        ([(0.0, lease(1, duration_seconds=60)), (59.0, lease(1, duration_seconds=60))], False),
    ],
)
def test_a_standby_leads_when_the_lease_was_the_same_for_as_long_as_it_names(
    looks: list[tuple[float, Lease | None]], leads: bool
) -> None:
    """By the observer's clock alone, from its first look on."""
    watch = LeaseWatch()
    assert [watch.may_lead(seen, False, at) for at, seen in looks][-1] is leads


def test_time_without_the_store_does_not_count_as_silence_of_the_driver() -> None:
    watch = LeaseWatch()
    watch.may_lead(lease(1), False, 0.0)
    watch.lose_sight()
    assert not watch.may_lead(lease(1), False, 10.0)
    assert watch.may_lead(lease(1), False, 20.0)


def test_a_standby_does_not_wait_for_a_process_that_has_ended() -> None:
    assert LeaseWatch().may_lead(lease(1), True, 0.0)


def test_a_standby_survives_a_store_outage() -> None:
    storage = Away("memory://standby", StoreError("the store is away"))
    storage.failures = 1
    assert stand_by(storage, "s", SystemClock(), 0.01, threading.Event(), lambda _: None) is None
    assert storage.failed.is_set()


def test_a_standby_restarts_its_watch_after_a_store_outage() -> None:
    """INV-4. Looks at 0, 6 (the store is away), 12, 18 and 24 s: only from 12 on was the lease of 10 s seen to stay the same."""
    storage = Away("memory://anew", StoreError("the store is away"))
    storage.replace(lease_path("s"), msgspec.json.encode(lease(1)))
    clock = ManualClock()
    looks: list[float] = []

    class Between(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            looks.append(clock.monotonic())
            clock.advance(6.0)
            storage.failures = int(len(looks) == 1)
            return False

    begun = clock.monotonic()
    assert stand_by(storage, "s", clock, 6.0, Between(), lambda _: None) == lease(1)
    assert [at - begun for at in looks] == [0, 6, 12, 18]


def test_a_lease_that_could_not_be_written_ends_without_another_error() -> None:
    """Otherwise a standby would end, which tries again when a full store has space."""

    class Full(MemoryStorage):
        def replace(self, path: str, data: Any) -> None:
            raise OutOfSpaceError("the disk is full")

    keeper = LeaseKeeper(Full("memory://full"), "s", 1, owner="one", url="", duration_seconds=30.0)
    with pytest.raises(OutOfSpaceError):
        keeper.start()
    keeper.abandon()
    keeper.stop()


def test_a_driver_that_finds_the_lease_of_a_newer_epoch_learns_that_it_is_fenced() -> None:
    """INV-4: it may have nothing to write, and would answer heartbeats for ever."""
    storage = MemoryStorage("memory://superseded")
    notified = threading.Event()
    found: list[FencedError] = []

    def superseded(error: FencedError) -> bool:
        """At the first time it is composing its parts, and can't end yet."""
        found.append(error)
        if len(found) == 2:
            notified.set()
        return len(found) == 2

    older = LeaseKeeper(
        storage,
        "s",
        1,
        owner="older",
        url="",
        duration_seconds=0.03,
        superseded=superseded,
    )
    older.start()
    newer = LeaseKeeper(storage, "s", 2, owner="newer", url="", duration_seconds=30.0)
    newer.start()
    assert notified.wait(30)
    newer.stop()
    older.abandon()
    assert "epoch is 2" in str(found[0])


def lease_of(process: subprocess.Popen[bytes], duration_seconds: float, host: str = "") -> Lease:
    started = process_start(process.pid)
    return Lease(
        1, "o", host or socket.gethostname(), process.pid, started, 1, duration_seconds, "", "app-1", "local[2]"
    )


def test_a_driver_that_was_taken_over_is_given_the_time_of_its_lease_to_end() -> None:
    """Spark's tasks end with their driver, and a batch is not begun beside them where that can be seen."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lease = lease_of(process, 30.0)

    class Ending(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            process.kill()
            process.communicate()
            return False

    assert await_end_of(lease, Ending())
    assert await_end_of(lease, threading.Event())


@pytest.mark.parametrize(
    ("stopped", "seconds", "host"), [(True, 600.0, ""), (False, 0.0, ""), (False, 600.0, "another")]
)
def test_a_driver_that_can_not_end_or_be_seen_is_named_and_not_waited_for(
    stopped: bool, seconds: float, host: str
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        if stopped:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        lease = lease_of(process, seconds, host)
        assert not await_end_of(lease, threading.Event())
        assert "app-1" in left_behind(lease) and f"kill -9 {process.pid}" in left_behind(lease)
    finally:
        process.kill()
        process.communicate()


# ---- whether its process has ended -----------------------------------------------------------------------------------


def of(pid: int, started: str, host: str = "") -> Lease:
    return Lease(1, "o", host or socket.gethostname(), pid, started, 1, 10.0, "", "app-1", "local[2]")


@pytest.fixture
def ended() -> Lease:
    """Of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lease = of(process.pid, process_start(process.pid))
    assert not is_gone(lease)
    process.communicate(b"\n")
    return lease


def test_an_ended_process_of_this_host_is_recognised_immediately(ended: Lease) -> None:
    """So a driver that was killed is followed without waiting for its lease."""
    assert is_gone(ended)


def test_a_zombie_process_counts_as_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lease = of(process.pid, process_start(process.pid))
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(lease)
    process.communicate()


def test_another_process_under_the_same_pid_is_not_the_one_that_led() -> None:
    boot, start, namespace = process_start(os.getpid()).split("/")
    assert is_gone(of(os.getpid(), f"{boot}/{int(start) - 1}/{namespace}"))
    assert not is_gone(of(os.getpid(), f"{boot}/{start}/{namespace}"))


def test_the_same_host_name_of_another_machine_proves_nothing(ended: Lease) -> None:
    """Its pids are not ours: no process of that number says nothing of it. Then the lease is watched for its duration."""
    boot, start, namespace = ended.started.split("/")
    elsewhere = [
        f"{boot}/{start}/pid:[1]",  # another container of this machine
        f"{boot[::-1]}/{start}/{namespace}",  # another machine, whose first namespaces have the same numbers
        f"{boot}/{start}",  # a driver of an older release
        "",  # one that could not see its own start
    ]
    assert not any(is_gone(of(ended.pid, started)) for started in elsewhere)
    assert not any(await_end_of(of(ended.pid, started), threading.Event()) for started in elsewhere)
    assert not is_gone(of(ended.pid, ended.started, "another-host"))


def test_the_same_pid_in_another_container_is_not_this_program(caplog: pytest.LogCaptureFixture) -> None:
    """In containers many programs have pid 1."""
    boot, start, _ = process_start(os.getpid()).split("/")
    await_tasks_of(of(os.getpid(), process_start(os.getpid())), threading.Event())
    assert not caplog.records
    await_tasks_of(of(os.getpid(), f"{boot}/{start}/pid:[1]"), threading.Event())
    assert "may still run" in caplog.text


def test_under_the_proc_of_another_pid_namespace_no_process_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may be given its host's /proc: the pids in it are not this process's."""
    readlink = os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: "1234567" if path == "/proc/self" else readlink(path))
    assert process_start(os.getpid()) == ""


def test_another_users_hidden_process_does_not_count_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """``/proc`` may hide it (hidepid)."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        lease = of(process.pid, process_start(process.pid))
        monkeypatch.setattr("driver.journal.leadership.processes._fields", lambda _: [])

        def refused(pid: int, number: int) -> None:
            raise PermissionError(1, "no")

        monkeypatch.setattr(os, "kill", refused)
        assert not is_gone(lease)
    finally:
        monkeypatch.undo()
        process.kill()
        process.communicate()


_CONTAINER = """
import os
from driver.journal.leadership.processes import process_start
print(os.getpid(), process_start(os.getpid()), flush=True)
input()
"""


def test_a_running_process_in_another_pid_namespace_does_not_count_as_ended() -> None:
    """Two containers with one host name: the pid of the one means nothing, or another process, in the other."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _CONTAINER]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = process.stdout.readline().split()
    if not said:
        pytest.skip(f"unshare makes no pid namespace here: {process.communicate()[1].strip()}")
    try:
        assert said[0] == "1"
        assert not is_gone(of(1, said[1]))
        assert not is_gone(of(2_000_000_000, said[1]))
    finally:
        process.communicate("\n")


# ---- beside a driver of an older release -----------------------------------------------------------------------------


def older_process_start(pid: int) -> str:
    """As a release before pid namespaces had it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else f"{boot}/{fields[19]}"


def older_is_gone(lease: dict[str, Any]) -> bool:
    """As a release before pid namespaces decides it."""
    return bool(lease["host"] == socket.gethostname()) and older_process_start(lease["pid"]) != lease["started"]


def older_lease(pid: int, beat: int = 7) -> bytes:
    """As a release before pid namespaces writes it."""
    return msgspec.json.encode(
        {
            "epoch": 1, "owner": "older", "host": socket.gethostname(), "pid": pid, "started": older_process_start(pid),
            "beat": beat, "duration_seconds": 10.0, "url": "http://h:7080", "spark_application": "app-1",
            "spark_master": "spark://m:7077",
        }
    )  # fmt: skip


class Waits(threading.Event):
    """Takes no time; ``seconds``: for how long it was waited."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds += timeout or 0.0
        return False


@pytest.fixture
def older() -> tuple[MemoryStorage, Lease]:
    """The lease of an older release's driver whose process has ended, as far as this host shows."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    storage = MemoryStorage("memory://older")
    storage.replace(lease_path("s"), older_lease(process.pid))
    process.communicate(b"\n")
    found = read_lease(storage, "s")
    assert found is not None and found.started.count("/") == 1
    return storage, found


def test_an_older_releases_driver_is_waited_for_until_its_lease_ends(older: tuple[MemoryStorage, Lease]) -> None:
    """Its lease does not name its pid namespace: no process of that pid here may mean that it runs in another container."""
    storage, found = older
    watched = Waits()
    assert wait_until_stale(storage, "s", watched)
    assert watched.seconds == pytest.approx(10.0)
    clock = ManualClock()
    begun = clock.monotonic()

    class Between(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            clock.advance(2.0)
            return False

    assert stand_by(storage, "s", clock, 2.0, Between(), lambda _: None) == found
    assert clock.monotonic() - begun == pytest.approx(10.0)


def test_an_older_releases_driver_that_is_taken_over_gets_the_time_of_its_lease(
    older: tuple[MemoryStorage, Lease], caplog: pytest.LogCaptureFixture
) -> None:
    """It cancels its Spark jobs when it learns that it was fenced. After a watch of its lease that time has passed."""
    taken_over, watched = Waits(), Waits()
    await_tasks_of(older[1], taken_over, fresh=True)
    assert taken_over.seconds == pytest.approx(10.0, abs=0.2)
    assert "may still run, in Spark's application app-1" in caplog.text
    await_tasks_of(older[1], watched)
    assert watched.seconds == 0.0


@pytest.mark.parametrize("host", ["", "another-host"])
def test_a_driver_that_can_not_be_seen_gets_the_time_of_its_lease_at_a_take_over(host: str) -> None:
    boot, start, _ = process_start(os.getpid()).split("/")
    waits = Waits()
    assert not await_end_of(of(1, f"{boot}/{start}/pid:[1]", host), waits, fresh=True)
    assert waits.seconds == pytest.approx(10.0, abs=0.2)


def test_an_older_release_does_not_take_a_running_driver_for_ended() -> None:
    """A standby of the older release on this host would lead immediately, and fence the upgraded driver."""
    storage = MemoryStorage("memory://upgraded")
    keeper = LeaseKeeper(storage, "s", 2, owner="upgraded", url="http://h:7080", duration_seconds=10.0)
    keeper.begin()
    written = msgspec.json.decode(storage.read(lease_path("s")))
    assert written["started"] == older_process_start(os.getpid())
    assert not older_is_gone(written)
    found = read_lease(storage, "s")
    assert found is not None and found.process == process_start(os.getpid())
    assert not is_gone(found)


_LEADS = """
import sys
from driver.journal.leadership.lease import LeaseKeeper
from wal.storage.local import LocalStorage
LeaseKeeper(LocalStorage(sys.argv[1]), "s", 2, owner="upgraded", url="", duration_seconds=10.0).begin()
"""


def test_a_killed_driver_counts_as_ended_for_both_releases(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _LEADS, str(tmp_path)], check=True)
    storage = LocalStorage(str(tmp_path))
    assert older_is_gone(msgspec.json.decode(storage.read(lease_path("s"))))
    found = read_lease(storage, "s")
    assert found is not None and is_gone(found)


def test_a_lease_that_names_no_pid_namespace_of_its_own_is_read_with_the_one_in_its_start(ended: Lease) -> None:
    """So wrote a build between the two: boot, start and namespace in one field."""
    assert ended.started.count("/") == 2 and not ended.pid_namespace
    assert is_gone(msgspec.json.decode(msgspec.json.encode(ended), type=Lease))
