"""Pytest's rewritten test modules, cached before the processes of a run start.

In a fresh checkout each process would rewrite the assertions of all test modules itself, because all processes start at the same
time. With the cache, a process only reads the modules.

``python -m tests.support.run.rewritten SHARE SHARES`` writes the cache of one share of the modules.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from _pytest.assertion import rewrite

TESTS = Path(__file__).resolve().parents[2]


@contextmanager
def rewriting() -> Iterator[None]:
    """Write the cache on all cores while the body runs, and wait for its end. Raises CalledProcessError."""
    if sys.dont_write_bytecode:
        yield
        return
    shares = os.cpu_count() or 1
    commands = [[sys.executable, "-m", __name__, str(share), str(shares)] for share in range(shares)]
    running = [subprocess.Popen(command, cwd=TESTS.parent) for command in commands]
    try:
        yield
    finally:
        codes = [process.wait() for process in running]
    for command, code in zip(commands, codes, strict=True):
        if code:
            raise subprocess.CalledProcessError(code, command)


def cache_of(module: Path) -> Path:
    """Return the file in which pytest looks for the rewritten module."""
    return rewrite.get_cache_dir(module) / f"{module.stem}{rewrite.PYC_TAIL}"


def write(modules: list[Path]) -> list[Path]:
    """Write the cache of each module that has none, or has changed, and return these modules."""
    stale = [module for module in modules if rewrite._read_pyc(module, cache_of(module)) is None]
    for module in stale:
        cache_of(module).parent.mkdir(parents=True, exist_ok=True)
        source_hash, code = rewrite._rewrite_test(module, None)  # type: ignore[arg-type]  # no configuration: no hooks of assertions that pass
        state = SimpleNamespace(trace=lambda message: None)
        rewrite._write_pyc(state, code, source_hash, cache_of(module))  # type: ignore[arg-type]
    return stale


if __name__ == "__main__":
    found = sorted(path for name in ("test_*.py", "conftest.py") for path in TESTS.rglob(name))
    write(found[int(sys.argv[1]) :: int(sys.argv[2])])
