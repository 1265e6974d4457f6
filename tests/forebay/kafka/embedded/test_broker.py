"""The embedded Kafka's process."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.commands.trial.broker import make_topic
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.embedded.jars import KAFKA
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from forebay.process.tether import tethered
from tests.conftest import require_kafka
from tests.support.processes.booted import await_end
from tests.support.run.wheel import ROOT
from tests.support.state.again import produce

#: launches a broker, tells its process, and waits to be killed
_OWNER = """
import sys
from forebay.kafka.embedded.broker import KafkaBroker
broker = KafkaBroker(sys.argv[1])
broker.launch()
print(broker.pid, flush=True)
sys.stdin.read()
"""


def test_copied_format_of_the_data_is_that_of_kafkas_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool runs once for each release; the brokers of all other tests have a copy."""
    require_kafka()
    cache = tmp_path / "cache"
    jars = KAFKA.folder(cache)
    jars.parent.mkdir(parents=True)
    jars.symlink_to(KAFKA.folder())
    (jars.parent / "complete").touch()

    def formatted(name: str) -> tuple[dict[str, str], bytes]:
        broker = KafkaBroker(tmp_path / name, cache=cache)
        broker.launch()
        broker.kill9()
        lines = (broker.directory / "data" / "meta.properties").read_text().splitlines()
        identity = dict(line.split("=") for line in lines if not line.startswith("#"))
        return identity, (broker.directory / "data" / "bootstrap.checkpoint").read_bytes()

    by_tool, features = formatted("first")
    monkeypatch.setattr(KafkaBroker, "_run_tool", None)
    copied, same_features = formatted("second")
    assert features == same_features
    assert copied.keys() == by_tool.keys() == {"version", "cluster.id", "node.id", "directory.id"}
    assert (copied["version"], copied["node.id"]) == (by_tool["version"], by_tool["node.id"]) == ("1", "1")
    assert {len(one[key]) for one in (by_tool, copied) for key in ("cluster.id", "directory.id")} == {22}
    assert all(by_tool[key] != copied[key] for key in ("cluster.id", "directory.id"))


@pytest.mark.parametrize("done", [0, 1])
def test_folder_whose_format_was_interrupted_is_formatted_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """The process is killed before a file gets its name, after ``done`` files of the format have theirs."""
    kept = KAFKA.folder(tmp_path / "cache").parent / "bootstrap.checkpoint"
    (kept.parent / "libs").mkdir(parents=True)
    (kept.parent / "complete").touch()
    kept.write_bytes(b"features")
    named: list[Path] = []
    real = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if len(named) == done:
            raise KeyboardInterrupt
        named.append(real(self, target))
        return target

    broker = KafkaBroker(tmp_path / "broker", cache=tmp_path / "cache")
    broker.directory.mkdir()
    data = broker.directory / "data"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            broker._format("java", "", tmp_path)
    assert not (data / "meta.properties").exists(), "the folder counts as formatted"
    broker._format("java", "", tmp_path)
    assert (data / "bootstrap.checkpoint").read_bytes() == b"features"
    assert "version=1\n" in (data / "meta.properties").read_text()


def test_broker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Otherwise it would keep its ports and its memory."""
    require_kafka()
    owner = subprocess.Popen(
        tethered([sys.executable, "-c", _OWNER, str(tmp_path)]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    with owner:
        assert owner.stdout is not None
        broker = int(owner.stdout.readline())
        assert Path(f"/proc/{broker}").exists()
        owner.kill()
    await_end([broker])


@pytest.mark.kafka
def test_broker_of_earlier_run_restarts_with_address_topics_and_records(tmp_path: Path) -> None:
    """As ``forebay broker --kind kafka --data DIR --topic …`` does the second time."""
    require_kafka()
    tp = TopicPartition("t", 0)
    with KafkaBroker(tmp_path / "kafka") as first:
        make_topic(first, "t", 2)
        produce(first.options, tp, 3)
        address = first.address
    with KafkaBroker(tmp_path / "kafka") as second:
        assert second.address == address
        make_topic(second, "t", 2)
        with pytest.raises(
            UsageError,
            match="--topic t:3: the topic already has 2 partitions; write t:2, or name another folder with --data",
        ):
            make_topic(second, "t", 3)
        with KafkaAdmin(second.options) as admin:
            assert admin.ends([tp]) == {tp: 3}
        held = socket.create_server(("127.0.0.1", 0))
    with held:  # another process has the port of the earlier run
        properties = tmp_path / "kafka" / "server.properties"
        properties.write_text(properties.read_text().replace(address, f"127.0.0.1:{held.getsockname()[1]}"))
        with KafkaBroker(tmp_path / "kafka") as third, KafkaAdmin(third.options) as admin:
            assert admin.ends([tp]) == {tp: 3}
