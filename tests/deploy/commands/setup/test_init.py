"""`forebay init` writes a configuration that is valid as it is, and overwrites nothing."""

from __future__ import annotations

import ast
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


def test_folder_that_can_not_be_made_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["init", str(tmp_path / "file" / "new")]) == 2
    assert capsys.readouterr().err == f"forebay: {tmp_path}/file/new: can't be written: Not a directory\n"
