"""Driver and agent under a flood of requests without a token (INV-6)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import MockBroker
from tests.support.processes.flood import beat, flood, with_token
from tests.support.processes.service_process import configured, running

#: more than any service accepts at a time by default before they authenticate
CONNECTIONS = 1_200
HEARTBEATS = 20
#: of a service's memory, whatever the flood sends
GROWTH_BYTES_MAX = 100_000_000


@pytest.mark.parametrize("kind", ["driver", "agent"])
def test_heartbeats_are_answered_during_flood_without_tokens(
    kind: str, tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]
) -> None:
    """On a connection that is kept, and on new ones; and memory is bounded."""
    topic = topic_name()
    mock_broker.create_topic(topic)
    configuration = configured(tmp_path, [topic], mock_broker.address)
    with running(configuration, kind) as service, closing(with_token(service.url)) as kept:
        beat(kept, kind)
        before = service.memory_bytes()
        most = before
        with flood(service.url, CONNECTIONS):
            for _ in range(HEARTBEATS):
                beat(kept, kind)
                with closing(with_token(service.url)) as new:
                    beat(new, kind)
                most = max(most, service.memory_bytes())
        assert most - before < GROWTH_BYTES_MAX, f"{before:,} bytes before, {most:,} under the flood"
        beat(kept, kind)
