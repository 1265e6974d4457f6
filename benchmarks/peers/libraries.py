"""The Java libraries of the peers: Flink with its Kafka source, and Kafka Connect with its file sink.

``python -m benchmarks.peers.libraries`` fetches them into the cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

from forebay.kafka.embedded.jars import KAFKA_VERSION, Libraries
from forebay.model.errors import UsageError

FLINK_VERSION = "2.2.1"
#: the release of Flink's Kafka source for this release of Flink
FLINK_KAFKA_VERSION = "5.0.0-2.2"

FLINK = Libraries(
    f"flink-{FLINK_VERSION}", f"Apache Flink {FLINK_VERSION}", Path(__file__).with_name("flink.jars.lock")
)
CONNECT = Libraries(
    f"kafka-connect-{KAFKA_VERSION}", f"Kafka Connect {KAFKA_VERSION}", Path(__file__).with_name("connect.jars.lock")
)


def present() -> bool:
    return FLINK.present() and CONNECT.present()


def main() -> int:
    """Fetch the jars and print their folders (make services)."""
    try:
        for libraries in (FLINK, CONNECT):
            print(libraries.fetch())
    except UsageError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
