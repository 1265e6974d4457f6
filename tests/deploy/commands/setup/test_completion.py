"""Shells complete commands, options and values, by the scripts that `forebay completion` prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.run.wheel import ROOT

#: a `forebay` on the path that runs this checkout
_COMMAND = f"""#!/bin/sh
PYTHONPATH={ROOT} exec {sys.executable} -m forebay_start "$@"
"""
_BASH = """
eval "$(forebay completion bash)"
complete_words() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _forebay_completion forebay
    echo "${COMPREPLY[@]}"
}
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "forebay"
    command.write_text(_COMMAND)
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def run(environment: dict[str, str], shell: str, script: str) -> list[str]:
    found = shutil.which(shell)
    assert found is not None
    done = subprocess.run(
        [found, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def test_bash_completes_commands_options_and_values(environment: dict[str, str]) -> None:
    typed = (
        "forebay va", "forebay wal re", "forebay status --js", "forebay broker --kind ''", "forebay --config x.toml di",
    )  # fmt: skip
    script = _BASH + "".join(f"complete_words {line}\n" for line in typed)
    assert run(environment, "bash", script) == ["validate", "repair retention", "--json", "mock kafka", "direct"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_script_of_other_shells_is_valid_and_completes(environment: dict[str, str], shell: str, tmp_path: Path) -> None:
    def asked(mode: str, **variables: str) -> str:
        return subprocess.run(
            ["forebay"], env={**environment, **variables, "_FOREBAY_COMPLETE": mode}, capture_output=True, text=True,
            timeout=60, check=True,
        ).stdout  # fmt: skip

    script = subprocess.run(
        ["forebay", "completion", shell], env=environment, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert f"_FOREBAY_COMPLETE={shell}_complete" in script
    if shell == "zsh":
        assert asked("zsh_complete", COMP_WORDS="forebay val", COMP_CWORD="1").splitlines() == [
            "plain", "validate", "Check configuration, folders, job, broker and topics.",
        ]  # fmt: skip
    else:
        answer = asked("fish_complete", COMP_WORDS="forebay val", COMP_CWORD="val")
        assert answer.split("\n")[:2] == ["plain", "validate"] or answer.startswith("plain,validate\t")
    if shutil.which(shell) is not None:
        path = tmp_path / f"forebay.{shell}"
        path.write_text(script)
        done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_completion_of_commands_imports_none(environment: dict[str, str]) -> None:
    code = (
        "import sys\nfrom deploy.main import main\ntry:\n    main([])\nexcept SystemExit:\n    pass\n"
        "print([name for name in sys.modules if name.startswith('deploy.commands.')])"
    )
    asked = {"_FOREBAY_COMPLETE": "bash_complete", "COMP_WORDS": "forebay ", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **asked}, cwd=ROOT, capture_output=True, text=True, check=True
    )
    *completions, loaded = done.stdout.splitlines()
    assert "plain,validate" in completions and loaded == "[]"
