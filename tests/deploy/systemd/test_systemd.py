"""The units under a real systemd: installed from the wheel without a network, started, hung, killed, fenced, stopped, removed.

One machine for all tests of this file, in the order of a host's life cycle: each goes on where the one before left off.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes.booted import Booted
from tests.support.processes.units import AGENT, DATA, DRIVER, FOREBAY, RECEIVER, machine_with_the_wheel, override
from tests.support.run.wheel import ROOT

UNITS = (DRIVER, AGENT, RECEIVER)

CONFIGURATION = f"""
stream = "lines"
[wal]
url = "file://{DATA}/wal"
reserve = "0B"
[receiver]
source = "sources:Tail"
block_interval = "50ms"
heartbeat_interval = "200ms"
[receiver.source_options]
folder = "/var/log/lines"
[driver]
journal = "file://{DATA}/journal"
engine = "local"
job = "jobs:process"
batch_interval = "200ms"
lease_duration = "2s"
journal_reserve = "0B"
[agent]
blocks = "{DATA}/blocks"
heartbeat_interval = "200ms"
[security]
token_file = "/etc/forebay/tokens"
"""

#: keeps what each batch held, and tells what the sandbox lets the job do
JOB = f"""
import ctypes
import os

def system(name, *arguments):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)

def process(batch):
    rows = [value for table in batch.read() for value in table.column("value").to_pylist()]
    path = "{DATA}/out/%d" % batch.id
    os.makedirs("{DATA}/out", exist_ok=True)
    with open(path + ".new", "wb") as file:
        file.write(b"".join(row + b"\\n" for row in rows))
    os.replace(path + ".new", path)
    allowed = []
    for name, attempt in (
        ("write /etc/forebay", lambda: open("/etc/forebay/written", "w")),
        ("write /usr", lambda: open("/usr/written", "w")),
        ("look into /root", lambda: os.listdir("/root")),
        ("another user", lambda: os.setuid(0)),
        ("mount", lambda: system("mount", b"none", b"{DATA}", b"tmpfs", 0, None)),
        ("make a namespace", lambda: system("unshare", 0x10000000)),
        ("trace a process", lambda: system("ptrace", 0, 0, None, None)),
        ("open a raw socket", lambda: __import__("socket").socket(17, 3)),
        ("set the clock", lambda: __import__("time").clock_settime(0, 0)),
    ):
        try:
            attempt()
        except OSError:
            continue
        allowed.append(name)
    with open("{DATA}/allowed", "w") as file:
        file.write("\\n".join(allowed))
    with open("{DATA}/credential", "w") as file:
        file.write(open(os.environ["CREDENTIALS_DIRECTORY"] + "/tokens").read())
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with machine_with_the_wheel(tmp_path_factory.mktemp("systemd"), "lines", pandas=False) as machine:
        yield machine


def lines(machine: Booted) -> list[str]:
    """What the job kept of all batches, in order."""
    command = f"cd {DATA}/out 2>/dev/null && cat $(ls | grep -v new | sort -n) || true"
    return machine.run("sh", "-c", command).stdout.splitlines()


def add_lines(machine: Booted, *texts: str) -> None:
    machine.run("sh", "-c", 'mkdir -p /var/log/lines; printf "%s\\n" "$@" >> /var/log/lines/a.log', "add", *texts)


def test_a_host_is_set_up_from_the_wheel_without_a_network(machine: Booted) -> None:
    assert "changed" in machine.run(FOREBAY, "install").stderr
    assert machine.run("sh", "-c", "getent passwd forebay || echo none").stdout.strip() == "none"
    installed = machine.run(FOREBAY, "install", "--yes")
    assert "systemctl daemon-reload" in installed.stdout
    modes = machine.run(
        "stat", "-c", "%U %a %n", "/etc/forebay", "/etc/forebay/forebay.toml", "/etc/forebay/tokens", DATA
    ).stdout  # fmt: skip
    assert modes.splitlines() == [
        "forebay 700 /etc/forebay", "forebay 600 /etc/forebay/forebay.toml", "forebay 600 /etc/forebay/tokens",
        f"forebay 700 {DATA}",
    ]  # fmt: skip
    verified = machine.run("systemd-analyze", "verify", *UNITS)
    assert verified.stderr == ""
    first, *again = machine.run(FOREBAY, "install", "--yes").stdout.splitlines()
    assert first == "what is done on this host:"
    assert {line.split("  ")[0].strip() for line in again} == {"as it is", "kept", "run"}


