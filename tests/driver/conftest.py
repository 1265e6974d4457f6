"""Settings of a driver with a local engine and a mock broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.kafka.embedded.broker import MockBroker
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from tests.support.state.intakes import Configure


@pytest.fixture
def settings(tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]) -> Configure:
    topic = topic_name()
    mock_broker.create_topic(topic)

    def configure(**driver: Any) -> Settings:
        values = {
            "journal": f"file://{tmp_path}/journal",
            "url": "http://127.0.0.1:0",
            "engine": "local",
            "batch_interval": "20ms",
            "job_retry_delay": "1ms",
            "lease_duration": "300ms",
            "snapshot_copy_interval": "0s",
            **driver,
        }
        return from_values(
            {
                "stream": "s",
                "kafka": {"topics": [topic], "group": topic, **mock_broker.options},
                "wal": {"url": f"file://{tmp_path}/wal", "retention": "0s"},
                "driver": values,
                "agent": {"blocks": f"{tmp_path}/blocks"},
            }
        )

    return configure
