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
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from forebay.process.tether import tethered
from tests.conftest import require_kafka
from tests.support.again import produce
from tests.support.booted import await_end
from tests.support.wheel import ROOT

#: launches a broker, tells its process, and waits to be killed
_OWNER = """
import sys
from forebay.kafka.embedded.broker import KafkaBroker
broker = KafkaBroker(sys.argv[1])
broker.launch()
print(broker.pid, flush=True)
sys.stdin.read()
"""


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