def test_services_are_started_when_they_are_ready_and_records_come_through(machine: Booted) -> None:
    for name in ("jobs.py", "sources.py"):
        text = JOB if name == "jobs.py" else (ROOT / "deploy" / "examples" / "custom_sources" / name).read_text()
        machine.write(f"/etc/forebay/{name}", text)
        machine.run("chmod", "0644", f"/etc/forebay/{name}")
    machine.write("/etc/forebay/forebay.toml", CONFIGURATION)
    add_lines(machine, *(f"line {number}" for number in range(100)))
    machine.run("systemctl", "start", *UNITS)  # returns when all have said that they are ready
    for unit in UNITS:
        assert machine.property(unit, "ActiveState") == "active"
        assert machine.property(unit, "StatusText")
        assert machine.property(unit, "User") == "forebay"
    assert '"state": "running"' in machine.run(FOREBAY, "status", "--json", check=False).stdout
    machine.wait(lambda: len(lines(machine)) >= 100, "the lines to come through")
    assert lines(machine) == [f"line {number}" for number in range(100)]


def test_a_service_sees_its_own_folders_and_the_tokens_that_it_was_given(machine: Booted) -> None:
    assert machine.read(f"{DATA}/allowed") == ""
    assert machine.read(f"{DATA}/credential") == machine.read("/etc/forebay/tokens") != ""
    owners = machine.run("sh", "-c", f"find {DATA} ! -user forebay; find {DATA} -perm /077").stdout
    assert owners == ""


def test_receiver_whose_polling_hangs_is_restarted_by_the_watchdog(machine: Booted) -> None:
    override(
        machine, RECEIVER, "WatchdogSec=4s", "RestartSec=100ms",
        "Environment=FOREBAY_FAILPOINTS=receiver.after-poll=hold", f"Environment=FOREBAY_FAILPOINT_DIR={DATA}",
    )  # fmt: skip
    machine.run("systemctl", "restart", RECEIVER)
    add_lines(machine, "after the watchdog")
    machine.wait(lambda: machine.property(RECEIVER, "NRestarts") != "0", "systemd to end it and start it again")

    def said(text: str) -> bool:
        return text in machine.run("journalctl", "--unit", RECEIVER, "--no-pager").stdout

    machine.wait(lambda: said("Watchdog timeout"), "the reason in the journal")
    machine.wait(lambda: said("in _step"), "where its polling thread was")
    machine.run("touch", f"{DATA}/receiver.after-poll.release")
    machine.wait(lambda: "after the watchdog" in lines(machine), "the line")
    override(machine, RECEIVER)
    machine.run("systemctl", "restart", RECEIVER)
    assert machine.property(RECEIVER, "Result") == "success"


def test_a_killed_driver_is_started_again_and_nothing_is_lost(machine: Booted) -> None:
    override(machine, DRIVER, "RestartSec=100ms")
    before = machine.property(DRIVER, "MainPID")
    machine.run("kill", "-9", before)
    machine.wait(
        lambda: machine.property(DRIVER, "ActiveState") == "active" and machine.property(DRIVER, "MainPID") != before,
        "the driver to lead again",
    )
    add_lines(machine, "after the kill")
    machine.wait(lambda: "after the kill" in lines(machine), "the line")
    assert machine.property(DRIVER, "NRestarts") == "1"


