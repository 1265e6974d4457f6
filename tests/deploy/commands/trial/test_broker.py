"""`forebay broker` in the background: it answers when the command returns, and only it is stopped."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from deploy.main import main
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker


def test_broker_in_the_background_has_its_topics_until_it_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kafka"
    start = ["broker", "--kind", "mock", "--topic", "t:4", "--data", str(folder), "--detach"]
    assert main([*start, "--json"]) == 0
    started = json.loads(capsys.readouterr().out)
    stop = ["broker", "--stop", "--data", str(folder)]
    try:
        with KafkaAdmin({"bootstrap.servers": started["address"]}) as admin:
            assert admin.topics() == {"t": 4}
        assert main(start) == 5
        assert (
            f"process {started['process']} runs a broker with the data in {folder} already" in capsys.readouterr().err
        )
    finally:
        assert main(stop) == 0
    assert capsys.readouterr().err == f"process {started['process']} has stopped\n"
    assert main(stop) == 0
    assert capsys.readouterr().err == f"no broker runs with the data in {folder}\n"


def test_broker_that_does_not_start_in_the_background_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", "--kind", "mock", "--topic", "t:3", "--data", str(tmp_path), "--detach"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and "creates topics with 4 partitions, not 3" in err


@pytest.mark.kafka
def test_port_in_use_is_named_before_kafka_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["broker", "--port", str(port), "--data", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert f"127.0.0.1:{port} is in use, perhaps by a broker that runs already" in err and err.count("\n") == 1
    assert not (tmp_path / "kafka.log").exists()


def test_named_port_is_taken_and_the_controllers_port_is_kept(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    with socket.socket() as probe, socket.socket() as other:  # ports that are free now
        probe.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, controller = probe.getsockname()[1], other.getsockname()[1]
    properties.write_text(f"listeners=PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:{controller}\n")
    broker = KafkaBroker(tmp_path, port=port)
    chosen = broker._choose_ports(properties)
    assert chosen == (port, controller)
    assert KafkaBroker(tmp_path)._choose_ports(tmp_path / "absent")[0] not in (0, port)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "mock", "--port", "9092"], "--kind mock chooses its port itself"),
        (["--detach"], "--detach: name the broker's folder with --data DIR"),
        (["--stop"], "--stop: name the broker's folder with --data DIR"),
        (["--stop", "--data", ".", "--topic", "t:4"], "--stop excludes"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["broker", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
