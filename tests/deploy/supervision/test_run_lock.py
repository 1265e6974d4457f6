"""The lock of ``forebay up``: its holder, and its release with the process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.main import main
from deploy.supervision.run_lock import holder, lock_path, only_one
from forebay.model.errors import AlreadyRunningError, UsageError

HOLDER = """
import signal, sys
if sys.argv[2:] == ["deaf"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
from deploy.supervision.run_lock import only_one
with only_one(sys.argv[1], "flights", print):
    print("holds", flush=True)
    sys.stdin.read()
"""


def unsaid(message: str) -> None:
    raise AssertionError(message)


@contextmanager
def holding(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock as ``forebay up`` does."""
    command = [sys.executable, "-c", HOLDER, str(folder), *options]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"holds\n"
            yield process
        finally:
            process.kill()


def test_second_holder_is_refused_with_the_process_that_holds_the_lock(tmp_path: Path) -> None:
    with holding(tmp_path) as process:
        with pytest.raises(
            AlreadyRunningError, match=f"stream 'flights' runs already.*process {process.pid} "
        ) as refused:
            only_one(tmp_path, "flights", unsaid).__enter__()
        assert refused.value.exit_code == 5
        with only_one(tmp_path, "trains", unsaid):
            pass  # another stream, side by side
        process.kill()
        process.wait()
        with only_one(tmp_path, "flights", unsaid):  # what a kill leaves behind is no obstacle
            assert lock_path(tmp_path, "flights").read_text() == f"{os.getpid()}\n"


def test_lock_can_be_taken_again_after_its_release(tmp_path: Path) -> None:
    for _ in range(2):
        with only_one(tmp_path / "new" / "folder", "flights", unsaid):
            pass


def test_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"agent.blocks: {tmp_path}/file/b can't be written"):
        only_one(tmp_path / "file" / "b", "flights", unsaid).__enter__()


def test_lock_names_its_holder_alone(tmp_path: Path) -> None:
    lock_path(tmp_path, "flights").write_text("123456789012345\n")
    with only_one(tmp_path, "flights", unsaid):
        assert lock_path(tmp_path, "flights").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOLCK, errno.EOPNOTSUPP])
def test_store_without_locks_or_quota_does_not_keep_a_stream_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    said: list[str] = []
    monkeypatch.setattr("deploy.supervision.run_lock.fcntl.flock", refuse)
    with only_one(tmp_path, "flights", said.append):
        assert os.strerror(number) in said[0]


def test_full_disk_does_not_keep_a_stream_from_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    said: list[str] = []
    monkeypatch.setattr("deploy.supervision.run_lock.os.pwrite", full)
    with only_one(tmp_path, "flights", said.append):
        assert "No space left on device" in said[0]
        with pytest.raises(AlreadyRunningError, match="another process holds"):
            only_one(tmp_path, "flights", unsaid).__enter__()
    monkeypatch.setattr("deploy.supervision.run_lock.os.open", full)
    with only_one(tmp_path, "flights", said.append):
        assert "would not be refused" in said[1]


def test_holder_is_found_stopped_and_awaited(tmp_path: Path) -> None:
    with holding(tmp_path) as process:
        with holder(lock_path(tmp_path, "flights")) as found:
            assert found is not None and found.pid == process.pid
            assert not found.wait(0.0)
            found.terminate()
            assert found.wait(30.0)
            found.terminate()  # no error, although it has ended
        assert process.wait() == -15
    with holder(lock_path(tmp_path, "flights")) as found:
        assert found is None


def test_there_is_no_holder_of_a_lock_that_was_never_taken(tmp_path: Path) -> None:
    with holder(lock_path(tmp_path / "blocks", "flights")) as found:
        assert found is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("written", ["own", "1", "", "99999999999", "no number"])
def test_no_process_but_the_holder_is_stopped(tmp_path: Path, written: str) -> None:
    """A process id may be taken by another process after the end of `up`, or name one in another container."""
    own = str(os.getpid()) if written == "own" else written
    lock_path(tmp_path, "flights").write_text(f"{own}\n")
    with holder(lock_path(tmp_path, "flights")) as found:
        assert found is None
    with holding(tmp_path):
        lock_path(tmp_path, "flights").write_text(f"{own}\n")
        with pytest.raises(UsageError, match="which the file names, is not that process here"):
            holder(lock_path(tmp_path, "flights")).__enter__()


def test_down_says_what_it_did(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = project.folder / "blocks"
    arguments = ["--config", str(project.config), "down"]
    assert main(arguments) == 0
    assert capsys.readouterr().err == "no `forebay up` of stream 'flights' runs on this machine\n"
    blocks.mkdir()
    with holding(blocks, "deaf") as process:
        assert main([*arguments, "--timeout", "100ms"]) == 1
        assert f"process {process.pid} is still stopping services after 0.1 s" in capsys.readouterr().err
        assert process.poll() is None
    with holding(blocks) as process:
        assert main([*arguments, "--json"]) == 0
        out, err = capsys.readouterr()
        assert err == f"process {process.pid} has stopped all services of stream 'flights'\n"
        assert '"state": "stopped"' in out
