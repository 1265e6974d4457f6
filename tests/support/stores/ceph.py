"""Ceph's S3 gateway with a monitor and one disk, from Debian's packages, which are unpacked into the cache.

``python -m tests.support.stores.s3_variety`` fetches them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from pathlib import Path

from forebay.kafka.embedded.jars import cache_directory
from forebay.process.tether import tethered
from tests.support.processes.namespaces import Host
from tests.support.run.ports import free_port
from tests.support.servers import debian
from tests.support.stores.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from tests.support.stores.s3_bucket import make_bucket

_PATH = "usr/bin/radosgw"
_PACKAGES = ("ceph-mon", "ceph-osd")
_STEP_SECONDS = 60.0
#: asks the monitor by Ceph's library: its folder, the configuration, the command, what it reads
_ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
cluster = ctypes.c_void_p()
assert library.rados_create(ctypes.byref(cluster), b"admin") == 0
assert library.rados_conf_read_file(cluster, sys.argv[2].encode()) == 0
assert library.rados_connect(cluster) == 0
command, given = (ctypes.c_char_p * 1)(sys.argv[3].encode()), sys.argv[4].encode()
answer, text, sizes = ctypes.c_char_p(), ctypes.c_char_p(), [ctypes.c_size_t(), ctypes.c_size_t()]
outputs = ctypes.byref(answer), ctypes.byref(sizes[0]), ctypes.byref(text), ctypes.byref(sizes[1])
sys.exit(abs(library.rados_mon_command(cluster, command, 1, given, len(given), *outputs)))
"""


def radosgw() -> Path:
    return debian.found("radosgw", _PATH) or cache_directory() / "radosgw" / _PATH


def fetch() -> Path:
    """Raises UsageError that says what failed."""
    return debian.unpacked("radosgw", _PATH, *_PACKAGES)


class Ceph(S3Server):
    """Three processes: one monitor, one disk in a file, and the gateway. All are killed and started together."""

    def __init__(self, folder: Path, host: Host | None = None) -> None:
        super().__init__(folder, host)
        self._root = radosgw().parents[2]
        self._libraries = self._root / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
        self._monitor = f"[v2:{self._address}:{free_port()}]"
        self._configuration = self.metadata / "ceph.conf"
        self._keys = self.metadata / "keyring"
        self._behind: list[subprocess.Popen[bytes]] = []

    @property
    def own_environment(self) -> dict[str, str]:
        folders = (self._libraries, self._root / "lib" / self._libraries.name, self._libraries / "ceph")
        return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, folders))}

    def command(self, address: str) -> list[str]:
        return self._service("radosgw", "-n", "client.admin", "-f")

    def launch(self) -> None:
        """Start the monitor and the disk too, for the first time after they were made."""
        if self._process is not None:
            return
        if not self._configuration.exists():
            self._make()
        else:
            self._begin("ceph-mon", "-i", "a", "-f")
        self._begin("ceph-osd", "-i", "0", "-f")
        super().launch()

    def prepare(self) -> None:
        """Make the user and the bucket."""
        self._run("radosgw-admin", "-c", str(self._configuration), "user", "create", "--uid=tests",
                  "--display-name=tests", f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}")  # fmt: skip
        make_bucket(self)

    def _end(self, number: signal.Signals) -> None:
        super()._end(number)
        for process in self._behind:
            process.send_signal(number)
        for process in self._behind:
            process.wait(_STEP_SECONDS)
        self._behind.clear()

    def _make(self) -> None:
        cluster, disk = str(uuid.uuid4()), str(uuid.uuid4())
        for name in ("mon", "run", "rgw"):
            (self.metadata / name).mkdir()
        self._configuration.write_text(self._settings(cluster))
        everything = ("--cap", "mon", "allow *", "--cap", "osd", "allow *")
        self._run("ceph-authtool", "--create-keyring", str(self._keys), "--gen-key", "-n", "mon.", *everything[:3])
        self._run("ceph-authtool", str(self._keys), "--gen-key", "-n", "client.admin", *everything)
        key = self._run("ceph-authtool", "--gen-print-key").strip()
        place = str(self.metadata / "monmap")
        self._run("monmaptool", "--create", "--fsid", cluster, "--addv", "a", self._monitor, place)
        monitor = self._service("ceph-mon", "-i", "a")
        self._run(*monitor, "--mkfs", "--keyring", str(self._keys), "--monmap", place)
        self._begin("ceph-mon", "-i", "a", "-f")
        self._run("python3", "-c", _ASK, str(self._libraries / "librados.so.2"), str(self._configuration),
                  f'{{"prefix": "osd new", "uuid": "{disk}"}}', f'{{"cephx_secret": "{key}"}}')  # fmt: skip
        self._run("ceph-authtool", str(self._keys), "-n", "osd.0", "--add-key", key)
        self._run(*self._service("ceph-osd", "-i", "0"), "--mkfs", "--osd-uuid", disk)

    def _service(self, name: str, *arguments: str) -> list[str]:
        return [str(self._root / "usr" / "bin" / name), "-c", str(self._configuration), *arguments]

    def _begin(self, name: str, *arguments: str) -> None:
        with self._log.open("ab") as log:
            self._behind.append(
                subprocess.Popen(
                    tethered(self._service(name, *arguments)),
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.own_environment},
                )
            )

    def _run(self, name: str, *arguments: str) -> str:
        program = name if name == "python3" or "/" in name else str(self._root / "usr" / "bin" / name)
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=_STEP_SECONDS,
            env={**os.environ, **self.own_environment},
            check=False,
        )
        assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stdout}{done.stderr}"[-1500:]
        return done.stdout

    def _settings(self, cluster: str) -> str:
        settings = {
            "fsid": cluster,
            "mon host": self._monitor,
            "public addr": self._address,
            "cluster addr": self._address,
            "mon allow pool size one": "true",
            "mon data avail crit": "0",
            "osd pool default size": "1",
            "osd pool default min size": "1",
            "osd pool default pg num": "1",
            "osd pool default pgp num": "1",
            "osd crush chooseleaf type": "0",
            "osd class dir": self._libraries / "rados-classes",
            "erasure code dir": self._libraries / "ceph" / "erasure-code",
            "plugin dir": self._libraries / "ceph",
            "run dir": self.metadata / "run",
            "admin socket": "",
            "log file": self.metadata / "run" / "$name.log",
            "pid file": "",
            "keyring": self._keys,
            "mon data": self.metadata / "mon",
            "osd data": self.objects,
            "rgw data": self.metadata / "rgw",
            "osd objectstore": "bluestore",
            "bluestore block create": "true",
            "bluestore block size": str(8 << 30),  # a sparse file
            "bluestore cache autotune": "false",
            "bluestore cache size": str(64 << 20),
            "rgw frontends": f"beast endpoint={self._address}:{self.port}",
        }
        return "[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())
