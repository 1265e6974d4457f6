"""A real Kerberos KDC for tests, MIT's: Debian's packages unpacked into the cache. It starts no system service.

``python -m tests.support.servers.kerberos`` fetches the packages (``make services`` does).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from forebay.model.errors import UnreachableError, UsageError
from forebay.process.tether import tethered
from tests.support.run.ports import free_port
from tests.support.servers import debian

REALM = "FOREBAY.TEST"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
#: a file of each package; those of MIT Kerberos need each other's libraries in one version
_FILES = {
    "krb5-kdc": "usr/sbin/krb5kdc",
    "krb5-admin-server": "usr/sbin/kadmin.local",
    "krb5-user": "usr/bin/kinit",
    "libkadm5srv-mit12": f"{_LIBRARIES}/libkadm5srv_mit.so.12",
    "libkadm5clnt-mit12": f"{_LIBRARIES}/libkadm5clnt_mit.so.12",
    "libkdb5-10": f"{_LIBRARIES}/libkdb5.so.10",
    "libgssrpc4": f"{_LIBRARIES}/libgssrpc.so.4",
    "libgssapi-krb5-2": f"{_LIBRARIES}/libgssapi_krb5.so.2",
    "libkrb5-3": f"{_LIBRARIES}/libkrb5.so.3",
    "libkrb5support0": f"{_LIBRARIES}/libkrb5support.so.0",
    "libk5crypto3": f"{_LIBRARIES}/libk5crypto.so.3",
    "libss2": "lib/x86_64-linux-gnu/libss.so.2",
    "libverto1": f"{_LIBRARIES}/libverto.so.1",
    "libverto-libev1": f"{_LIBRARIES}/libverto-libev.so.1",
    "libev4": f"{_LIBRARIES}/libev.so.4",
}
_START_SECONDS = 30.0
_COMMAND_SECONDS = 60.0

#: one second of clock skew, so that a ticket is over when its time is
_CLIENT = """\
[libdefaults]
default_realm = {realm}
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
clockskew = 1
[realms]
{realm} = {{
 kdc = 127.0.0.1:{port}
}}
[domain_realm]
localhost = {realm}
127.0.0.1 = {realm}
"""
_SERVER = """\
[kdcdefaults]
kdc_listen = ""
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
{realm} = {{
 database_name = {folder}/principal
 key_stash_file = {folder}/stash
 max_life = 1d
 supported_enctypes = aes256-cts-hmac-sha1-96:normal
}}
[dbmodules]
db_module_dir = {plugins}
[logging]
kdc = FILE:{folder}/kdc.log
"""


def fetch() -> None:
    """Raises UsageError that says what failed."""
    for package, path in _FILES.items():
        debian.unpacked(package, path)


def require_kerberos(missing: Callable[[str], None]) -> None:
    """Calls ``missing`` if the packages are not here; in CI they are fetched if need be."""
    if all(debian.found(package, path) for package, path in _FILES.items()):
        return
    if os.environ.get("CI", "").lower() not in ("1", "true"):
        missing("Kerberos's packages are not here: run python -m tests.support.servers.kerberos")
    try:
        fetch()
    except UsageError as error:
        missing(str(error))


class Kdc:
    """A realm with its data in ``folder``. ``environment``: for clients of it, in C and in Python."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._libraries = folder / "libraries"
        self.configuration = folder / "krb5.conf"
        self.environment = {"KRB5_CONFIG": str(self.configuration)}

    def __enter__(self) -> Kdc:
        self._folder.mkdir(parents=True, exist_ok=True)
        values = {"realm": REALM, "port": self._port, "folder": self._folder}
        self.configuration.write_text(_CLIENT.format(**values))
        plugins = _file("krb5-kdc").parents[2] / _LIBRARIES / "krb5/plugins/kdb"
        (self._folder / "kdc.conf").write_text(_SERVER.format(**values, plugins=plugins))
        self._link_libraries()
        self._run("krb5-kdc", "kdb5_util", "create", "-s", "-r", REALM, "-P", "of a database for tests")
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        with (self._folder / "krb5kdc.log").open("ab") as log:
            self._process = subprocess.Popen(
                tethered([str(_file("krb5-kdc")), "-n", "-r", REALM]),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._servers_environment(),
            )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise UnreachableError(f"the KDC did not start: {(self._folder / 'krb5kdc.log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def keytab(self, *principals: str, life: str = "1d") -> Path:
        """Make ``principals``, whose tickets are good for at most ``life``, and return a file with their keys."""
        path = self._folder / f"{principals[0].replace('/', '-')}.keytab"
        requests = [f"addprinc -randkey -maxlife {life} {principal}\n" for principal in principals]
        text = "".join([*requests, f"ktadd -k {path} {' '.join(principals)}\n"])
        said = self._run("krb5-admin-server", "kadmin.local", text=text)  # which exits with 0 if a request fails
        if said.count(" created.") != len(principals) or not path.exists():
            raise UnreachableError(f"no keytab for {', '.join(principals)}: {said}")
        return path

    def log_in(self, principal: str, keytab: Path) -> Path:
        """Do as ``kinit``, and return the cache with the ticket."""
        cache = self._folder / f"{principal.replace('/', '-')}.cache"
        self._run("krb5-user", "kinit", "-c", str(cache), "-k", "-t", str(keytab), principal)
        return cache

    def _link_libraries(self) -> None:
        """Into one folder: the event loop looks for its back end beside itself."""
        self._libraries.mkdir(exist_ok=True)
        for package in _FILES:
            if package.startswith("lib"):
                for library in _file(package).parent.glob("*.so*"):
                    (self._libraries / library.name).symlink_to(library)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _run(self, package: str, name: str, *arguments: str, text: str = "") -> str:
        done = subprocess.run(
            [str(_file(package).with_name(name)), *arguments],
            input=text, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False,
            env=self._servers_environment(),
        )  # fmt: skip
        if done.returncode != 0:
            raise UnreachableError(f"{name} {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _servers_environment(self) -> Mapping[str, str]:
        return {
            **os.environ, **self.environment,
            "KRB5_KDC_PROFILE": str(self._folder / "kdc.conf"),
            "LD_LIBRARY_PATH": str(self._libraries),
        }  # fmt: skip


def _file(package: str) -> Path:
    found = debian.found(package, _FILES[package])
    assert found is not None, f"{package} is not here: require_kerberos comes first"
    return found


if __name__ == "__main__":
    sys.exit(debian.main(fetch))