def test_fenced_driver_is_not_restarted(machine: Booted) -> None:
    """INV-4: exit code 4."""
    machine.run("systemctl", "reset-failed", DRIVER)
    take_over = [FOREBAY, "--config", "/etc/forebay/forebay.toml", "driver", "--take-over"]
    machine.run(
        "systemd-run", "--unit=rival", "--uid=forebay", "--gid=forebay", "--property=Type=notify", "--quiet",
        "--setenv=FOREBAY__DRIVER__URL=http://127.0.0.1:7099", "--property=LoadCredential=tokens:/etc/forebay/tokens",
        *take_over,
    )  # fmt: skip
    machine.wait(lambda: machine.property(DRIVER, "ActiveState") == "failed", "the driver to be fenced")
    assert machine.property(DRIVER, "ExecMainStatus") == "4"
    assert machine.property(DRIVER, "NRestarts") == "0"
    machine.run("systemctl", "stop", "rival")
    machine.run("systemctl", "reset-failed", DRIVER)
    machine.run("systemctl", "start", DRIVER)


def test_wrong_use_is_not_restarted_and_prints_one_sentence(machine: Booted) -> None:
    machine.run("systemctl", "stop", AGENT)
    override(machine, AGENT, "Environment=FOREBAY__AGENT__QUOTA=lots")
    assert machine.run("systemctl", "start", AGENT, check=False).returncode != 0
    assert machine.property(AGENT, "ExecMainStatus") == "2"
    assert machine.property(AGENT, "NRestarts") == "0"

    def text() -> str:
        return machine.run("journalctl", "--unit", AGENT, "--no-pager", "--lines=20").stdout

    machine.wait(lambda: "FOREBAY__AGENT__QUOTA" in text(), "the sentence in the journal")
    assert "Traceback" not in text()
    override(machine, AGENT)
    machine.run("systemctl", "reset-failed", AGENT)
    machine.run("systemctl", "start", AGENT)


def test_a_unit_that_fails_again_and_again_ends_failed_and_says_why(machine: Booted) -> None:
    """After as many ends as the unit allows it stays down, until a person says otherwise."""
    machine.run("systemctl", "stop", AGENT)
    limit = machine.property(AGENT, "StartLimitBurst")
    override(
        machine, AGENT, "RestartSec=50ms", "ExecStart=", "ExecStart=/bin/sh -c 'echo the disk is lost >&2; exit 1'"
    )
    machine.run("systemctl", "start", AGENT, check=False)
    machine.wait(lambda: machine.property(AGENT, "ActiveState") == "failed", "the last end")

    def shown(text: str) -> bool:
        return text in machine.run("systemctl", "status", AGENT, "--no-pager", "--lines=20", check=False).stdout

    for text in ("the disk is lost", "Start request repeated too quickly"):
        machine.wait(lambda text=text: shown(text), text)  # type: ignore[misc]
    assert int(machine.property(AGENT, "NRestarts")) == int(limit)
    assert machine.run("systemctl", "start", AGENT, check=False).returncode != 0
    override(machine, AGENT)
    machine.run("systemctl", "reset-failed", AGENT)
    machine.run("systemctl", "start", AGENT)


def test_a_stop_drains_and_the_audit_is_clean(machine: Booted) -> None:
    add_lines(machine, "the last line")
    machine.wait(lambda: "the last line" in lines(machine), "the line")
    machine.run("systemctl", "stop", RECEIVER)
    machine.run("systemctl", "stop", DRIVER, AGENT)
    for unit in UNITS:
        assert machine.property(unit, "Result") == "success", unit
        assert machine.property(unit, "ExecMainStatus") == "0", unit
    machine.run(FOREBAY, "audit")
    assert sorted(lines(machine)) == sorted(
        [*(f"line {number}" for number in range(100)), "after the watchdog", "after the kill", "the last line"]
    )


def test_uninstallation_keeps_the_data(machine: Booted) -> None:
    machine.run("systemctl", "start", DRIVER)
    removed = machine.run(FOREBAY, "install", "--uninstall", "--yes").stdout
    assert f"{'kept':<15}{DATA}" in removed
    for unit in UNITS:
        assert machine.run("systemctl", "is-active", unit, check=False).stdout.strip() == "inactive"
    assert machine.run("sh", "-c", "ls /etc/systemd/system/forebay-*.service", check=False).returncode != 0
    machine.run("test", "-s", "/etc/forebay/forebay.toml")
    assert lines(machine)
    machine.run(FOREBAY, "audit")
