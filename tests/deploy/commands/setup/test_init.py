"""`forebay init` writes a configuration that is valid as it is, and overwrites nothing."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.main import main
from forebay.settings.reading.load import load


def test_init_writes_ten_lines_of_configuration_and_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"wrote {tmp_path}/forebay.toml", f"wrote {tmp_path}/jobs.py"]
    assert err == (
        "next: forebay validate; forebay up. "
        "Without a Kafka cluster, first: forebay broker --topic flights:4 --data kafka --detach\n"
    )
    settings = load(tmp_path / "forebay.toml", {})
    assert (settings.stream, settings.kafka.topics, settings.driver.job) == ("flights", ("flights",), "jobs:process")
    assert settings.wal.url == f"file://{tmp_path}/data/wal"
    assert settings.kafka.options == {"bootstrap.servers": "127.0.0.1:9092"}  # the default of `forebay broker`
    lines = (tmp_path / "forebay.toml").read_text().splitlines()
    assert len([line for line in lines if line and not line.startswith("#")]) <= 12
    assert "process" in [
        node.name for node in ast.parse((tmp_path / "jobs.py").read_text()).body if hasattr(node, "name")
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["forebay.toml", "jobs.py"]
    assert main(["validate", "--offline"]) == 0


def test_init_takes_folder_topics_broker_and_stream(tmp_path: Path) -> None:
    folder = tmp_path / "a folder" / "orders"
    arguments = ["--topic", "orders", "--topic", "returns", "--broker", "k1:9092,k2:9092", "--stream", "shop"]
    assert main(["init", str(folder), *arguments]) == 0
    settings = load(folder / "forebay.toml", {})
    assert (settings.stream, settings.kafka.topics) == ("shop", ("orders", "returns"))
    assert settings.kafka.options["bootstrap.servers"] == "k1:9092,k2:9092"
    assert settings.agent.blocks == f"{folder}/data/blocks"


@pytest.mark.parametrize("there", ["forebay.toml", "jobs.py"])
def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str) -> None:
    (tmp_path / there).write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert f"{tmp_path / there} exists already, and init overwrites nothing" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "mine")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "a b"], 'kafka.topics = "a b": a topic\'s name has'),
        (["--stream", "a/b"], 'stream = "a/b": a name has'),
        (["--topic", 'x"\nstream = "y'], "kafka.topics = "),
        (["--broker", ""], 'kafka."bootstrap.servers" is missing'),
    ],
)
def test_wrong_option_of_init_is_one_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["init", str(tmp_path / "new"), "--stream", "s", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and err.startswith("forebay: forebay init: ") and err.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("call", "count"), [("fsync", 1), ("fsync", 2), ("link", 1), ("link", 2), ("unlink", 3), ("unlink", 4)]
)
def test_repeat_completes_an_init_that_was_killed(tmp_path: Path, call: str, count: int) -> None:
    program = f"""
import os, sys
from itertools import count
before, calls = os.{call}, count(1)
def killed(*arguments, **options):
    if next(calls) == {count}:
        os._exit(9)
    return before(*arguments, **options)
os.{call} = killed
from deploy.main import main
main(["init", sys.argv[1]])
"""
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 9
    again = main(["init", str(tmp_path)])
    assert again == (2 if call == "unlink" else 0)  # both files have their names by then
    whole = tmp_path / "whole"
    assert main(["init", str(whole)]) == 0
    assert (tmp_path / "jobs.py").read_text() == (whole / "jobs.py").read_text()
    assert load(tmp_path / "forebay.toml", {}).driver.job == "jobs:process"
    if again == 0:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["forebay.toml", "jobs.py", "whole"]


def test_init_on_a_full_disk_leaves_no_file_and_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert main(["init", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"forebay: {tmp_path}: can't be written: No space left on device\n"
    assert list(tmp_path.iterdir()) == []
    assert main(["init", str(tmp_path)]) == 0


def test_init_overwrites_no_file_that_appears_while_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = os.fsync

    def other_program(descriptor: int) -> None:
        (tmp_path / "forebay.toml").write_text("mine")
        before(descriptor)

    monkeypatch.setattr(os, "fsync", other_program)
    assert main(["init", str(tmp_path)]) == 2
    assert f"{tmp_path}/forebay.toml: can't be written: File exists" in capsys.readouterr().err
    assert (tmp_path / "forebay.toml").read_text() == "mine"


def test_init_works_on_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    assert main(["init", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["forebay.toml", "jobs.py"]


def test_folder_that_can_not_be_made_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["init", str(tmp_path / "file" / "new")]) == 2
    assert capsys.readouterr().err == f"forebay: {tmp_path}/file/new: can't be written: Not a directory\n"
