"""`make setup` installs no file whose SHA-256 is not in a lock."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.support.run.pythons import bare_python

_ROOT = Path(__file__).parents[2]
_PACKAGE = "forebay-tiny"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with the real set-up, a lock of one package, and that package in the folder ``index``."""
    (tmp_path / "index").mkdir()
    wheel = tmp_path / "index" / "forebay_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("forebay_tiny.py", "")
        file.writestr("forebay_tiny-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {_PACKAGE}\nVersion: 1.0\n")
        file.writestr(
            "forebay_tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr("forebay_tiny-1.0.dist-info/RECORD", "")
    for name in (
        "scripts/setup.sh",
        "scripts/tools.lock",
        "scripts/compile_native.py",
        "forebay/kafka/native/gather.c",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_ROOT / name, tmp_path / name)
    (tmp_path / "pyproject.toml").write_text("")
    bare_python(tmp_path / ".venv")
    return tmp_path


def lock(tree: Path, sha256: str) -> None:
    (tree / "requirements.lock").write_text(f"{_PACKAGE}==1.0 \\\n    --hash=sha256:{sha256}\n")


def set_up(tree: Path) -> subprocess.CompletedProcess[str]:
    index = str(tree / "index")
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tree), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": index, "UV_OFFLINE": "1",
        "UV_FIND_LINKS": index, "UV_CACHE_DIR": str(tree / "cache"),
    }  # fmt: skip
    return subprocess.run(
        ["sh", str(tree / "scripts" / "setup.sh")], capture_output=True, text=True, env=environment, check=False
    )


def is_installed(tree: Path) -> bool:
    return bool(list(tree.glob(".venv/lib/python*/site-packages/forebay_tiny.py")))


def test_file_of_another_hash_ends_the_set_up_before_anything_of_it_is_installed(tree: Path) -> None:
    """Neither uv nor, after it, pip accepts the file."""
    lock(tree, "0" * 64)
    refused = set_up(tree)
    assert refused.returncode != 0
    assert "Hash mismatch" in refused.stderr, "uv's message"
    assert "DO NOT MATCH THE HASHES" in refused.stderr, "pip's message"
    assert not is_installed(tree)
    assert not (tree / ".venv" / ".forebay-setup").exists()


def test_tool_of_another_hash_ends_the_set_up(tree: Path) -> None:
    """The set-up does not continue without the tool, as it does if there is no network. A package of the right hash is there."""
    (wheel,) = (tree / "index").iterdir()
    lock(tree, hashlib.sha256(wheel.read_bytes()).hexdigest())
    shutil.copy(wheel, wheel.with_name("editables-99.0-py3-none-any.whl"))
    (tree / "scripts" / "tools.lock").write_text(f"editables==99.0 \\\n    --hash=sha256:{'0' * 64}\nuv==0\n")
    refused = set_up(tree)
    assert refused.returncode != 0
    assert "setup: ERROR: THESE PACKAGES DO NOT MATCH THE HASHES" in refused.stderr
    assert "going on" in refused.stderr, "without uv, which is not there"
    assert is_installed(tree)


def test_every_package_of_the_locks_has_a_hash() -> None:
    for name in ("requirements.lock", "scripts/tools.lock"):
        packages = (_ROOT / name).read_text().split("\n    --hash=sha256:")
        lines = (_ROOT / name).read_text().splitlines()
        assert packages
        for line, after in zip(lines, [*lines[1:], ""], strict=True):
            if "==" in line:
                assert after.startswith("    --hash=sha256:"), f"{name}: {line}"
