"""The units with what a user runs in them: a job of Spark's under the driver's, managed receivers under the agent's, and Kafka.

The machine's own name has no address, as on a host without a name in any name service: the harder case for Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.kafka.embedded.jars import cache_directory, find_java
from tests.conftest import require_kafka
from tests.support.processes.booted import Booted
from tests.support.processes.units import AGENT, DATA, DRIVER, FOREBAY, machine_with_the_wheel, override
from tests.support.spark.java_classes import SPARK_OPTIONS

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

#: Spark's start, and its first job, on a machine that does much else
PATIENCE_SECONDS = 300.0
RECEIVERS = ("lines-r0", "lines-r1")

CONFIGURATION = f"""
stream = "lines"
[kafka]
topics = ["lines"]
"bootstrap.servers" = "ADDRESS"
"session.timeout.ms" = 6000
[wal]
url = "file://{DATA}/wal"
reserve = "0B"
[receiver]
mode = "managed"
count = 2
hosts_wait = "0s"
block_interval = "50ms"
heartbeat_interval = "200ms"
[driver]
journal = "file://{DATA}/journal"
engine = "spark"
job = "jobs:process"
batch_interval = "200ms"
journal_reserve = "0B"
[spark]
"spark.master" = "local[2]"
"spark.driver.extraJavaOptions" = "{" ".join(SPARK_OPTIONS)}"
[agent]
blocks = "{DATA}/blocks"
capacity = 2
heartbeat_interval = "200ms"
[security]
token_file = "/etc/forebay/tokens"
"""

JOB = f"""
import os

def process(batch):
    rows = [bytes(row.value).decode() for row in batch.df.select("value").collect()]
    os.makedirs("{DATA}/out", exist_ok=True)
    with open("{DATA}/out/%d.new" % batch.id, "w") as file:
        file.write("".join(row + "\\n" for row in rows))
    os.replace("{DATA}/out/%d.new" % batch.id, "{DATA}/out/%d" % batch.id)
"""

PRODUCE = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1]})
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    producer.produce("lines", b"line %d" % number, partition=number % 4)
assert producer.flush(60) == 0
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    require_kafka()
    folder = tmp_path_factory.mktemp("systemd-with-spark")
    with machine_with_the_wheel(folder, "nameless", {"/opt/cache": cache_directory()}) as machine:
        machine.write("/etc/resolv.conf", "")  # every lookup of a name fails immediately
        yield machine


def lines(machine: Booted) -> list[str]:
    command = f"cd {DATA}/out 2>/dev/null && cat $(ls | grep -v new | sort -n) || true"
    return sorted(machine.run("sh", "-c", command).stdout.splitlines(), key=lambda line: int(line.split()[1]))


def await_lines(machine: Booted, count: int) -> None:
    machine.wait(lambda: len(lines(machine)) >= count, f"{count} lines", PATIENCE_SECONDS)
    assert lines(machine) == [f"line {number}" for number in range(count)]


def produce(machine: Booted, first: int, until: int) -> None:
    address = machine.read("/run/broker").strip()
    machine.run("/opt/forebay/bin/python", "-c", PRODUCE, address, str(first), str(until))


def running_receivers(machine: Booted) -> dict[str, int]:
    """Receiver id → process id, of what runs in the agent's control group."""
    command = """
    for process in /proc/[0-9]*; do
        if grep -q forebay-agent.service $process/cgroup; then echo ${process#/proc/} $(tr '\\0' ' ' < $process/cmdline); fi
    done 2>/dev/null || true
    """
    found = re.findall(r"^(\d+) .* receiver --id (\S+)", machine.run("sh", "-c", command).stdout, re.MULTILINE)
    return {name: int(pid) for pid, name in found}


def listening(machine: Booted) -> set[str]:
    """Addresses, as the kernel writes them, at which anything in the machine listens."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in machine.read(f"/proc/net/{name}").splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A"}


def test_spark_runs_the_job_under_its_unit_and_the_agent_runs_receivers_under_its_own(machine: Booted) -> None:
    java_home = Path(find_java()).resolve().parents[1]
    machine.run(
        "systemd-run", "--quiet", "--unit=broker", "--setenv=FOREBAY_CACHE=/opt/cache", f"--setenv=JAVA_HOME={java_home}",
        "sh", "-c", f"exec {FOREBAY} broker --kind kafka --topic lines:4 --data /var/kafka > /run/broker",
    )  # fmt: skip
    machine.run(FOREBAY, "install", "--role", "driver", "--role", "agent", "--yes")
    override(machine, DRIVER, f"Environment=JAVA_HOME={java_home}")
    machine.write("/etc/forebay/jobs.py", JOB)
    machine.run("chmod", "0644", "/etc/forebay/jobs.py")
    machine.wait(lambda: machine.run("cat", "/run/broker", check=False).stdout.strip(), "Kafka", PATIENCE_SECONDS)
    machine.write("/etc/forebay/forebay.toml", CONFIGURATION.replace("ADDRESS", machine.read("/run/broker").strip()))
    checked = json.loads(
        machine.run("env", f"JAVA_HOME={java_home}", FOREBAY, "validate", "--json").stdout
    )  # fmt: skip
    assert {"name": "spark address", "outcome": "fine", "detail": "this host has one"} in checked
    machine.run("systemctl", "start", DRIVER, AGENT)
    produce(machine, 0, 200)
    await_lines(machine, 200)
    assert machine.property(DRIVER, "StatusText") == "running"
    assert set(running_receivers(machine)) == set(RECEIVERS)


def test_local_spark_is_unreachable_from_other_hosts(machine: Booted) -> None:
    """Spark itself asks for no token: what it listens at is as open as its address."""
    assert listening(machine) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_receiver_that_the_agent_keeps_is_restarted(machine: Booted) -> None:
    killed = running_receivers(machine)[RECEIVERS[0]]
    machine.run("kill", "-9", str(killed))
    machine.wait(
        lambda: running_receivers(machine).get(RECEIVERS[0], killed) != killed, "its next start", PATIENCE_SECONDS
    )
    produce(machine, 200, 300)
    await_lines(machine, 300)


def test_a_stop_drains_what_the_agent_keeps_and_the_audit_is_clean(machine: Booted) -> None:
    machine.run("systemctl", "stop", AGENT)
    machine.run("systemctl", "stop", DRIVER)
    for unit in (AGENT, DRIVER):
        assert machine.property(unit, "Result") == "success", f"{unit}\n{machine.journal()}"
        assert machine.property(unit, "ExecMainStatus") == "0", f"{unit}\n{machine.journal()}"
    assert running_receivers(machine) == {}, machine.journal()
    machine.run(FOREBAY, "audit")
