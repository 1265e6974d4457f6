"""Output of the command that could not be written: one sentence, no traceback, and an exit code other than 0."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.console.streams import Nowhere, finish
from deploy.main import main
from tests.support.run.wheel import ROOT

FULL = "No space left on device"
TOKEN = ("token", "new", "receiver")


def run(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a shell with a redirection of its streams."""
    line = f'exec "$0" -m forebay_start "$@" {redirection}'
    command = ["/bin/sh", "-c", line, sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)


@pytest.mark.parametrize(
    ("redirection", "part"), [(">/dev/full", FULL), (">&-", "the output is incomplete: stdout can't be written")]
)
@pytest.mark.parametrize("command", ["token", "config", "json", "help"])
def test_lost_output_is_one_sentence_and_not_success(project: Any, redirection: str, part: str, command: str) -> None:
    arguments = {
        "token": TOKEN,
        "config": ("--config", str(project.config), "config", "show"),
        "json": ("--config", str(project.config), "--json", "config", "show"),
        "help": ("--help",),
    }[command]
    done = run(redirection, *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert part in done.stderr and done.stderr.count("\n") == 1 and done.stderr.startswith("forebay: ")


@pytest.mark.parametrize("redirection", [">/dev/full 2>&1", ">&- 2>&-", ">&- 2>/dev/full", "<&- >&- 2>&-"])
def test_lost_output_is_not_success_if_no_message_can_be_written(redirection: str) -> None:
    assert run(redirection, *TOKEN).returncode == 1


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "<&-"])
def test_output_that_arrives_is_success(redirection: str) -> None:
    done = run(redirection, *TOKEN)
    assert done.returncode == 0 and done.stdout.startswith("receiver ")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_mistake_keeps_its_exit_code_if_its_sentence_is_lost(redirection: str, tmp_path: Path) -> None:
    assert run(redirection, "--config", str(tmp_path / "none"), "config", "show").returncode == 2
    assert run(redirection, "nope").returncode == 2


def test_output_that_fails_at_the_last_flush_is_not_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], project: Any
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(
            "deploy.commands.setup.validation.check_all", lambda settings, path: print("held") or iter(())
        )
        monkeypatch.setattr("deploy.console.invocation.Invocation.write", lambda *_: None)
        assert main(["--config", str(project.config), "--json", "validate"]) == 1
        monkeypatch.undo()
    assert f"forebay: the output is incomplete: stdout can't be written: {FULL}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.EMFILE, "Too many open files", "/a"), "forebay: /a: Too many open files; check"),
        (OSError(errno.EMFILE, "Too many open files"), "forebay: Too many open files; check"),
        (OSError(errno.ENOSPC, FULL), f"forebay: stdout or a file can't be written: {FULL}; check"),
    ],
)
def test_error_of_the_system_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], project: Any, error: OSError, sentence: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("deploy.commands.setup.validation.check_all", fail)
    assert main(["--config", str(project.config), "validate"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(sentence)


def test_fault_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, project: Any) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("deploy.commands.setup.validation.check_all", fail)
    with pytest.raises(ValueError, match="a bug"):
        main(["--config", str(project.config), "validate"])


def test_what_a_job_prints_is_not_output_of_a_service(monkeypatch: pytest.MonkeyPatch, project: Any) -> None:
    from deploy.commands.running.services import log_to_stderr
    from forebay.settings.reading.load import load

    monkeypatch.setattr("forebay.process.logs.configure", lambda *_, **__: None)
    monkeypatch.setattr("faulthandler.enable", lambda: None)
    for is_service in (False, True):
        with Nowhere() as nowhere, monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", nowhere)
            if is_service:
                log_to_stderr(load(project.config), "driver")
            os.write(nowhere.fileno(), b"not counted")
            assert finish() is None
            nowhere.buffer.write(b"bytes")
            print("text")
            assert (finish() is None) == is_service
