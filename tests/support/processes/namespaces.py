"""Hosts on this machine: network namespaces on a bridge, each with an address, a name and folders, whose links can be cut.

:meth:`Host.command` gives the command that starts a process on a host. The test itself is on the bridge too, so that it reaches
every host. Needs root, iproute2 and util-linux. Names contain the id of the test's process; the next :class:`Network` removes
what a killed test left.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from forebay.model.errors import ForebayError
from tests.support.servers import debian

#: a network of its own for each process, out of those that are kept for such uses (RFC 2544)
_NETWORK = "198.18.{}"
_NETWORKS_MAX = 250
_OUTSIDE = 254
_OURS = re.compile(r"fb(\d+)(?:[-.].+)?")
#: an address without a host: packets to it are lost without an error
_NO_HOST = "02:00:00:00:00:00"
_LOCK = Path(tempfile.gettempdir()) / "forebay-test-networks.lock"

#: in namespaces of its own for mounts (made by ip netns exec) and the host's name: $1 its name, $2 its /etc/hosts, then pairs of
#: folders, what is to be seen and where, up to --, then the command
_ENTER = """
echo "$1" > /proc/sys/kernel/hostname && mount --bind "$2" /etc/hosts && shift 2 || exit 2
while [ "$1" != -- ]; do mount --bind "$1" "$2" && shift 2 || exit 2; done
shift
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Host:
    """A host. ``mounts``: folder that only this host has → the path at which it sees it."""

    name: str
    address: str
    namespace: str
    link: str
    hosts_file: Path
    mounts: Mapping[Path, Path]

    def command(self, *command: str) -> list[str]:
        """Return ``command`` so that it runs on this host; the started process becomes it."""
        pairs = [str(folder) for pair in self.mounts.items() for folder in pair]
        return [
            "ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", _ENTER, "host",
            self.name, str(self.hosts_file), *pairs, "--", *command,
        ]  # fmt: skip

    def kill(self) -> None:
        """Kill all processes of this host, as a loss of power would."""
        _kill_all(self.namespace)


class Network:
    """``with Network(folder, ["w1", "w2"], private=["blocks"]) as network:``

    Each folder of ``private`` (under ``folder``) is another one on every host; all other files are shared, as on a network's
    file system. One at a time in a process. Raises ForebayError.
    """

    def __init__(self, folder: Path, names: Sequence[str], private: Sequence[str] = ()) -> None:
        self._folder = folder
        self._names = tuple(names)
        self._private = tuple(private)
        self._bridge = f"fb{os.getpid()}"
        self._hosts: dict[str, Host] = {}

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def __enter__(self) -> Network:
        with _alone():
            _sweep(lambda pid: pid == os.getpid() or not Path(f"/proc/{pid}").exists())
            network = _NETWORK.format(_free_number())
            _ip("link", "add", self._bridge, "type", "bridge", "forward_delay", "0")
            _ip("address", "add", f"{network}.{_OUTSIDE}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        addresses = {name: f"{network}.{number}" for number, name in enumerate(self._names, start=1)}
        hosts_file = self._folder / "hosts.txt"
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        hosts_file.write_text("\n".join(lines) + "\n")
        for number, (name, address) in enumerate(addresses.items(), start=1):
            mounts = {self._folder / "hosts" / name / each: self._folder / each for each in self._private}
            for pair in mounts.items():
                for path in pair:
                    path.mkdir(parents=True, exist_ok=True)
            link = f"{self._bridge}.{number}"
            self._hosts[name] = Host(name, address, f"{self._bridge}-{name}", link, hosts_file, mounts)
            self._add(self._hosts[name])
        return self

    def _add(self, host: Host) -> None:
        _ip("netns", "add", host.namespace)
        _ip("link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        _ip("link", "set", host.link, "master", self._bridge, "up")
        _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _ip("-n", host.namespace, "link", "set", link, "up")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _alone():
            _sweep(lambda pid: pid == os.getpid())

    # ---- cuts: packets are lost without an error ---------------------------------------------------------------------

    def cut_way(self, source: str, target: str) -> None:
        """Drop all packets from ``source`` to ``target``; the other direction stays open."""
        there = self[target].address
        _ip(
            "-n",
            self[source].namespace,
            "neighbour",
            "replace",
            there,
            "lladdr",
            _NO_HOST,
            "nud",
            "permanent",
            "dev",
            "eth0",
        )

    def cut(self, one: str, other: str) -> None:
        """Drop all packets in both directions."""
        self.cut_way(one, other)
        self.cut_way(other, one)

    def restore_way(self, source: str, target: str) -> None:
        _ip("-n", self[source].namespace, "neighbour", "delete", self[target].address, "dev", "eth0")

    def restore(self, one: str, other: str) -> None:
        self.restore_way(one, other)
        self.restore_way(other, one)

    def cut_off(self, name: str) -> None:
        """Cut a host off from all others, in both directions."""
        _ip("link", "set", self[name].link, "down")

    def put_back(self, name: str) -> None:
        _ip("link", "set", self[name].link, "up")


def require_namespaces(missing: Callable[[str], None]) -> None:
    """Call ``missing`` with the names of missing tools."""
    if os.geteuid() != 0:
        return missing("hosts of their own for tests need root")
    if shutil.which("ip") is None:
        return missing("ip is not here: python -m tests.support.processes.namespaces")
    if lacks := debian.lacks_of_root():
        return missing(f"hosts of their own for tests need more: {lacks}")
    name = f"fb{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
    except ForebayError as error:
        missing(f"this machine makes no network namespaces: {error}")
    return None


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ForebayError(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock under which one process at a time looks for free addresses and leftovers."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _free_number() -> int:
    taken = {
        address.get("local")
        for link in json.loads(_ip("-json", "address", "show") or "[]")
        for address in link.get("addr_info", ())
    }
    for number in range(_NETWORKS_MAX):
        if f"{_NETWORK.format(number)}.{_OUTSIDE}" not in taken:
            return number
    raise AssertionError("no network is free")


def _sweep(gone: Callable[[int], bool]) -> None:
    """Remove what belongs to processes that are ``gone``."""

    def theirs(names: Iterable[str]) -> list[str]:
        return [name for name in names if (found := _OURS.fullmatch(name)) and gone(int(found[1]))]

    namespaces = theirs(one["name"] for one in json.loads(_ip("-json", "netns", "list") or "[]"))
    for namespace in namespaces:
        _kill_all(namespace)
    # the kernel would remove the links of a deleted namespace too, but later: until then their names are taken
    for link in theirs(_links()):
        try:
            _ip("link", "delete", link)
        except ForebayError:
            if link in _links():
                raise
    for namespace in namespaces:
        _ip("netns", "delete", namespace)


def _links() -> set[str]:
    return {link["ifname"] for link in json.loads(_ip("-json", "link", "show") or "[]")}


def _kill_all(namespace: str) -> None:
    while pids := [int(pid) for pid in _ip("netns", "pids", namespace).split()]:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        threading.Event().wait(0.02)


def install() -> None:
    """Install missing packages, if that is allowed."""
    if shutil.which("ip") is None:
        debian.install("hosts in namespaces are made", "iproute2")


if __name__ == "__main__":
    sys.exit(debian.main(install))
