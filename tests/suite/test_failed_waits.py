"""What a test shows that waited for its processes without success."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka


def test_wait_without_success_shows_the_stacks_of_each_process(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """A process that hangs before its first line of log would show nothing else."""
    kafka_broker.create_topic(topic := topic_name())
    with Cluster(tmp_path, kafka_broker.options, [topic], receivers=1) as cluster:
        cluster.wait(cluster.status, "the driver's status")
        with pytest.raises(AssertionError, match="for: what never comes") as caught:
            cluster.wait(lambda: None, "what never comes", seconds=0.1)
    for name in ("driver", "agent", "r1"):
        stacks = str(caught.value).partition(f"---- stacks of {name}\n")[2].partition("---- stacks of")[0]
        assert "Fatal Python error: Aborted" in stacks and "most recent call first" in stacks, (name, stacks)
