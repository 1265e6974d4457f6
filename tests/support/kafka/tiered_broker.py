"""A broker that moves closed segments of topics to a second tier: a folder, by a class of Kafka's own tests.

``python -m tests.support.kafka.tiered_broker`` fetches the class into the cache.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.embedded.jars import KAFKA_VERSION, Libraries
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.servers import debian

TIERED = Libraries(
    f"kafka-tiered-{KAFKA_VERSION}",
    f"the tests of Apache Kafka {KAFKA_VERSION}",
    Path(__file__).with_name(f"kafka-tiered-{KAFKA_VERSION}.jars.lock"),
)
#: the least that Kafka allows
SEGMENT_BYTES = 1 << 20
_LOOK_SECONDS = 0.05


class TieredBroker(KafkaBroker):
    """One broker with topics whose closed segments are only in the second tier."""

    def _server_properties(self) -> dict[str, str]:
        own = {
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
            "remote.log.storage.manager.class.path": f"{TIERED.folder(self._cache)}/*",
            "remote.log.storage.manager.impl.prefix": "rsm.config.",
            "rsm.config.dir": str(self.directory / "remote"),
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
            "remote.log.manager.task.interval.ms": "500",
        }
        return {**super()._server_properties(), **own}

    def create_tiered_topic(self, topic: str, partitions: int, **config: str) -> None:
        own = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES), "local.retention.bytes": "1"}
        client = AdminClient({**self.options})
        new = NewTopic(topic, partitions, 1, config={**own, **config})
        client.create_topics([new])[topic].result(PATIENCE_SECONDS)

    def local_start(self, tp: TopicPartition) -> int:
        """Return the first offset that is on the broker's own disk: before it, all records are in the second tier."""
        folder = self.directory / "data" / f"{tp.topic}-{tp.partition}"
        return min((int(path.stem) for path in folder.glob("*.log")), default=0)

    def await_local_start(self, tp: TopicPartition, after: int) -> int:
        deadline = time.monotonic() + PATIENCE_SECONDS
        looked = threading.Event()
        while (start := self.local_start(tp)) <= after:
            assert time.monotonic() < deadline, f"{tp} stays on the broker's disk from {start} on: {self._log_tail()}"
            looked.wait(_LOOK_SECONDS)
        return start


def bring() -> Any:
    return TIERED.fetch()


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(bring())))
