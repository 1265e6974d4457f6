"""The command line itself: options, help, exit codes, and errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from deploy.main import commands, main
from forebay.kafka.embedded.broker import MockBroker
from tests.support.run.wheel import ROOT


def every_command() -> Iterator[tuple[str, click.Command]]:
    def below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from below(f"{path} {name}", found)

    yield from below("forebay", commands)


COMMANDS = dict(every_command())


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_of_every_command_teaches_by_an_example(path: str) -> None:
    command = COMMANDS[path]
    context = click.Context(command, info_name=path)
    text = command.get_help(context)
    assert "Example:\n" in text
    assert f"  {path} " in text.partition("Example:")[2].replace("--config forebay.toml ", "") + " "
    assert command.help


def test_help_is_shown_without_importing_a_command() -> None:
    """The help of a group must not wait for the libraries that its commands need."""
    code = (
        "import sys; from deploy.main import main; main(['--help']); "
        "print(sorted(name for name in sys.modules if name.startswith('deploy.commands.') "
        "or name in {'pyspark', 'pyarrow', 'confluent_kafka', 'litestar', 'rich', 'forebay.settings.schema'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    *_, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    assert "Inspect:" in done.stdout and "  status " in done.stdout


@pytest.mark.parametrize("path", COMMANDS)
def test_config_and_json_are_taken_by_every_command(path: str) -> None:
    options = {option for parameter in COMMANDS[path].params for option in parameter.opts}
    assert {"--config", "--json"} <= options


#: code of the pages, a piece a line
CODE = "\n".join(
    " ".join(code.split()) if code.count("`") == 2 else code
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.name != "commands.md"  # it is written from the commands, and so names all
    for code in re.findall(r"```.*?```|`[^`]+`", path.read_text(encoding="utf-8"), re.DOTALL)
)


@pytest.mark.parametrize("path", [path for path, command in COMMANDS.items() if not isinstance(command, click.Group)])
def test_every_command_is_on_a_page(path: str) -> None:
    pattern = r"(?: --config \S+)? ".join(path.split(" ", 1))
    assert re.search(rf"(?<![\w-]){pattern}(?![\w-])", CODE), f"no page names {path}"


#: deletes nothing itself, or has nothing to ask: its option tells so
LOOKS_ONLY = {"forebay wal retention"}


@pytest.mark.parametrize(
    "path",
    [path for path, c in COMMANDS.items() if {"--apply", "--yes", "--dry-run"} & {o for p in c.params for o in p.opts}],
)
def test_every_command_that_changes_something_is_carried_out_by_apply_and_looks_by_default(path: str) -> None:
    options = {option for parameter in COMMANDS[path].params for option in parameter.opts}
    wanted = {"--dry-run"} if path in LOOKS_ONLY else {"--apply", "--yes", "--dry-run"}
    assert options & {"--apply", "--yes", "--dry-run"} == wanted
    context = click.Context(COMMANDS[path])
    changing = [p for p in COMMANDS[path].params if {"--apply", "--yes"} & set(p.opts)]
    assert all(p.get_default(context) is not True for p in changing)


@pytest.mark.parametrize("group", [path for path, command in COMMANDS.items() if isinstance(command, click.Group)])
def test_every_command_of_a_group_that_the_pages_name_exists(group: str) -> None:
    named = set(re.findall(rf"(?:^|[`/\s]){group}(?: --config \S+)? ([a-z][a-z-]+)", CODE, re.MULTILINE))
    assert named, f"no page names a command of {group}"
    assert named - {path.removeprefix(f"{group} ") for path in COMMANDS} == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config", "CONFIG", "--json", "validate"],
        ["validate", "--config", "CONFIG", "--json"],
        ["--json", "validate", "--config", "CONFIG"],
    ],
)
def test_options_count_before_and_after_the_command(
    project: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr("deploy.commands.setup.validation.check_all", lambda settings, path: iter(()))
    assert main([str(project.config) if part == "CONFIG" else part for part in arguments]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_the_configuration_is_found_by_variable_and_then_in_the_current_folder(
    project: Any, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from deploy.console.invocation import Invocation

    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)
    monkeypatch.chdir(project.folder)
    assert Invocation().settings().stream == "flights"
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setenv("FOREBAY_CONFIG", str(project.config))
    assert Invocation().settings().stream == "flights"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nope"], "No such command 'nope'; see forebay --help"),
        (["stauts"], "No such command 'stauts'; did you mean status?; see forebay --help"),
        (["wal", "verfy"], "No such command 'verfy'; did you mean verify?; see forebay wal --help"),
        (["batch", "rerty"], "Did you mean 'retry'?"),
        (["status", "--jsno"], "Did you mean '--json'?"),
        (["receiver"], "Missing option '--id'"),
        (["receiver", "--id", "a/b"], "--id 'a/b'"),
        (["status", "--colour"], "No such option"),
        (["offsets", "accept-gap", "t", "1", "2"], "write TOPIC/PARTITION"),
        (["offsets", "accept-gap", "t/0", "1", "2", "--yes", "--dry-run"], "exclude each other"),
        (["offsets", "accept-gap", "t/" + "9" * 5000, "1", "2"], "write TOPIC/PARTITION"),
        (["offsets", "reset", "t/" + "9" * 5000, "--to", "earliest"], "write TOPIC or TOPIC/PARTITION"),
        (["offsets", "reset", "t/0", "--to", "9" * 5000], "write earliest, latest, an offset"),
        (["broker", "--topic", "t"], "write NAME:PARTITIONS"),
        (["broker", "--topic", "t:" + "9" * 5000], "write NAME:PARTITIONS"),
        (["offsets", "accept-gap", "t/0", "1", "9" * 30], "is above the largest number, 9223372036854775807"),
        (["batch", "skip", "9" * 30], "is above the largest number, 9223372036854775807"),
        (["size", "--records", "1", "--bytes", "9" * 400, "--partitions", "1"], "Invalid value for '--bytes'"),
        (["recover", "t/0[0, 5)"], "--accept-loss BATCH"),
        (["recover", "--apply", "--dry-run"], "exclude each other"),
        (["recover", "--accept-loss", "3", "t/0"], "is not a range"),
        (["wal", "inspect", "--partition", "t"], "write TOPIC/PARTITION"),
        (["status", "--config", "missing.toml"], "missing.toml: can't be read"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(
    project: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], part: str
) -> None:
    monkeypatch.chdir(project.folder)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("forebay: ")
    assert err.count("\n") == 1
    assert part in err


def test_a_fault_of_the_program_is_not_hidden(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("deploy.commands.inspection.status.ask_status", broken)
    with pytest.raises(RuntimeError, match="a fault"):
        main(["--config", str(project.config), "status"])


def bad(old: str, new: str, *parts: str) -> Any:
    return pytest.param(old, new, parts, id=new)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        bad("[wal]", "[wal]\nretentoin = '1d'", "forebay.toml", "unknown key wal.retentoin", "retention"),
        bad("[wal]", "[wal]\nretention = '1 week'", "forebay.toml", 'wal.retention = "1 week"', "ms, s, m, h, d"),
        bad("jobs:process", "nojobs:process", "driver.job", "nojobs"),
        bad("jobs:process", "jobs:nothing", "driver.job", "nothing"),
        bad("jobs:process", "jobs:number", "driver.job", "number"),
        bad("jobs:process", "broken:process", "driver.job", "ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("command", ["driver", "validate"])
def test_bad_configuration_is_one_sentence_without_traceback(
    project: Any, command: str, old: str, new: str, parts: tuple[str, ...]
) -> None:
    (project.folder / "broken.py").write_text("1 / 0\n")
    project.replace(old, new)
    if command == "validate":
        with MockBroker() as broker:
            project.replace('127.0.0.1:1"\n[wal]', f'{broker.address}"\n[wal]')
            done = project.forebay("validate")
    else:
        done = project.forebay(command)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    matching = [line for line in (done.stdout + done.stderr).splitlines() if all(part in line for part in parts)]
    assert len(matching) == 1, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "key"),
    [(["driver"], "driver.journal"), (["agent"], "agent.blocks"), (["receiver", "--id", "r1"], "wal.url")],
)
def test_a_folder_that_can_not_be_written_is_one_sentence(project: Any, arguments: list[str], key: str) -> None:
    (project.folder / "file").write_text("no folder")
    project.replace(f"{project.folder}/", f"{project.folder}/file/")
    done = project.forebay(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"forebay: {key}: " in done.stderr
    assert "can't be written" in done.stderr


def test_up_ends_with_2_and_stops_all_when_the_job_can_not_be_imported(project: Any) -> None:
    project.replace("jobs:process", "nojobs:process")
    done = project.forebay("up")
    assert done.returncode == 2, done.stderr
    assert "up | driver found wrong settings or options (exit code 2) and is not restarted" in done.stderr
    assert "driver | forebay: driver.job" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_works_from_any_folder(project: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The job is found beside the configuration file, wherever the command is called."""
    elsewhere: Path = tmp_path_factory.mktemp("elsewhere")
    with MockBroker() as broker:
        broker.create_topic("t")
        project.replace('127.0.0.1:1"\n[wal]', f'{broker.address}"\n[wal]')
        done = project.forebay("validate", "--config", str(project.config), folder=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fine        job: jobs:process can be called" in done.stdout
    assert "fine        topics: t: 4 partitions" in done.stdout
