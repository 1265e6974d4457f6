"""Earlier states of this repository as releases: their code from git, their command, and what they wrote.

``python -m tests.support.run.releases`` unpacks all of them into the cache. ``tests/golden/make_release.py`` writes the golden
files.
"""

from __future__ import annotations

import ast
import io
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from forebay.kafka.embedded.jars import cache_directory
from forebay.model.errors import UsageError
from tests.support.servers import debian

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "releases"


@dataclass(frozen=True)
class Release:
    """``name``: its date and time (UTC), which also names its golden files. ``about``: features added after it."""

    name: str
    commit: str
    about: str

    @property
    def folder(self) -> Path:
        return cache_directory() / f"forebay-{self.commit}"

    @property
    def command(self) -> Path:
        """The program ``forebay`` of this release, once it is unpacked."""
        return self.folder / "forebay-of-release"

    @property
    def golden(self) -> Path:
        return GOLDEN / self.name

    @property
    def job(self) -> str:
        """Return the text of jobs.py as the tests of this release wrote it; the names of a batch's fields changed."""
        path = next((self.unpack().parent / "tests" / "support").rglob("witness.py"))  # its folder changed
        tree = ast.parse(path.read_text())
        assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
        return next(str(ast.literal_eval(node.value)) for node in assigned if ast.unparse(node.targets[0]) == "JOB")

    def unpack(self) -> Path:
        """Write the release's code and command if needed; return the command. Raises UsageError if git does not have it."""
        # the environment that wrote the command before may be gone
        if self.command.exists() and sys.executable in self.command.read_text():
            return self.command
        shutil.rmtree(self.folder, ignore_errors=True)
        done = subprocess.run(["git", "-C", str(ROOT), "archive", self.commit], capture_output=True, check=False)
        if done.returncode != 0:
            raise UsageError(f"git has no commit {self.commit} here: {done.stderr.decode().strip()}")
        self.folder.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            # Python before 3.10.12 and 3.11.4 has no filters; the archive is of this repository
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
            archive.extractall(self.folder)
        found = re.search(r'^forebay = "([\w.]+):(\w+)"$', (self.folder / "pyproject.toml").read_text(), re.MULTILINE)
        assert found is not None
        module, function = found.groups()
        start = f"import sys; from {module} import {function}; sys.exit({function}())"
        self.command.write_text(
            f'#!/bin/sh\nPYTHONPATH="{self.folder}:$PYTHONPATH" exec "{sys.executable}" -c "{start}" "$@"\n'
        )
        self.command.chmod(0o755)
        return self.command


#: oldest first
RELEASES = (
    Release("2026-11-22-0642", "31d58485", "output helpers, windows"),
    Release("2026-11-22-1959", "484ae9ba", "pauses, skipped batches"),
    Release("2026-11-23-0319", "cfc89b3b", "renamed terms"),
    Release("2026-11-23-1104", "f8fd8b32", "keyed states, several streams"),
    Release("2026-11-23-1754", "8648130b", "joint jobs, replicas beside a WAL"),
    Release("2026-11-26-2052", "2469ed98", "leader epochs in the journal"),
    Release("2026-11-28-1238", "98e9bab8", "warnings about stores that do not answer, checksums of leases and claims"),
    Release("2026-11-29-1513", "9e285c4d", "nothing yet"),
)


def bring() -> None:
    for release in RELEASES:
        print(release.unpack())


if __name__ == "__main__":
    sys.exit(debian.main(bring))
