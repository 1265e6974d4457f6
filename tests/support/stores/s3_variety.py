"""S3 servers other than versitygw, for the contract of stores and the random kills (``make test-variety``).

``python -m tests.support.stores.s3_variety`` builds or fetches all of them into the cache.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forebay.kafka.embedded.jars import cache_directory
from forebay.model.errors import UsageError
from tests.support.processes.namespaces import Host
from tests.support.run.ports import free_port
from tests.support.servers import debian
from tests.support.servers.go_module import GoModule
from tests.support.stores import ceph
from tests.support.stores.s3 import ACCESS_KEY, BUCKET, ENVIRONMENT, SECRET_KEY, S3Server
from tests.support.stores.s3_bucket import make_bucket

#: commits: the modules' releases have no versions that Go knows
MINIO = GoModule("github.com/minio/minio", "0.0.0-20260212201848-7aac2a2c5b7c")
SEAWEEDFS = GoModule(
    "github.com/seaweedfs/seaweedfs/weed", "0.0.0-20261109003541-7506e5f91cd6", "github.com/seaweedfs/seaweedfs"
)
GARAGE_VERSION, MOTO_VERSION, S3RVER_VERSION = "2.5.0", "5.2.5", "3.7.1"
#: Garage takes only keys of this form
_GARAGE_KEY, _GARAGE_SECRET = "GK" + "0f" * 12, "0f" * 32
_FETCH_SECONDS = 3600.0


def garage() -> Path:
    return cache_directory() / f"garage-{GARAGE_VERSION}" / "bin" / "garage"


def moto() -> Path:
    return cache_directory() / f"moto-{MOTO_VERSION}" / "bin" / "moto_server"


def s3rver() -> Path:
    return cache_directory() / f"s3rver-{S3RVER_VERSION}" / "node_modules" / ".bin" / "s3rver"


class Minio(S3Server):
    """MinIO with one disk."""

    def command(self, address: str) -> list[str]:
        return [str(MINIO.binary), "server", "--quiet", "--address", address, str(self.objects)]

    @property
    def own_environment(self) -> dict[str, str]:
        own = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_BROWSER": "off"}
        return {**own, "MINIO_CI_CD": "on", "MINIO_UPDATE": "off"}  # CI: its disk may be the system's

    def prepare(self) -> None:
        make_bucket(self)


class Garage(S3Server):
    """Garage as one node."""

    @property
    def environment(self) -> dict[str, str]:
        own = {"AWS_ACCESS_KEY_ID": _GARAGE_KEY, "AWS_SECRET_ACCESS_KEY": _GARAGE_SECRET}
        return {**ENVIRONMENT, **own}

    @property
    def own_environment(self) -> dict[str, str]:
        own = {"GARAGE_DEFAULT_ACCESS_KEY": _GARAGE_KEY, "GARAGE_DEFAULT_SECRET_KEY": _GARAGE_SECRET}
        return {**own, "GARAGE_DEFAULT_BUCKET": BUCKET, "RUST_LOG": "garage=warn"}

    def command(self, address: str) -> list[str]:
        settings = self.metadata / "garage.toml"
        if not settings.exists():
            rpc = f"127.0.0.1:{free_port()}"
            settings.write_text(
                f'metadata_dir = "{self.metadata}"\ndata_dir = "{self.objects}"\ndb_engine = "sqlite"\n'
                f'replication_factor = 1\nrpc_bind_addr = "{rpc}"\nrpc_public_addr = "{rpc}"\nrpc_secret = "{"0f" * 32}"\n'
                "metadata_fsync = true\ndata_fsync = true\n"
                f'[s3_api]\ns3_region = "us-east-1"\napi_bind_addr = "{address}"\n'
            )
        command = [str(garage()), "-c", str(settings), "server"]
        return [*command, "--single-node", "--default-access-key", "--default-bucket"]


class Moto(S3Server):
    """Moto, which holds everything in memory."""

    def command(self, address: str) -> list[str]:
        host, _, port = address.rpartition(":")
        return [str(moto()), "-H", host, "-p", port]

    def prepare(self) -> None:
        make_bucket(self)


class SeaweedFs(S3Server):
    """SeaweedFS with all its services in one process."""

    def __init__(self, folder: Path, host: Host | None = None) -> None:
        super().__init__(folder, host)
        self._ports = {name: free_port() for name in _SEAWEEDFS_PORTS}

    def command(self, address: str) -> list[str]:
        host, _, port = address.rpartition(":")
        users = self.metadata / "users.json"
        credentials = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        user = {"name": "tests", "credentials": [credentials], "actions": ["Admin", "Read", "Write", "List"]}
        users.write_text(json.dumps({"identities": [user]}))
        options = {
            **self._ports,
            "dir": self.objects,
            "ip": host,
            "ip.bind": host,
            "master.volumeSizeLimitMB": 64,
            "master.telemetry.url": "",
            "volume.max": 200,
            "volume.minFreeSpace": 1,
            "s3.port": port,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.config": users,
        }
        return [str(SEAWEEDFS.binary), "server", "-s3", *(f"-{key}={value}" for key, value in options.items())]

    def prepare(self) -> None:
        make_bucket(self)


_SEAWEEDFS_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port.grpc",
)


class S3rver(S3Server):
    """s3rver, which does not know conditional requests."""

    def command(self, address: str) -> list[str]:
        host, _, port = address.rpartition(":")
        options = ["--silent", "--configure-bucket", BUCKET, "--directory", str(self.objects)]
        return [str(s3rver()), "--address", host, "--port", port, *options]

    @property
    def environment(self) -> dict[str, str]:
        return {**ENVIRONMENT, "AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}  # it knows no others


@dataclass(frozen=True)
class Kind:
    """A kind of S3 server. ``bring``: builds or fetches ``program``. ``refused``: part of the error with which the probe refuses
    this server without ``settings``; "": the probe accepts it. ``settings``: keys of [storage.s3] that it needs. ``durable``:
    whether acknowledged objects survive SIGKILL."""

    server: type[S3Server]
    program: Callable[[], Path]
    bring: Callable[[], object]
    refused: str = ""
    durable: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        return not self.refused or bool(self.settings)


def _fetched(program: Path, steps: Callable[[Path], list[list[str]]]) -> Path:
    """Run ``steps`` for the folder of the cache that will hold ``program``, unless it is there. Raises UsageError."""
    folder = next(parent for parent in program.parents if parent.parent == cache_directory())
    if program.exists():
        return program
    shutil.rmtree(folder, ignore_errors=True)  # of a fetch that did not end
    for step in steps(folder):
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
            failed, said = done.returncode != 0, done.stdout + done.stderr
        except (OSError, subprocess.TimeoutExpired) as error:
            failed, said = True, str(error)
        if failed:
            raise UsageError(f"{folder.name} could not be fetched: {' '.join(step)}: {said.strip()[-1500:]}")
    return program


def _fetch_garage() -> Path:
    features = ["--no-default-features", "--features", "bundled-libs,sqlite"]
    crate = ["garage", "--version", GARAGE_VERSION, "--locked", *features]
    quick = ["--config", "profile.release.opt-level=1", "--config", "profile.release.lto=false"]
    return _fetched(garage(), lambda folder: [["cargo", "install", *crate, *quick, "--root", str(folder)]])


def _fetch_moto() -> Path:
    uv = [sys.executable, "-m", "uv"]

    def steps(folder: Path) -> list[list[str]]:
        install = [
            *uv,
            "pip",
            "install",
            "--python",
            str(folder / "bin" / "python"),
            f"moto[s3,server]=={MOTO_VERSION}",
        ]
        return [[*uv, "venv", "--python", sys.executable, str(folder)], install]

    return _fetched(moto(), steps)


def _fetch_s3rver() -> Path:
    install = ["npm", "install", "--no-audit", "--no-fund", f"s3rver@{S3RVER_VERSION}"]
    return _fetched(s3rver(), lambda folder: [[*install, "--prefix", str(folder)]])


_OVERWRITES = "overwrote an object that was to be created only if absent"
_WHOLE = {"part_size": "3GiB"}
KINDS = {
    "minio": Kind(Minio, lambda: MINIO.binary, MINIO.build),
    # killed, it takes writes again after 31 seconds: its only master waits for this time before it leads
    "seaweedfs": Kind(SeaweedFs, lambda: SEAWEEDFS.binary, SEAWEEDFS.build, settings={"retry_timeout": "2m"}),
    "garage": Kind(Garage, garage, _fetch_garage, _OVERWRITES),
    "ceph": Kind(ceph.Ceph, ceph.radosgw, ceph.fetch, f"{_OVERWRITES} when objects are sent in parts", settings=_WHOLE),
    "moto": Kind(Moto, moto, _fetch_moto, durable=False),
    "s3rver": Kind(S3rver, s3rver, _fetch_s3rver, _OVERWRITES),
}


def bring() -> None:
    """Raises UsageError that names each server that can't be had here, after the others."""
    failures = []
    for kind in KINDS.values():
        try:
            print(kind.bring(), flush=True)
        except UsageError as error:
            failures.append(str(error))
    if failures:
        raise UsageError("\n".join(failures))


if __name__ == "__main__":
    sys.exit(debian.main(bring))
