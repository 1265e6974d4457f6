"""The tests' own hosts: packets arrive or are lost at a cut, and nothing remains of a killed test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.support.processes.namespaces import Network, _ip, require_namespaces

#: prints what comes by datagram, one line each
_LISTEN = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
    listener.bind((sys.argv[1], 9))
    print("listening", flush=True)
    while True:
        print(listener.recv(100).decode(), flush=True)
"""
_SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.sendto(sys.argv[2].encode(), (sys.argv[1], 9))
"""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    require_namespaces(missing)
    with Network(tmp_path, ["w1", "w2", "w3"], ["blocks"]) as network:
        yield network


class Ear:
    """Listens on a host."""

    def __init__(self, network: Network, name: str) -> None:
        self._network, self.name = network, name
        self._process = subprocess.Popen(
            network[name].command(sys.executable, "-IS", "-c", _LISTEN, name), stdout=subprocess.PIPE, text=True
        )
        assert self.next() == "listening"

    def next(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, source: str, message: str) -> None:
        command = self._network[source].command(sys.executable, "-IS", "-c", _SEND, self.name, message)
        subprocess.run(command, check=False, capture_output=True)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_cuts_lose_packets_in_the_cut_direction(network: Network) -> None:
    ears = {name: Ear(network, name) for name in ("w1", "w2")}
    one, two = ears.values()
    try:
        two.tell("w1", "before")
        assert two.next() == "before"
        network.cut_way("w1", "w2")
        two.tell("w1", "lost")
        two.tell("w3", "from another")
        one.tell("w2", "the other way")
        assert (two.next(), one.next()) == ("from another", "the other way")
        network.restore_way("w1", "w2")
        network.cut("w2", "w3")
        two.tell("w3", "lost too")
        two.tell("w1", "after")
        assert two.next() == "after"
        network.restore("w2", "w3")
        network.cut_off("w2")
        two.tell("w1", "lost with all")
        network.put_back("w2")
        two.tell("w3", "and back")
        assert two.next() == "and back"
    finally:
        for ear in ears.values():
            ear.close()


def test_each_host_has_a_name_and_folders_of_its_own(network: Network, tmp_path: Path) -> None:
    for name in ("w1", "w2"):
        script = f"uname -n > {tmp_path}/blocks/name; cat {tmp_path}/blocks/name"
        done = subprocess.run(network[name].command("sh", "-c", script), capture_output=True, text=True, check=True)
        assert done.stdout == f"{name}\n"
    assert (tmp_path / "hosts" / "w1" / "blocks" / "name").read_text() == "w1\n"
    assert not list((tmp_path / "blocks").iterdir())


def test_leftovers_of_a_killed_test_are_removed_by_the_next(tmp_path: Path) -> None:
    require_namespaces(missing)
    script = f"""
import os, pathlib, subprocess
from tests.support.processes.namespaces import Network
with Network(pathlib.Path({str(tmp_path)!r}), ["w1"]) as network:
    left = subprocess.Popen(network["w1"].command("sleep", "600"), stdout=subprocess.DEVNULL)
    print(os.getpid(), left.pid, flush=True)
    left.wait()
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root) as killed:
        assert killed.stdout is not None
        pid, left = map(int, killed.stdout.readline().split())
        killed.send_signal(signal.SIGKILL)
    assert f"fb{pid}-w1" in _ip("netns", "list")
    with Network(tmp_path, ["w1"]):
        assert f"fb{pid}" not in _ip("netns", "list") + _ip("link", "show")
        assert not _runs(left)
    assert f"fb{os.getpid()}" not in _ip("netns", "list") + _ip("link", "show")


def _runs(pid: int) -> bool:
    """Not counting one that only waits to be read by a parent that is not its own."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
