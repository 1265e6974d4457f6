"""The longest delay of a heartbeat with a token during a flood without tokens, against the longest delay without the flood.

Driver and agent run as separate processes; the agent, which takes no heartbeats, is asked for its status. Each heartbeat is
sent on a kept connection and on a new one. The flood (``tests.support.processes.flood``) opens more silent connections than a
service accepts, and some whose requests never end. Flood, service and clients share the machine's processors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from benchmarks.measured import Measured, figure, ratio
from benchmarks.setup import Setup
from forebay.kafka.embedded.broker import MockBroker
from tests.support.processes.flood import beat, flood, with_token
from tests.support.processes.service_process import Service, configured, running

CONNECTIONS = 1_200
HEARTBEATS = 50
TOPIC = "flood"


def measure(setup: Setup) -> Iterator[Measured]:
    with MockBroker() as broker:
        broker.create_topic(TOPIC)
        for kind in ("driver", "agent"):
            pairs: list[tuple[float, float]] = []
            memory: list[float] = []
            for _ in range(setup.runs):
                with setup.folder() as folder, running(configured(folder, [TOPIC], broker.address), kind) as service:
                    quiet = _longest_ms(service, kind)
                    before = service.memory_bytes()
                    with flood(service.url, CONNECTIONS):
                        pairs.append((_longest_ms(service, kind), quiet))
                        memory.append(max(1, service.memory_bytes() - before) / 1e6)
            yield ratio("flood", f"{kind}: longest heartbeat, flooded / not", pairs, "ms")
            yield figure("flood", f"{kind}: memory that the flood takes", memory, "MB")


def _longest_ms(service: Service, kind: str) -> float:
    longest = 0.0
    with closing(with_token(service.url)) as kept:
        for _ in range(HEARTBEATS):
            with closing(with_token(service.url)) as new:
                longest = max(longest, beat(kept, kind), beat(new, kind))
    return 1000 * longest
