"""A user's modules beside the job that have the names of Forebay's own packages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay_start import NAMES
from tests.support.kafka.flow import Truth, numbered, produce
from tests.support.processes.cluster import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_modules_of_the_user_hide_none_of_forebays_own_from_its_processes_and_sparks_workers(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """They are in the current folder and first on PYTHONPATH."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    command = tmp_path / "bin" / "forebay"  # as it is installed
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nimport sys\nfrom forebay_start import main\nsys.exit(main())\n")
    command.chmod(0o755)
    for name in NAMES - {"forebay_start"}:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('the user\\'s own {name}')\n")
    truth = Truth()
    produce(kafka_broker.options, topic, numbered(400), truth)
    with Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, engine="spark", start=False) as cluster:
        for name in cluster.names:
            cluster.install(name, command)
        cluster.start_all()
        cluster.await_completed(truth.ends())
        cluster.check(truth)
