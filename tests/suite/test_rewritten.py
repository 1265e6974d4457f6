"""The cache of rewritten test modules is the one that pytest reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.run import rewritten


def test_pytest_runs_the_module_from_the_cache(tmp_path: Path) -> None:
    module = tmp_path / "test_cached.py"
    module.write_text("def test_one():\n    assert [1] == [2], 'in the cache'\n")
    assert rewritten.write([module]) == [module]
    assert rewritten.write([module]) == [], "the cache is current"
    cached = rewritten.cache_of(module).stat()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", tmp_path, "-c", "/dev/null", "-p", "no:cacheprovider", module],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert "in the cache" in done.stdout and "assert [1] == [2]" in done.stdout, done.stdout
    assert rewritten.cache_of(module).stat().st_mtime_ns == cached.st_mtime_ns, "pytest did not rewrite the module"
    module.write_text("def test_one():\n    assert [1] == [3]\n")
    assert rewritten.write([module]) == [module], "the module has changed"
