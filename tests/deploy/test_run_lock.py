"""The lock of ``forebay up``: its holder, and its release with the process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.supervision.run_lock import lock_path, only_one
from forebay.model.errors import AlreadyRunningError, UsageError

HOLDER = """
import sys
from deploy.supervision.run_lock import only_one
with only_one(sys.argv[1], "flights", print):
    print("holds", flush=True)
    sys.stdin.read()
"""


def unsaid(words: str) -> None:
    raise AssertionError(words)


def test_second_holder_is_refused_with_the_process_that_holds_the_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"holds\n"
        with pytest.raises(
            AlreadyRunningError, match=f"stream 'flights' runs already.*process {holder.pid} "
        ) as refused:
            only_one(tmp_path, "flights", unsaid).__enter__()
        assert refused.value.exit_code == 5
        with only_one(tmp_path, "trains", unsaid):
            pass  # another stream, side by side
        holder.kill()
        holder.wait()
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
