"""The wheel and the sdist: they hold every file of the packages, and install with their dependencies into a fresh environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from forebay_start import NAMES
from tests.support.run.wheel import ROOT, build_wheel

_SECONDS = 600.0
#: files in the repository that no installation needs
_WITHOUT = {".dockerignore"}


def run(*command: object, folder: Path | None = None) -> str:
    """Return what ``command`` prints. It sees no packages but those of its own environment."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    """Among them the page's static files, monitoring files, units, the chart, examples, and py.typed."""
    tracked = run("git", "ls-files", "--", *sorted(NAMES), folder=ROOT).split()
    missing = {name for name in tracked if (ROOT / name).is_file()} - files_of(wheel)
    assert {name for name in missing if Path(name).name not in _WITHOUT} == set()
    assert {f"{name}/py.typed" for name in NAMES} <= files_of(wheel)
    assert {"deploy/systemd/forebay-driver.service", "deploy/helm/forebay/Chart.yaml"} <= files_of(wheel)


def test_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path, folder=ROOT)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        # from Python 3.11.4 on; the archive is our own
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    assert not (source / ".venv").exists() and not (source / ".cache").exists()
    assert (source / "README.md").is_file() and (source / "LICENSE").is_file()
    run(
        sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path / "made", folder=source
    )
    (made,) = (tmp_path / "made").glob("*.whl")
    assert files_of(made) == files_of(wheel)


def test_library_that_another_build_compiles_is_in_no_package() -> None:
    """Several builds of one tree run at the same time; each writes its library under a name of its own first."""
    assert run("git", "check-ignore", "forebay/kafka/native/gather.so.1.4711", folder=ROOT).strip()


def test_wheel_installs_with_its_dependencies_into_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    """The environment holds nothing else, so a dependency that is not declared is missing here."""
    environment = tmp_path / "environment"
    python = environment / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    run(*uv, "venv", "--quiet", "--python", sys.executable, environment)
    install = [*uv, "pip", "install", "--quiet", "--python", python, wheel]
    # the packages of the set-up are in uv's cache; without them, the index has them
    cached = subprocess.run(
        [str(part) for part in (*install, "--offline")], capture_output=True, timeout=_SECONDS, check=False
    )
    if cached.returncode != 0:
        run(*install)
    assert run(environment / "bin" / "forebay", "--version", folder=tmp_path).startswith("forebay ")
    assert "Run all services" in run(environment / "bin" / "forebay", "--help", folder=tmp_path)
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for name in sorted(NAMES)
        for path in (ROOT / name).rglob("*.py")
        if path.name != "__main__.py" and "examples" not in path.parts
    ]
    optional = (
        "{'deltalake', 'sqlalchemy', 'fastavro', 'authlib', 'httpx2', 'google', 'grpc_tools', 'opentelemetry', 'attrs'}"
    )
    code = f"""
import importlib, sys
failed = []
for name in {modules!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or '').partition('.')[0] not in {optional}:
            failed.append((name, str(error)))
print(failed)
"""
    assert run(python, "-c", code, folder=tmp_path).strip().splitlines()[-1] == "[]"
